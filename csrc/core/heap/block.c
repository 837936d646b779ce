/* block.c - boundary-tag bookkeeping: each block knows its neighbours, and merges with
 * those of its kind when it is freed, in constant time.
 *
 * The entry of each page names the block that contains the page's first byte, so that a
 * block is found from any address within it. To write these is what cutting a large
 * block costs; the smaller part gets the new record, so that few change. Blocks of up
 * to 64 KiB that come and go cost none of this: they stay whole, in quick lists.
 */
#include "core/heap/index.h"

/* ---- Cutting and merging */

// Writes `block` into the entries of the pages whose first byte lies in
// [addr, addr + bytes).
static void cover(oomph_block_t *block, oomph_addr_t addr, size_t bytes)
{
    oomph_segment_t *segment = block->segment;
    if (segment->entries == NULL)
        return;

    unsigned shift = segment->page_shift;
    size_t before_page = ((size_t)1 << shift) - 1;
    size_t begin = (size_t)(addr - segment->base) + before_page;
    size_t last = (begin + bytes) >> shift;
    for (size_t i = begin >> shift; i < last; i++)
        segment->entries[i].block = block;
}

static void link_before(oomph_block_t *block, oomph_block_t *next)
{
    block->prev = next->prev;
    block->next = next;
    if (next->prev != NULL)
        next->prev->next = block;
    else
        next->segment->first = block;
    next->prev = block;
}

static void link_after(oomph_block_t *block, oomph_block_t *prev)
{
    block->prev = prev;
    block->next = prev->next;
    if (prev->next != NULL)
        prev->next->prev = block;
    prev->next = block;
}

static void drop_record(oomph_block_t *block)
{
    oomph_segment_t *segment = block->segment;

    if (block->prev != NULL)
        block->prev->next = block->next;
    else
        segment->first = block->next;
    if (block->next != NULL)
        block->next->prev = block->prev;
    oomph_slab_give(segment->heap->slab, block);
}

// Cuts a block, which is in no index, at `addr`. Gives the right part and, through
// `left`, the left one. The smaller gets the new record, so that few entries change.
static oomph_block_t *split(oomph_block_t *block, oomph_addr_t addr,
                            oomph_block_t **left)
{
    size_t left_bytes = (size_t)(addr - block->addr);
    size_t right_bytes = block->bytes - left_bytes;
    oomph_block_t *part = oomph_slab_take(block->segment->heap->slab);

    oomph_assert(left_bytes > 0 && left_bytes < block->bytes);
    *part = *block;
    if (right_bytes <= left_bytes) {
        part->addr = addr;
        part->bytes = right_bytes;
        block->bytes = left_bytes;
        link_after(part, block);
        cover(part, addr, right_bytes);
        *left = block;
        return part;
    }
    part->bytes = left_bytes;
    block->addr = addr;
    block->bytes = right_bytes;
    link_before(part, block);
    cover(part, part->addr, left_bytes);
    *left = part;
    return block;
}

// Merges two neighbours, which are in no index, into the record of the larger.
static oomph_block_t *join(oomph_block_t *left, oomph_block_t *right)
{
    if (left->bytes >= right->bytes) {
        left->bytes += right->bytes;
        cover(left, right->addr, right->bytes);
        drop_record(right);
        return left;
    }
    right->addr = left->addr;
    right->bytes += left->bytes;
    cover(right, left->addr, left->bytes);
    drop_record(left);
    return right;
}

static bool mergeable(const oomph_block_t *neighbour, const oomph_block_t *block)
{
    return neighbour != NULL && neighbour->state == block->state &&
           neighbour->tier == block->tier && !neighbour->quick &&
           neighbour->quarantined == block->quarantined;
}

// Merges a FREE block or HOLE, which is in no index, with its neighbours; indexes it.
static oomph_block_t *consolidate(oomph_block_t *block)
{
    if (mergeable(block->prev, block)) {
        oomph_index_drop(block->prev);
        block = join(block->prev, block);
    }
    if (mergeable(block->next, block)) {
        oomph_index_drop(block->next);
        block = join(block, block->next);
    }
    oomph_index_add(block);
    return block;
}

// Takes a FREE block or HOLE out of its index and cuts [addr, addr + bytes) out of it.
// What is left on either side stays as it was.
static oomph_block_t *carve(oomph_block_t *block, oomph_addr_t addr, size_t bytes)
{
    oomph_block_t *rest;

    oomph_index_drop(block);
    if (addr > block->addr) {
        block = split(block, addr, &rest);
        oomph_index_add(rest);
    }
    if (bytes < block->bytes) {
        rest = split(block, addr + bytes, &block);
        oomph_index_add(rest);
    }
    return block;
}

oomph_block_t *oomph_heap_take(oomph_block_t *block, oomph_addr_t addr, size_t bytes)
{
    oomph_assert(block->state == OOMPH_BLOCK_FREE);
    block = carve(block, addr, bytes);
    block->state = OOMPH_BLOCK_USED;
    oomph_block_reset(block);
    return block;
}

/* ---- Blocks whose pages are of two tiers */

enum { PARTS = 4 }; // that such a block falls into at most: its ends, and two between

static void set_mixed(oomph_block_t *block, bool mixed)
{
    if (block->mixed_tier == mixed)
        return;
    if (mixed)
        block->segment->heap->slab->promised_count += PARTS - 1;
    else
        block->segment->heap->slab->promised_count -= PARTS - 1;
    block->mixed_tier = mixed;
}

// Cuts a block in use where its pages change their tier, and makes all parts FREE but
// the last, which it gives.
static oomph_block_t *give_first_parts(oomph_block_t *block)
{
    const oomph_segment_t *segment = block->segment;
    size_t last = oomph_block_last_page(block);
    size_t page = oomph_segment_page(segment, block->addr);
    oomph_block_t *part;

    set_mixed(block, false);
    block->tier = segment->entries[page].tier;
    for (; page < last; page++) {
        uint8_t tier = segment->entries[page + 1].tier;
        if (tier == block->tier)
            continue;
        block = split(block, oomph_segment_addr(segment, page + 1), &part);
        block->tier = tier;
        part->state = OOMPH_BLOCK_FREE;
        consolidate(part);
    }
    return block;
}

// The first page on the host of a split block, its ends aside; 0: it is not split.
static size_t split_page(const oomph_block_t *block)
{
    const oomph_page_entry_t *entries = block->segment->entries;
    size_t first = oomph_segment_page(block->segment, block->addr);
    size_t last = oomph_block_last_page(block);

    if (last - first < 3 || entries[first + 1].tier == entries[last - 1].tier)
        return 0;
    size_t on_device = first + 1, on_host = last - 1;
    while (on_host - on_device > 1) {
        size_t middle = on_device + (on_host - on_device) / 2;
        if (entries[middle].tier == OOMPH_TIER_HOST)
            on_host = middle;
        else
            on_device = middle;
    }
    return on_host;
}

bool oomph_block_is_mixed(const oomph_block_t *block, oomph_tier_t *own)
{
    const oomph_page_entry_t *entries = block->segment->entries;
    size_t first = oomph_segment_page(block->segment, block->addr);
    size_t last = oomph_block_last_page(block);

    if (last - first >= 2)
        *own = (oomph_tier_t)entries[last - 1].tier;
    else if (entries[first].tier == entries[last].tier)
        *own = (oomph_tier_t)entries[first].tier;
    else
        *own = (oomph_tier_t)block->tier;
    return entries[first].tier != *own || entries[last].tier != *own ||
           split_page(block) != 0;
}

size_t oomph_block_host_bytes(const oomph_block_t *block)
{
    if (block->tier != OOMPH_TIER_HOST)
        return 0;
    size_t page = block->mixed_tier ? split_page(block) : 0;
    return page == 0
               ? block->bytes
               : oomph_block_end(block) - oomph_segment_addr(block->segment, page);
}

oomph_block_t *oomph_heap_take_split(oomph_block_t *block, oomph_addr_t addr,
                                     size_t bytes)
{
    oomph_block_t *right = block->next;

    oomph_assert(block->state == OOMPH_BLOCK_FREE && block->tier == OOMPH_TIER_DEVICE &&
                 right->state == OOMPH_BLOCK_FREE && right->tier == OOMPH_TIER_HOST);
    block = carve(block, addr, oomph_block_end(block) - addr);
    right = carve(right, right->addr, addr + bytes - right->addr);
    block = join(block, right);
    block->tier = OOMPH_TIER_HOST;
    block->state = OOMPH_BLOCK_USED;
    oomph_block_reset(block);
    set_mixed(block, true);
    return block;
}

oomph_block_t *oomph_heap_give(oomph_block_t *block)
{
    oomph_assert(block->state == OOMPH_BLOCK_USED ||
                 block->state == OOMPH_BLOCK_DEFERRED);
    if (block->mixed_tier)
        block = give_first_parts(block);
    block->state = OOMPH_BLOCK_FREE;
    return consolidate(block);
}

bool oomph_heap_consolidate(oomph_heap_t *heap)
{
    if (heap->quick_count == 0)
        return false;
    for (size_t units = 0; units < OOMPH_QUICK_SIZES; units++)
        while (heap->quick[units] != NULL) {
            oomph_block_t *block = heap->quick[units];
            heap->quick[units] = block->links.after;
            block->quick = false;
            consolidate(block);
        }
    heap->quick_count = 0;
    return true;
}

static void set_tier(const oomph_segment_t *segment, size_t first, size_t count,
                     oomph_tier_t tier)
{
    for (size_t i = first; i < first + count; i++)
        segment->entries[i].tier = (uint8_t)tier;
}

// Pages within one FREE block or one HOLE, as a block that is in no index.
static oomph_block_t *cut(const oomph_segment_t *segment, size_t first, size_t count)
{
    return carve(oomph_page_block(segment, first), oomph_segment_addr(segment, first),
                 count << segment->page_shift);
}

void oomph_heap_fill(oomph_segment_t *segment, size_t first, size_t count,
                     oomph_tier_t tier)
{
    oomph_assert(oomph_page_block(segment, first)->state == OOMPH_BLOCK_HOLE);
    set_tier(segment, first, count, tier);
    oomph_block_t *block = cut(segment, first, count);
    block->state = OOMPH_BLOCK_FREE;
    block->tier = (uint8_t)tier;
    consolidate(block);
}

static oomph_block_t *make_hole(oomph_block_t *block, bool quarantined)
{
    block->state = OOMPH_BLOCK_HOLE;
    block->tier = OOMPH_TIER_DEVICE;
    block->quarantined = quarantined;
    return consolidate(block);
}

void oomph_heap_empty(oomph_segment_t *segment, size_t first, size_t count)
{
    oomph_assert(oomph_page_block(segment, first)->state == OOMPH_BLOCK_FREE);
    make_hole(cut(segment, first, count), false);
}

void oomph_heap_set_aside(oomph_page_run_t run)
{
    make_hole(cut(run.segment, run.first, run.count), true);
}

void oomph_heap_readmit(oomph_page_run_t run)
{
    oomph_assert(oomph_page_block(run.segment, run.first)->quarantined);
    make_hole(cut(run.segment, run.first, run.count), false);
}

void oomph_heap_quarantine(oomph_block_t *block)
{
    oomph_assert(block->state != OOMPH_BLOCK_FREE && block->state != OOMPH_BLOCK_HOLE);
    set_mixed(block, false);
    make_hole(block, true);
}

size_t oomph_heap_quarantine_all(oomph_segment_t *segment)
{
    size_t bytes = 0;

    for (oomph_block_t *block = segment->first; block != NULL; block = block->next) {
        oomph_assert(block->state == OOMPH_BLOCK_HOLE);
        if (block->quarantined)
            continue;
        oomph_index_drop(block);
        bytes += block->bytes;
        block = make_hole(block, true);
    }
    return bytes;
}

void oomph_heap_retier(oomph_segment_t *segment, size_t first, size_t count,
                       oomph_tier_t tier)
{
    oomph_addr_t begin = oomph_segment_addr(segment, first);
    oomph_addr_t end = oomph_segment_addr(segment, first + count);
    oomph_block_t *block = oomph_page_block(segment, first);

    set_tier(segment, first, count, tier);
    for (; block != NULL && block->addr < end; block = block->next) {
        if (block->state != OOMPH_BLOCK_FREE) {
            oomph_tier_t own;
            set_mixed(block, oomph_block_is_mixed(block, &own));
            block->tier = (uint8_t)own;
            continue;
        }
        oomph_addr_t from = oomph_max(block->addr, begin);
        block = carve(block, from, oomph_min(oomph_block_end(block), end) - from);
        block->tier = (uint8_t)tier;
        block = consolidate(block);
    }
}

/* ---- Blocks and pages */

oomph_block_t *oomph_segment_block(const oomph_segment_t *segment, oomph_addr_t addr)
{
    oomph_block_t *block = segment->first;

    if (segment->entries != NULL)
        block = oomph_page_block(segment, oomph_segment_page(segment, addr));
    while (oomph_block_end(block) <= addr)
        block = block->next;
    return block;
}

size_t oomph_block_whole_pages(const oomph_block_t *block, size_t *first)
{
    const oomph_segment_t *segment = block->segment;
    size_t before_page = ((size_t)1 << segment->page_shift) - 1;
    size_t begin = oomph_segment_page(segment, block->addr + before_page);
    size_t end = oomph_segment_page(segment, oomph_block_end(block));

    *first = begin;
    return end > begin ? end - begin : 0;
}
