/* index.c - segregated lists: bins by size, with a bit for each bin that is not empty.
 *
 * A request takes from the first bin that can serve it, found by two counts of trailing
 * zeros. Small sizes have a bin each, so that any block of the bin is the best fit.
 * Sizes above 1 MiB share a bin with those of up to 3 % more: at most 32 of its blocks
 * are looked at for the best, so that the cost has a bound, and what is lost by it is a
 * few per cent of the block. A tree by size would find the very best in O(log n), with
 * a cache miss for each level.
 */
#include "core/heap/index.h"

enum {
    LARGE_STEPS = 32, // bins per doubling of the size
    SCAN_MAX = 32,    // blocks of a bin looked at, at most
    ROUND_SHIFT = 9,  // of OOMPH_ROUND_BYTES
};

unsigned oomph_index_bin(const oomph_heap_t *heap, size_t bytes)
{
    size_t units = bytes >> ROUND_SHIFT;

    if (heap->small)
        return (unsigned)oomph_min(units, OOMPH_SMALL_BINS - 1);
    unsigned log = 63 - (unsigned)__builtin_clzll(units);
    unsigned step = (unsigned)(units >> (log - 5)) & (LARGE_STEPS - 1);
    return (unsigned)oomph_min((log - 11) * LARGE_STEPS + step, OOMPH_LARGE_BINS - 1);
}

bool oomph_index_has(const oomph_heap_t *heap, const oomph_block_t *block)
{
    return heap->small || block->bytes > OOMPH_SMALL_MAX;
}

static void list_push(oomph_block_t **head, oomph_block_t *block)
{
    block->links.before = NULL;
    block->links.after = *head;
    if (*head != NULL)
        (*head)->links.before = block;
    *head = block;
}

static void list_drop(oomph_block_t **head, oomph_block_t *block)
{
    if (block->links.before != NULL)
        block->links.before->links.after = block->links.after;
    else
        *head = block->links.after;
    if (block->links.after != NULL)
        block->links.after->links.before = block->links.before;
}

static void bin_push(oomph_heap_t *heap, oomph_block_t *block)
{
    unsigned bin = oomph_index_bin(heap, block->bytes);

    list_push(&heap->bins[bin], block);
    heap->used_bins[bin / 64] |= 1ull << (bin % 64);
    heap->used_words |= 1ull << (bin / 64);
}

static void bin_drop(oomph_heap_t *heap, oomph_block_t *block)
{
    unsigned bin = oomph_index_bin(heap, block->bytes);

    list_drop(&heap->bins[bin], block);
    if (heap->bins[bin] != NULL)
        return;
    heap->used_bins[bin / 64] &= ~(1ull << (bin % 64));
    if (heap->used_bins[bin / 64] == 0)
        heap->used_words &= ~(1ull << (bin / 64));
}

// The first bin from `bin` on that is not empty, or OOMPH_BIN_MAX.
static unsigned bin_next(const oomph_heap_t *heap, unsigned bin)
{
    unsigned word = bin / 64;
    if (word >= OOMPH_BIN_WORDS)
        return OOMPH_BIN_MAX;

    uint64_t bits = heap->used_bins[word] & (~0ull << (bin % 64));
    if (bits == 0) {
        uint64_t words = heap->used_words & (~0ull << word) & ~(1ull << word);
        if (words == 0)
            return OOMPH_BIN_MAX;
        word = (unsigned)__builtin_ctzll(words);
        bits = heap->used_bins[word];
    }
    return word * 64 + (unsigned)__builtin_ctzll(bits);
}

void oomph_index_add(oomph_block_t *block)
{
    oomph_heap_t *heap = block->segment->heap;

    if (block->quarantined)
        return;
    if (block->state == OOMPH_BLOCK_HOLE)
        list_push(&heap->holes, block);
    else if (block->tier == OOMPH_TIER_HOST)
        list_push(&heap->host, block);
    else if (oomph_index_has(heap, block))
        bin_push(heap, block);
}

void oomph_index_drop(oomph_block_t *block)
{
    oomph_heap_t *heap = block->segment->heap;

    if (block->quarantined)
        return;
    if (block->state == OOMPH_BLOCK_HOLE)
        list_drop(&heap->holes, block);
    else if (block->tier == OOMPH_TIER_HOST)
        list_drop(&heap->host, block);
    else if (oomph_index_has(heap, block))
        bin_drop(heap, block);
}

// The smallest of the first blocks of a list that serves `bytes`, the lowest of equals.
static oomph_block_t *best_of(oomph_block_t *block, size_t bytes)
{
    oomph_block_t *best = NULL;

    for (int i = 0; block != NULL && i < SCAN_MAX; block = block->links.after, i++) {
        if (block->bytes == bytes)
            return block;
        if (block->bytes > bytes &&
            (best == NULL || block->bytes < best->bytes ||
             (block->bytes == best->bytes && block->addr < best->addr)))
            best = block;
    }
    return best;
}

oomph_block_t *oomph_heap_fit(const oomph_heap_t *heap, size_t bytes)
{
    unsigned bin = bin_next(heap, oomph_index_bin(heap, bytes));
    if (bin == OOMPH_BIN_MAX)
        return NULL;
    if (heap->small && bin < OOMPH_SMALL_BINS - 1)
        return heap->bins[bin]; // every block of the bin has the same size
    oomph_block_t *best = best_of(heap->bins[bin], bytes);
    if (best != NULL)
        return best;
    bin = bin_next(heap, bin + 1);
    return bin == OOMPH_BIN_MAX ? NULL : best_of(heap->bins[bin], bytes);
}

oomph_block_t *oomph_heap_fit_host(const oomph_heap_t *heap, size_t bytes)
{
    oomph_block_t *best = NULL;

    for (oomph_block_t *block = heap->host; block != NULL; block = block->links.after)
        if (block->bytes >= bytes && (best == NULL || block->bytes < best->bytes))
            best = block;
    return best;
}

oomph_block_t *oomph_index_walk(const oomph_heap_t *heap, size_t bytes, unsigned *bin,
                                const oomph_block_t *block)
{
    oomph_block_t *found = block == NULL ? NULL : block->links.after;
    unsigned next_bin = block == NULL ? oomph_index_bin(heap, bytes) : *bin + 1;

    for (;;) {
        while (found != NULL && found->bytes < bytes)
            found = found->links.after;
        if (found != NULL)
            return found;
        *bin = bin_next(heap, next_bin);
        if (*bin == OOMPH_BIN_MAX)
            return NULL;
        found = heap->bins[*bin];
        next_bin = *bin + 1;
    }
}
