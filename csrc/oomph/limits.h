/* limits.h - how much a device may take, and what it still has. */
#pragma once
#include "oomph/types.h"

#include <stdbool.h>
#include <stddef.h>

// Fraction of the card that oomph may take, in addition to the configured limit. Opens
// no device: one that is not in use yet keeps it until it is. Errors: OOMPH_ERR_INVALID
// (no such device, or not in [0, 1]), OOMPH_ERR_STATE, OOMPH_ERR_DRIVER (no driver).
oomph_status_t oomph_set_fraction(int device, double fraction);
double oomph_get_fraction(int device);

// What the device has and may still give, as cudaMemGetInfo says it, but under the
// limits set: a card of `device_limit` bytes. Errors: of opening, OOMPH_ERR_DRIVER.
oomph_status_t oomph_memory_info(int device, size_t *free_bytes, size_t *total_bytes);

// Whether the device has no memory of its own but uses the host's, so that what moves
// to the host frees nothing. Opens no device. Errors: OOMPH_ERR_INVALID (no such
// device), OOMPH_ERR_STATE, OOMPH_ERR_DRIVER.
oomph_status_t oomph_shares_memory(int device, bool *shares);

// The largest block that could be had from free pages, after waiting for their work,
// and new ones. Errors: of opening.
oomph_status_t oomph_largest_free(int device, size_t *bytes);

// Tries which kind of host memory works on the device, by using it; OOMPH_HOST_OFF if
// none does. Errors: of opening.
oomph_status_t oomph_probe_host(int device, oomph_host_kind_t *kind);

const char *oomph_host_kind_name(oomph_host_kind_t kind);
