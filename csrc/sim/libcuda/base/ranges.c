#include "libcuda/base/ranges.h"

#include <stdlib.h>
#include <string.h>

static bool holds(const sim_range_t *range, uint64_t addr)
{
    return addr - range->base < range->bytes;
}

// The number of ranges that start at or below `addr`.
static size_t rank(const sim_ranges_t *ranges, uint64_t addr)
{
    size_t low = 0, high = ranges->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges->items[middle]->base <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

sim_range_t *sim_ranges_find(sim_ranges_t *ranges, uint64_t addr)
{
    if (ranges->last_found < ranges->count &&
        holds(ranges->items[ranges->last_found], addr))
        return ranges->items[ranges->last_found];
    size_t place = rank(ranges, addr);
    if (place == 0 || !holds(ranges->items[place - 1], addr))
        return NULL;
    ranges->last_found = place - 1;
    return ranges->items[place - 1];
}

bool sim_ranges_overlap(const sim_ranges_t *ranges, uint64_t addr, uint64_t bytes)
{
    size_t place = rank(ranges, addr);

    if (place > 0 && holds(ranges->items[place - 1], addr))
        return true;
    return place < ranges->count && ranges->items[place]->base - addr < bytes;
}

bool sim_ranges_add(sim_ranges_t *ranges, sim_range_t *range)
{
    if (ranges->count == ranges->capacity) {
        size_t capacity = ranges->capacity ? ranges->capacity * 2 : 64;
        sim_range_t **items = realloc(ranges->items, capacity * sizeof(sim_range_t *));
        if (items == NULL)
            return false;
        ranges->items = items;
        ranges->capacity = capacity;
    }
    size_t place = rank(ranges, range->base);
    memmove(ranges->items + place + 1, ranges->items + place,
            (ranges->count - place) * sizeof(sim_range_t *));
    ranges->items[place] = range;
    ranges->count++;
    return true;
}

void sim_ranges_remove(sim_ranges_t *ranges, const sim_range_t *range)
{
    size_t place = rank(ranges, range->base) - 1;

    ranges->count--;
    memmove(ranges->items + place, ranges->items + place + 1,
            (ranges->count - place) * sizeof(sim_range_t *));
}
