/* pack.c - first fit, in the order of size and in that of lifetime, then improved.
 *
 * Packing is NP-hard. First fit by decreasing size comes close to the bound where
 * lifetimes nest, as in training; the bound is what is alive at once at most. What ends
 * above it was placed too late: it goes first the next time, up to 64 times for either
 * order. A round compares each item with those below it, O(n^2) at most, so there are
 * fewer rounds where there are many items. It happens once for each period found.
 */
#include "core/layout/pack.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS_MAX = 64,     // attempts to lower a layout,
    PAIRS_MAX = 1 << 25, // and pairs of blocks compared at most meanwhile
};

// Lifetimes on the circle of one period: each begins within the other, or neither.
static bool overlap(const oomph_item_t *a, const oomph_item_t *b, uint32_t period)
{
    uint32_t after =
        b->birth >= a->birth ? b->birth - a->birth : b->birth + period - a->birth;

    return after < a->life || (after != 0 && period - after < b->life);
}

static int larger_first(const void *left, const void *right)
{
    const oomph_item_t *a = left, *b = right;

    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    if (a->life != b->life)
        return a->life > b->life ? -1 : 1;
    return a->birth < b->birth ? -1 : 1;
}

static int longer_first(const void *left, const void *right)
{
    const oomph_item_t *a = left, *b = right;

    if (a->life != b->life)
        return a->life > b->life ? -1 : 1;
    return larger_first(left, right);
}

// Puts each item, in the order given, into the lowest gap between those that live at
// the same time. `by_offset` has room for all. Gives the address space needed.
static size_t place_items(oomph_item_t *items, size_t count, uint32_t period,
                          oomph_item_t **by_offset)
{
    size_t height = 0;

    for (size_t i = 0; i < count; i++) {
        oomph_item_t *item = &items[i];
        size_t offset = 0, at = 0;
        for (size_t k = 0; k < i; k++) {
            const oomph_item_t *other = by_offset[k];
            if (other->offset >= offset + item->bytes)
                break;
            size_t end = other->offset + other->bytes;
            if (end > offset && overlap(item, other, period))
                offset = end;
        }
        item->offset = offset;
        while (at < i && by_offset[at]->offset <= offset)
            at++;
        memmove(&by_offset[at + 1], &by_offset[at], (i - at) * sizeof(oomph_item_t *));
        by_offset[at] = item;
        height = oomph_max(height, offset + item->bytes);
    }
    return height;
}

// The most that is alive at once: no layout is lower.
static size_t most_alive(const oomph_item_t *items, size_t count, uint32_t period)
{
    size_t *change = calloc(period + 1u, sizeof *change), alive = 0, most = 0;

    for (size_t i = 0; i < count && change != NULL; i++) {
        uint32_t end = items[i].birth + items[i].life;
        change[items[i].birth] += items[i].bytes;
        change[end <= period ? end : end - period] -= items[i].bytes;
        alive += end > period ? items[i].bytes : 0; // from the period before
    }
    for (uint32_t at = 0; at < period && change != NULL; at++) {
        alive += change[at]; // wraps where it shrinks
        most = oomph_max(most, alive);
    }
    free(change);
    return most;
}

// Puts the items that reach above `bytes` first, so that others make room for them.
static void raise_items(oomph_item_t *items, size_t count, size_t bytes,
                        oomph_item_t *rest)
{
    size_t raised = 0, kept = 0;

    for (size_t i = 0; i < count; i++) {
        if (items[i].offset + items[i].bytes > bytes)
            items[raised++] = items[i];
        else
            rest[kept++] = items[i];
    }
    memcpy(items + raised, rest, kept * sizeof *rest);
}

typedef struct packing {
    oomph_item_t *items, *trial, *rest;
    oomph_item_t **by_offset;
    size_t count, height; // of the best layout so far, in `items`
    uint32_t period;
} packing_t;

static void try_order(packing_t *packing)
{
    size_t height = place_items(packing->trial, packing->count, packing->period,
                                packing->by_offset);
    if (height >= packing->height)
        return;
    packing->height = height;
    memcpy(packing->items, packing->trial, packing->count * sizeof(oomph_item_t));
}

static void try_orders(packing_t *packing)
{
    static int (*const orders[])(const void *, const void *) = {larger_first,
                                                                longer_first};
    size_t count = packing->count, bytes = count * sizeof(oomph_item_t);
    size_t least = most_alive(packing->items, count, packing->period);
    size_t rounds = oomph_min(ROUNDS_MAX, PAIRS_MAX / (count * count));

    memcpy(packing->trial, packing->items, bytes);
    for (int i = 0; i < 2; i++) {
        qsort(packing->trial, count, sizeof(oomph_item_t), orders[i]);
        try_order(packing);
        for (size_t k = 0; k < rounds && packing->height > least; k++) {
            raise_items(packing->trial, count, least, packing->rest);
            try_order(packing);
        }
    }
}

size_t oomph_pack(oomph_item_t *items, size_t count, uint32_t period)
{
    packing_t packing = {items,
                         malloc(count * sizeof(oomph_item_t)),
                         malloc(count * sizeof(oomph_item_t)),
                         malloc(count * sizeof(oomph_item_t *)),
                         count,
                         SIZE_MAX,
                         period};

    if (packing.trial != NULL && packing.rest != NULL && packing.by_offset != NULL)
        try_orders(&packing);
    free(packing.trial);
    free(packing.rest);
    free(packing.by_offset);
    return packing.height;
}
