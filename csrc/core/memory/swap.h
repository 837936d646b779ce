/* swap.h - pages in use that change their tier while their addresses stay.
 *
 * Other pages are taken and mapped at a staging address of their own, the contents are
 * copied there, and then the pages change places. While they do nothing is mapped at
 * the addresses, and nothing that is written after the copy is kept: so the caller has
 * waited for the device and knows that nobody uses them. The caller holds the device
 * lock. What waits here waits for the copies.
 */
#pragma once
#include "core/memory/segment.h"

// Pages that are mapped throughout, of one tier.
typedef struct oomph_swap_run {
    oomph_segment_t *segment;
    size_t first, count;
    bool moved;  // it has the other tier now
    bool leaked; // the driver would map neither the old pages again nor the new ones
} oomph_swap_run_t;

// Moves the runs to the tier that they are not of, all or none, with their contents;
// the pages that they had become spare. The caller has seen to it that the pages may be
// taken. Errors: OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER. Then every run is as before,
// unless the driver refused to undo, too: a run that it left on the other tier is
// marked `moved`, and keeps its contents; one that it left unmapped is marked `leaked`,
// what is in use there stays so for ever, and the error says so.
oomph_status_t oomph_swap(oomph_pages_t *pages, oomph_swap_run_t *runs,
                          size_t run_count, oomph_tier_t tier);
