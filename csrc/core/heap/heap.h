/* heap.h - the segments of a heap (block.h): added, removed, moved to another heap.
 * Pure; the caller holds the device lock.
 */
#pragma once
#include "core/heap/block.h"

// Errors: OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_heap_init(oomph_heap_t *heap, oomph_slab_t *slab, bool small,
                               void *owner);
// The heap must have no segments.
void oomph_heap_destroy(oomph_heap_t *heap);
size_t oomph_heap_record_bytes(const oomph_heap_t *heap);

// Puts the segment into the heap, covered by one block of `state` and `tier`. Needs one
// record.
void oomph_heap_add(oomph_heap_t *heap, oomph_segment_t *segment,
                    oomph_block_state_t state, oomph_tier_t tier);
// Takes the segment out, with its one block, which must not be in use.
void oomph_heap_remove(oomph_segment_t *segment);
// Moves a segment with all its blocks to another heap of the same kind.
void oomph_heap_move(oomph_segment_t *segment, oomph_heap_t *heap);
