/* offload.h - regions in which nothing falls back to the host. */
#pragma once
#include "oomph/types.h"

#include <stdbool.h>

// Who forbids offload, which the error says.
typedef enum oomph_ban {
    OOMPH_BAN_REGION,       // the program, for a part of itself
    OOMPH_BAN_BATCH_FINDER, // who looks for the largest batch that fits
    OOMPH_BAN_TRIAL,        // who tries what it can do without: others may leave for it
    OOMPH_BANS,
} oomph_ban_t;

// Between the two nothing falls back to the host, whichever thread asks for it: a
// failed allocation is an error. They nest. What lies on the host stays there.
// Errors: OOMPH_ERR_INVALID (no such ban).
oomph_status_t oomph_forbid_offload(oomph_ban_t ban);
// Errors: OOMPH_ERR_INVALID if offload is not forbidden by it.
oomph_status_t oomph_allow_offload(oomph_ban_t ban);
bool oomph_offload_is_forbidden(void);
bool oomph_offload_is_forbidden_by(oomph_ban_t ban);
