/* segment.h - reserved address ranges and the pages mapped into them.
 *
 * Keeps the entries and blocks (block.h) in step with what the driver has mapped: a
 * call that fails has changed nothing. The caller holds the device lock. Nothing here
 * waits: the caller knows when work has finished.
 */
#pragma once
#include "core/heap/span.h"
#include "core/memory/page.h"

// Reserves at least `bytes` of address space for the heap, as one HOLE.
// Errors: OOMPH_ERR_NO_MEMORY (address space, host memory), OOMPH_ERR_DRIVER.
oomph_status_t oomph_segment_reserve(oomph_heap_t *heap, oomph_pages_t *pages,
                                     size_t bytes, oomph_segment_t **segment);
// The same in address space that was reserved before and is still ours. Errors:
// OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_segment_reserve_at(oomph_heap_t *heap, oomph_pages_t *pages,
                                        oomph_addr_t base, size_t bytes,
                                        oomph_segment_t **segment);
// Adds memory that exists already at `addr`, as one FREE block. Errors:
// OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_segment_adopt(oomph_heap_t *heap, oomph_pages_t *pages,
                                   oomph_segment_kind_t kind, oomph_tier_t tier,
                                   oomph_addr_t addr, size_t bytes,
                                   oomph_segment_t **segment);
// Drops a segment without blocks in use and, if VIRTUAL, without pages. What an adopted
// segment stood on is the caller's to free. Errors: OOMPH_ERR_DRIVER; nothing changed.
oomph_status_t oomph_segment_drop(oomph_segment_t *segment, oomph_pages_t *pages);

// Maps pages into [first, first + count), all of one HOLE, which becomes FREE. The CPU
// may not use them.
// Errors: OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER.
oomph_status_t oomph_segment_map(oomph_segment_t *segment, oomph_pages_t *pages,
                                 size_t first, size_t count, oomph_tier_t tier);
// Maps device pages wherever the span has none. Errors as above.
oomph_status_t oomph_segment_map_span(const oomph_span_t *span, oomph_pages_t *pages);
// Unmaps the pages [first, first + count), all within one FREE block, which become a
// HOLE. The pages become spare; those that were exported are released. Errors:
// OOMPH_ERR_DRIVER, OOMPH_ERR_NO_MEMORY.
oomph_status_t oomph_segment_unmap(oomph_segment_t *segment, oomph_pages_t *pages,
                                   size_t first, size_t count);
// Unmaps the pages of a block in use, which has them to itself, and leaves its record
// as it is. The pages become spare, or are released, as above. Errors:
// OOMPH_ERR_DRIVER.
oomph_status_t oomph_segment_unmap_block(const oomph_block_t *block,
                                         oomph_pages_t *pages);
// Counts pages that the segment has got, or has no more.
void oomph_segment_count_mapped(oomph_segment_t *segment, oomph_pages_t *pages,
                                size_t count);
void oomph_segment_count_unmapped(oomph_segment_t *segment, oomph_pages_t *pages,
                                  size_t count);
// Drops a VIRTUAL segment without pages, as oomph_segment_drop() does, but keeps its
// address space reserved.
void oomph_segment_retire(oomph_segment_t *segment, oomph_pages_t *pages);
// Lets other processes name the mapped pages [first, first + count): each gets a file
// descriptor, which it keeps as long as it is mapped.
// Errors: OOMPH_ERR_NO_MEMORY (host memory), OOMPH_ERR_DRIVER.
oomph_status_t oomph_segment_export(oomph_segment_t *segment,
                                    const oomph_pages_t *pages, size_t first,
                                    size_t count);
static inline int oomph_segment_descriptor(const oomph_segment_t *segment, size_t page)
{
    return segment->exported == NULL ? -1 : segment->exported[page] - 1;
}
