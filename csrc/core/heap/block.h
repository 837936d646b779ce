/* block.h - the address space of one pool: segments tiled by blocks, and an index of
 * the free ones.
 *
 * Pure bookkeeping: no driver, no lock, no clock. The caller holds the device lock and
 * maps and unmaps the pages. A block is FREE, USED or DEFERRED where every page that it
 * touches is mapped, and a HOLE where none is. HOLEs cover whole pages. Neighbours of
 * the same kind (HOLE, quarantined or not; FREE of one tier) are always merged. Nothing
 * finds a quarantined HOLE. All pages of a FREE block are of its tier. So are those of
 * a block in use, except end pages that it shares with a neighbour that has not moved
 * along, and but for split blocks: those are on the host from some page on, and on the
 * device before. Once freed, such blocks fall into parts.
 *
 * Small blocks that are freed first go to a quick list of their size, unmerged, and are
 * handed out again whole. Whoever needs to see all free space consolidates the heap.
 *
 * Nothing here fails half-way: oomph_slab_reserve() comes before whatever needs
 * records.
 */
#pragma once
#include "core/base/counter.h"
#include "core/heap/slab.h"

typedef struct oomph_segment oomph_segment_t;
typedef struct oomph_heap oomph_heap_t;

struct oomph_block {
    oomph_addr_t addr;
    size_t bytes;
    oomph_block_t *prev, *next; // neighbours in the segment, by address
    oomph_segment_t *segment;
    union {
        struct {
            oomph_block_t *after, *before; // in a bin, or in the heap's list of holes
        } links;                           // of a FREE block or a HOLE
        struct {
            size_t requested_bytes;
            void *user;
        } use; // of a USED or DEFERRED block
    };
    uint32_t record;   // number in the record of the step (record.h)
    oomph_site_t site; // of a USED or DEFERRED block: who asked for it
    uint8_t state;     // oomph_block_state_t
    uint8_t tier;      // oomph_tier_t; DEVICE for a HOLE
    uint8_t survived;  // ends of steps that it saw in use on host, at most 255
    bool recorded : 1; // `record` is valid
    bool shared : 1;   // other streams use it (record_stream)
    bool quick : 1;    // FREE, in a quick list: neither merged nor in the index
    bool buffer : 1;   // of oomph_buffer(): not the program's
    bool pinned : 1;   // its user wants it to stay on the device
    bool evicted : 1;  // its user wants it to stay on host
    bool idle_between_steps : 1; // in use, but by nothing between steps
                                 // (oomph_mark_idle)
    bool copied : 1; // in this step its user worked on copies of it (oomph_mark_copied)
    bool leaked : 1; // some of its pages could not be mapped again: nobody may have it
    bool moving : 1; // of a batch that is being moved (move.c)
    bool mixed_tier : 1; // in use, with some pages of another tier than its own
    bool guarded : 1; // in use, with pages that are unmapped once it is freed (guard.c)
    bool quarantined : 1; // a HOLE that nobody may use (guard.c, alias.c)
    bool workspace : 1;   // of a library, counted in its stream
};

// One page of a segment.
typedef struct oomph_page_entry {
    uint64_t handle;      // the physical page mapped here, or 0
    oomph_block_t *block; // contains the page's first byte; NULL: segment->origin
    uint64_t epoch;       // of the stream, when last freed under pressure (stream.h)
    uint8_t tier;         // oomph_tier_t of the page
    bool moving;          // it is about to be moved (move.c)
    bool cpu;             // the CPU may use the page
    bool captured;        // a host page that a block of a graph's pool lies, or lay, on
} oomph_page_entry_t;

// Pages of a segment, one after another.
typedef struct oomph_page_run {
    oomph_segment_t *segment;
    size_t first, count;
} oomph_page_run_t;

typedef enum oomph_segment_kind {
    OOMPH_SEGMENT_VIRTUAL, // reserved address space that pages are mapped into
    OOMPH_SEGMENT_PINNED,  // one page-locked host allocation
    OOMPH_SEGMENT_FOREIGN, // memory of a pool's own source
} oomph_segment_kind_t;

struct oomph_segment {
    oomph_heap_t *heap;
    oomph_segment_t *prev, *next; // in the heap
    oomph_addr_t base;
    size_t bytes;
    unsigned page_shift;
    oomph_segment_kind_t kind;
    size_t mapped_count;         // pages mapped
    oomph_page_entry_t *entries; // one per page; NULL unless VIRTUAL
    int *exported; // descriptor + 1 of each exported page; NULL: none ever was
    oomph_block_t *first;
    oomph_block_t *origin; // the block of every entry that names none
    uint64_t epoch;        // of adopted memory, as in an entry
    bool captured;         // the same
};

enum { OOMPH_BIN_WORDS = 33, OOMPH_BIN_MAX = OOMPH_BIN_WORDS * 64 }; // bits

enum {
    OOMPH_QUICK_SIZES = 129, // multiples of 512 with a quick list: up to 64 KiB
    OOMPH_QUICK_MAX = 512,   // blocks in the quick lists of a heap, at most
};

struct oomph_heap {
    void *owner; // the pool, for the caller
    oomph_slab_t *slab;
    oomph_counter_t *mapped_bytes;       // counts along, for the owner; NULL: nothing
    bool small;                          // blocks up to OOMPH_SMALL_MAX, in exact bins
    bool whole;                          // never split a free block
    oomph_segment_t *segments;           // any order
    oomph_block_t *holes;                // HOLEs, any order
    oomph_block_t *host;                 // FREE blocks on host pages, any order
    oomph_block_t **bins;                // FREE blocks on device pages, by size
    uint64_t used_bins[OOMPH_BIN_WORDS]; // a bit per bin that is not empty
    uint64_t used_words;                 // a bit per word above that is not 0
    oomph_block_t *quick[OOMPH_QUICK_SIZES]; // by size, newest first
    size_t quick_count;
};

// What holds of a block that was just handed out.
static inline void oomph_block_reset(oomph_block_t *block)
{
    block->survived = 0;
    block->recorded = block->shared = block->quick = block->buffer = false;
    block->pinned = block->evicted = block->idle_between_steps = block->copied = false;
    block->leaked = block->moving = block->mixed_tier = false;
    block->guarded = block->workspace = false;
}

// Cuts [addr, addr + bytes) out of a FREE block and makes it USED. Needs two records.
oomph_block_t *oomph_heap_take(oomph_block_t *block, oomph_addr_t addr, size_t bytes);
// The same for a split block: from a FREE block on device pages across its end into
// the next one, on host pages. It has two pages at least on either side, and begins
// with one. Needs five records.
oomph_block_t *oomph_heap_take_split(oomph_block_t *block, oomph_addr_t addr,
                                     size_t bytes);
// Makes a USED or DEFERRED block FREE. Gives the FREE block that contains it now.
oomph_block_t *oomph_heap_give(oomph_block_t *block);

// The same, but pushes a small block on device pages to the quick list of its size.
static inline void oomph_heap_quick_push(oomph_block_t *block)
{
    oomph_heap_t *heap = block->segment->heap;
    size_t units = block->bytes / OOMPH_ROUND_BYTES;

    if (!heap->small || units >= OOMPH_QUICK_SIZES ||
        heap->quick_count == OOMPH_QUICK_MAX || block->tier != OOMPH_TIER_DEVICE) {
        oomph_heap_give(block);
        return;
    }
    block->state = OOMPH_BLOCK_FREE;
    block->quick = true;
    block->links.after = heap->quick[units];
    heap->quick[units] = block;
    heap->quick_count++;
}

// A block of exactly this size from its quick list, USED again; or NULL.
static inline oomph_block_t *oomph_heap_quick_pop(oomph_heap_t *heap, size_t bytes)
{
    size_t units = bytes / OOMPH_ROUND_BYTES;
    if (units >= OOMPH_QUICK_SIZES || heap->quick[units] == NULL)
        return NULL;

    oomph_block_t *block = heap->quick[units];
    heap->quick[units] = block->links.after;
    heap->quick_count--;
    block->state = OOMPH_BLOCK_USED;
    oomph_block_reset(block);
    return block;
}

// Merges and indexes all blocks of the quick lists; true if there were any.
bool oomph_heap_consolidate(oomph_heap_t *heap);

// The pages [first, first + count), all of one HOLE, have been mapped: they become
// FREE. Needs two records.
void oomph_heap_fill(oomph_segment_t *segment, size_t first, size_t count,
                     oomph_tier_t tier);
// The pages [first, first + count), all within one FREE block, have been unmapped: they
// become a HOLE. Needs two records.
void oomph_heap_empty(oomph_segment_t *segment, size_t first, size_t count);

// Pages within one FREE block or one HOLE are not to be used for now: they become a
// quarantined HOLE, and a HOLE as any other once they are readmitted. Each needs two
// records.
void oomph_heap_set_aside(oomph_page_run_t run);
void oomph_heap_readmit(oomph_page_run_t run);
// A block in use, of whole pages, has lost them all: it becomes a quarantined HOLE.
void oomph_heap_quarantine(oomph_block_t *block);
// Makes a segment without pages one quarantined HOLE; gives the bytes that were not
// yet.
size_t oomph_heap_quarantine_all(oomph_segment_t *segment);

// The pages [first, first + count), all mapped, are of another tier now, and so is what
// of FREE blocks lies there. A block in use is of the tier of the pages that it has for
// itself, or of all its pages, if they are of one. Needs six records.
void oomph_heap_retier(oomph_segment_t *segment, size_t first, size_t count,
                       oomph_tier_t tier);

// Whether some pages of a block in use, of pages, are of another tier than the one that
// is its own: of a split block, the host.
bool oomph_block_is_mixed(const oomph_block_t *block, oomph_tier_t *own);
// Bytes of a block that count as on the host: all, none, or those of a split block from
// where it is. End pages that it shares do not matter.
size_t oomph_block_host_bytes(const oomph_block_t *block);

// The whole pages inside a FREE block: [*first, *first + count); gives the count.
size_t oomph_block_whole_pages(const oomph_block_t *block, size_t *first);

// The block that contains the first byte of a page.
static inline oomph_block_t *oomph_page_block(const oomph_segment_t *segment,
                                              size_t page)
{
    oomph_block_t *block = segment->entries[page].block;
    return block == NULL ? segment->origin : block;
}

// The block that contains `addr`, which must lie in the segment.
oomph_block_t *oomph_segment_block(const oomph_segment_t *segment, oomph_addr_t addr);

static inline size_t oomph_segment_page(const oomph_segment_t *segment,
                                        oomph_addr_t addr)
{
    return (size_t)((addr - segment->base) >> segment->page_shift);
}

static inline oomph_addr_t oomph_segment_addr(const oomph_segment_t *segment,
                                              size_t page)
{
    return segment->base + ((uint64_t)page << segment->page_shift);
}

static inline oomph_addr_t oomph_block_end(const oomph_block_t *block)
{
    return block->addr + block->bytes;
}

// The page of its last byte.
static inline size_t oomph_block_last_page(const oomph_block_t *block)
{
    return oomph_segment_page(block->segment, oomph_block_end(block) - 1);
}
