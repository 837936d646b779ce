/* check.c - whether the records of a device agree with each other (oomph/block.h).
 *
 * Everything is walked once, segment by segment: each block against its neighbours and
 * the entries of its pages. What was counted on the way is then compared with what the
 * index, the table and the statistics say. It stops at the first contradiction, which
 * it names. It costs all blocks and pages, under the lock: it is for tests.
 */
#include "core/alloc/free.h"
#include "core/heap/index.h"

static bool is_indexed(const oomph_block_t *block)
{
    return block->state == OOMPH_BLOCK_FREE || block->state == OOMPH_BLOCK_HOLE;
}

static oomph_status_t wrong(const oomph_block_t *block, const char *what)
{
    return oomph_fail(OOMPH_ERR_INVALID, "block 0x%llx of %zu bytes: %s",
                      (unsigned long long)block->addr, block->bytes, what);
}

/* ---- Blocks and pages of a segment */

static oomph_status_t check_tiers(const oomph_segment_t *segment,
                                  const oomph_block_t *block)
{
    size_t first = oomph_segment_page(segment, block->addr);
    size_t last = oomph_block_last_page(block);
    oomph_tier_t own;

    if (block->state == OOMPH_BLOCK_HOLE || block->leaked)
        return OOMPH_OK;
    if (oomph_block_is_mixed(block, &own) != block->mixed_tier || own != block->tier)
        return wrong(block, "of another tier than its pages");
    if (block->mixed_tier && is_indexed(block))
        return wrong(block, "free, and of two tiers");
    // Between its ends: of a split block those on the device come first.
    size_t on_host = oomph_block_host_bytes(block);
    oomph_addr_t begin = block->tier == OOMPH_TIER_HOST
                             ? oomph_block_end(block) - on_host
                             : oomph_block_end(block);
    for (size_t i = first + 1; i < last; i++)
        if ((segment->entries[i].tier == OOMPH_TIER_HOST) !=
            (oomph_segment_addr(segment, i + 1) > begin))
            return wrong(block,
                         "not of one tier between its ends, or not of two in turn");
    return OOMPH_OK;
}

static oomph_status_t check_entries(const oomph_segment_t *segment,
                                    const oomph_block_t *block)
{
    uint64_t page_mask = (1ull << segment->page_shift) - 1;
    size_t last = oomph_block_last_page(block);

    if (block->state == OOMPH_BLOCK_HOLE &&
        ((block->addr | block->bytes) & page_mask) != 0)
        return wrong(block, "a hole that is not of whole pages");
    for (size_t i = oomph_segment_page(segment, block->addr); i <= last; i++) {
        if ((segment->entries[i].handle == 0) != (block->state == OOMPH_BLOCK_HOLE))
            return wrong(block, "mapped where it is a hole, or not where it is none");
        if (oomph_segment_addr(segment, i) >= block->addr &&
            oomph_page_block(segment, i) != block)
            return wrong(block, "a page entry names another block");
        if (segment->entries[i].moving)
            return wrong(block, "a page entry is left in a batch that moves");
    }
    return check_tiers(segment, block);
}

static oomph_status_t check_block(const oomph_segment_t *segment,
                                  const oomph_block_t *block, oomph_addr_t expected)
{
    const oomph_block_t *next = block->next;

    if (block->addr != expected || block->bytes == 0)
        return wrong(block, "a gap or an overlap");
    if (block->segment != segment)
        return wrong(block, "names another segment");
    if (next != NULL && next->prev != block)
        return wrong(block, "the list of neighbours is broken");
    if (next != NULL && is_indexed(block) && next->state == block->state &&
        next->tier == block->tier && !block->quick && !next->quick &&
        next->quarantined == block->quarantined)
        return wrong(block, "not merged with its neighbour");
    if (block->quarantined && block->state != OOMPH_BLOCK_HOLE)
        return wrong(block, "in use or free where nothing may be again");
    if (block->moving)
        return wrong(block, "left in a batch that moves");
    return segment->entries == NULL ? OOMPH_OK : check_entries(segment, block);
}

// What the walk over all blocks found.
typedef struct found {
    size_t binned, holes, host, quick; // of one heap
    size_t used, deferred;             // of the device, as all below
    int64_t used_bytes, deferred_bytes, on_host_bytes, active_on_host_bytes;
    size_t mapped_count[OOMPH_TIERS];
    int64_t mapped_bytes, buffer_bytes;
} found_t;

static void count_block(const oomph_heap_t *heap, const oomph_block_t *block,
                        found_t *found)
{
    bool free_block = block->state == OOMPH_BLOCK_FREE && !block->quick;
    bool leaked = block->state == OOMPH_BLOCK_USED && block->use.requested_bytes == 0;

    if (block->tier == OOMPH_TIER_HOST && !leaked && !block->buffer &&
        block->state != OOMPH_BLOCK_FREE) {
        int64_t host_bytes = (int64_t)oomph_block_host_bytes(block);
        found->active_on_host_bytes += host_bytes;
        if (block->state == OOMPH_BLOCK_USED)
            found->on_host_bytes += host_bytes;
    }
    found->holes += block->state == OOMPH_BLOCK_HOLE && !block->quarantined;
    found->quick += block->quick;
    found->host += free_block && block->tier == OOMPH_TIER_HOST;
    found->binned +=
        free_block && block->tier == OOMPH_TIER_DEVICE && oomph_index_has(heap, block);
    if (block->state == OOMPH_BLOCK_USED && !leaked) {
        found->used++;
        *(block->buffer ? &found->buffer_bytes : &found->used_bytes) +=
            (int64_t)block->bytes;
    }
    if (block->state == OOMPH_BLOCK_DEFERRED) {
        found->deferred++;
        if (!block->buffer)
            found->deferred_bytes += (int64_t)block->bytes;
    }
}

static oomph_status_t check_segment(const oomph_segment_t *segment, found_t *found)
{
    oomph_addr_t expected = segment->base;
    size_t mapped_count = 0;

    oomph_assert(segment->first != NULL);
    for (const oomph_block_t *b = segment->first; b != NULL; b = b->next) {
        oomph_status_t status = check_block(segment, b, expected);
        if (status != OOMPH_OK)
            return status;
        count_block(segment->heap, b, found);
        expected = oomph_block_end(b);
    }
    if (expected != segment->base + segment->bytes)
        return wrong(segment->first, "its segment is not covered to the end");
    if (segment->entries == NULL) {
        found->mapped_bytes += (int64_t)segment->bytes;
        return OOMPH_OK;
    }
    for (size_t i = 0; i < segment->bytes >> segment->page_shift; i++) {
        if (segment->entries[i].handle != 0) {
            mapped_count++;
            found->mapped_count[segment->entries[i].tier]++;
        } else if (oomph_segment_descriptor(segment, i) >= 0) {
            return wrong(segment->first, "a page of its segment is exported, but gone");
        }
    }
    found->mapped_bytes += (int64_t)(mapped_count << segment->page_shift);
    if (mapped_count != segment->mapped_count)
        return wrong(segment->first, "its segment counts its mapped pages wrongly");
    return OOMPH_OK;
}

/* ---- The index of a heap */

static size_t length_of(const oomph_block_t *block)
{
    size_t length = 0;

    for (; block != NULL; block = block->links.after)
        length++;
    return length;
}

static oomph_status_t check_bins(const oomph_heap_t *heap, size_t binned)
{
    unsigned bin_count = heap->small ? OOMPH_SMALL_BINS : OOMPH_LARGE_BINS;
    size_t length = 0;

    for (unsigned bin = 0; bin < bin_count; bin++) {
        bool used = heap->used_bins[bin / 64] >> (bin % 64) & 1;
        if (used != (heap->bins[bin] != NULL))
            return oomph_fail(OOMPH_ERR_INVALID, "bin %u has the wrong mark", bin);
        for (const oomph_block_t *b = heap->bins[bin]; b != NULL; b = b->links.after) {
            if (b->state != OOMPH_BLOCK_FREE || oomph_index_bin(heap, b->bytes) != bin)
                return wrong(b, "in the wrong bin");
            length++;
        }
    }
    for (unsigned word = 0; word < OOMPH_BIN_WORDS; word++)
        if ((heap->used_words >> word & 1) != (heap->used_bins[word] != 0))
            return oomph_fail(OOMPH_ERR_INVALID, "word %u has the wrong mark", word);
    if (length != binned)
        return oomph_fail(OOMPH_ERR_INVALID, "%zu blocks in bins, %zu expected", length,
                          binned);
    return OOMPH_OK;
}

static oomph_status_t check_heap(const oomph_heap_t *heap, found_t *found)
{
    found->binned = found->holes = found->host = found->quick = 0;
    for (const oomph_segment_t *s = heap->segments; s != NULL; s = s->next) {
        oomph_status_t status = check_segment(s, found);
        if (status != OOMPH_OK)
            return status;
        if (s->heap != heap)
            return wrong(s->first, "its segment names another heap");
    }
    if (length_of(heap->holes) != found->holes || length_of(heap->host) != found->host)
        return oomph_fail(OOMPH_ERR_INVALID,
                          "the list of holes or host blocks is wrong");
    if (found->quick != heap->quick_count)
        return oomph_fail(OOMPH_ERR_INVALID, "%zu blocks in quick lists, %zu known",
                          found->quick, heap->quick_count);
    return check_bins(heap, found->binned);
}

/* ---- The device */

static oomph_status_t check_table(const oomph_device_t *device)
{
    const oomph_map_t *table = &device->table;

    for (size_t i = 0; i < table->capacity; i++) {
        oomph_addr_t addr = table->entries[i].key;
        const oomph_block_t *block =
            (const oomph_block_t *)(uintptr_t)table->entries[i].value;
        if (addr == 0)
            continue;
        if (block->addr != addr || block->state != OOMPH_BLOCK_USED)
            return wrong(block, "in the table of blocks in use, but is not");
        if (oomph_table_find(table, addr) != block)
            return wrong(block, "not found in the table of blocks in use");
    }
    return OOMPH_OK;
}

static oomph_status_t differ(const char *what, int64_t found, int64_t known)
{
    return oomph_fail(OOMPH_ERR_INVALID, "%s: %lld found, %lld known", what,
                      (long long)found, (long long)known);
}

static oomph_status_t check_totals(const oomph_device_t *device, const found_t *found)
{
    const oomph_counters_t *counters = &device->counters;
    int64_t allocated = oomph_counter_current(&counters->allocated_bytes);
    int64_t active = oomph_counter_current(&counters->active_bytes);
    int64_t mapped = oomph_counter_current(&device->pages.mapped_bytes);

    if (found->used != device->table.count)
        return differ("blocks in use", (int64_t)found->used,
                      (int64_t)device->table.count);
    if (found->deferred != device->deferred.count)
        return differ("deferred blocks", (int64_t)found->deferred,
                      (int64_t)device->deferred.count);
    if (found->used_bytes != allocated)
        return differ("allocated bytes", found->used_bytes, allocated);
    if (found->used_bytes + found->deferred_bytes != active)
        return differ("active bytes", found->used_bytes + found->deferred_bytes,
                      active);
    if (found->on_host_bytes != device->allocated_usage.host)
        return differ("bytes in use on host", found->on_host_bytes,
                      device->allocated_usage.host);
    if (found->active_on_host_bytes != device->active_usage.host)
        return differ("active bytes on host", found->active_on_host_bytes,
                      device->active_usage.host);
    if (found->buffer_bytes != device->stats.buffer_bytes)
        return differ("bytes of buffers", found->buffer_bytes,
                      device->stats.buffer_bytes);
    if (found->mapped_bytes != mapped)
        return differ("mapped bytes", found->mapped_bytes, mapped);
    for (int tier = 0; tier < OOMPH_TIERS; tier++) {
        const oomph_page_stack_t *stack = &device->pages.tiers[tier];
        size_t held =
            found->mapped_count[tier] + stack->spare_count + stack->retired_count;
        if (held != stack->count)
            return differ("pages", (int64_t)held, (int64_t)stack->count);
    }
    return OOMPH_OK;
}

// What graphs and MemPools have reserved is what their pools hold.
static oomph_status_t check_groups(const oomph_device_t *device)
{
    for (const oomph_group_t *g = device->groups; g != NULL; g = g->next) {
        int64_t mapped = 0, known = oomph_counter_current(&g->mapped_bytes);

        for (const oomph_pool_t *pool = device->pools; pool != NULL; pool = pool->next)
            for (const oomph_segment_t *s = pool->heap.segments;
                 s != NULL && pool->group == g; s = s->next)
                mapped +=
                    (int64_t)(s->entries == NULL ? s->bytes
                                                 : s->mapped_count << s->page_shift);
        if (mapped != known)
            return differ("mapped bytes of a pool", mapped, known);
    }
    return OOMPH_OK;
}

static oomph_status_t check_device(const oomph_device_t *device)
{
    found_t found = {0};
    oomph_status_t status = OOMPH_OK;

    for (const oomph_pool_t *pool = device->pools; pool != NULL && status == OOMPH_OK;
         pool = pool->next) {
        status = check_heap(&pool->heap, &found);
        if (status == OOMPH_OK && !pool->small)
            status = check_heap(&pool->arena, &found);
    }
    if (status == OOMPH_OK)
        status = check_table(device);
    if (status == OOMPH_OK)
        status = check_groups(device);
    return status == OOMPH_OK ? check_totals(device, &found) : status;
}

oomph_status_t oomph_check(int ordinal)
{
    oomph_device_t *device = oomph_enter_open(ordinal);

    if (device == NULL)
        return OOMPH_OK;
    oomph_status_t status = check_device(device);
    oomph_unlock(device);
    return status;
}
