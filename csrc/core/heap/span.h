/* span.h - where a block can go: address space with the pages that it lacks. Pure; the
 * caller holds the device lock.
 */
#pragma once
#include "core/heap/block.h"

// A place for a block: address space that is FREE or HOLE throughout.
typedef struct oomph_span {
    oomph_segment_t *segment;
    oomph_block_t *block; // that contains the first byte
    oomph_addr_t addr;
    size_t bytes;
    size_t missing_count; // pages that must be mapped first
} oomph_span_t;

// The span for `bytes` with the fewest missing pages, the lowest if several; false if
// no segment has room. FREE blocks on host pages are obstacles.
bool oomph_heap_best_span(const oomph_heap_t *heap, size_t bytes, oomph_span_t *span);
// The lowest HOLE of at least `count` pages, or NULL.
oomph_block_t *oomph_heap_hole(const oomph_heap_t *heap, size_t count);
// Fills in the span at a given place; false if something there is in use.
bool oomph_heap_span_at(oomph_segment_t *segment, oomph_addr_t addr, size_t bytes,
                        oomph_span_t *span);
// The first pages of it that are not mapped, one after another; none: all are.
oomph_page_run_t oomph_span_lacks(const oomph_span_t *span);
