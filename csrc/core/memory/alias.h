/* alias.h - free pages that the stream which freed them uses again at another address
 * before their work has finished: mapped at two addresses for that time (what CUDA
 * calls virtual aliasing).
 *
 * The stream's own order keeps the two uses apart, as it does where a block is used
 * again at its old address; CUDA promises that what one kernel wrote through one
 * address is there for a later one of the stream through the other. But nothing may be
 * unmapped that queued work still names: so the old address stays mapped, and nobody's,
 * until that has finished. The caller holds the device lock. Nothing here waits.
 */
#pragma once
#include "core/memory/segment.h"

// Pages of a segment that are mapped there, but lie elsewhere: a quarantined HOLE.
typedef struct oomph_alias {
    oomph_page_run_t run;
    uint64_t epoch; // of the device's clock: once it has passed, nothing names them
} oomph_alias_t;

typedef struct oomph_aliases {
    oomph_alias_t *list;
    size_t count, capacity;
} oomph_aliases_t;

// Maps device pages within one FREE block, never exported, at `first` of `to` as well,
// in a HOLE of the same length, which becomes FREE. They belong there from then on, as
// freed when they were. Errors: OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER; the pages are
// where they were.
oomph_status_t oomph_alias(oomph_aliases_t *aliases, oomph_pages_t *pages,
                           oomph_page_run_t to, oomph_page_run_t from, uint64_t epoch);
// Unmaps the old addresses whose epoch is not after `passed`: they become HOLEs. What
// the driver does not unmap now stays for the next time.
void oomph_aliases_end(oomph_aliases_t *aliases, oomph_pages_t *pages, uint64_t passed);
