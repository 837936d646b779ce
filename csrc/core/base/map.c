#include "core/base/map.h"

#include <stdlib.h>
#include <string.h>

enum { CAPACITY_FIRST = 256 };

static void put(oomph_map_t *map, oomph_map_entry_t entry)
{
    size_t i = oomph_map_home(map, entry.key);

    while (map->entries[i].key != 0)
        i = (i + 1) & (map->capacity - 1);
    map->entries[i] = entry;
}

static bool grow(oomph_map_t *map)
{
    oomph_map_t grown = {.capacity =
                             map->capacity == 0 ? CAPACITY_FIRST : map->capacity * 2,
                         .count = map->count};

    grown.entries = calloc(grown.capacity, sizeof grown.entries[0]);
    if (grown.entries == NULL)
        return false;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->entries[i].key != 0)
            put(&grown, map->entries[i]);
    free(map->entries);
    *map = grown;
    return true;
}

bool oomph_map_add(oomph_map_t *map, uint64_t key, uint32_t value)
{
    if (map->count >= map->capacity / 2 && !grow(map))
        return false;
    put(map, (oomph_map_entry_t){key, value});
    map->count++;
    return true;
}

void oomph_map_drop(oomph_map_t *map, uint64_t key)
{
    if (map->capacity == 0)
        return;
    size_t mask = map->capacity - 1, hole = oomph_map_home(map, key);
    while (map->entries[hole].key != key) {
        if (map->entries[hole].key == 0)
            return;
        hole = (hole + 1) & mask;
    }
    // Close the gap: move up each entry that it would cut off from its home.
    for (size_t i = (hole + 1) & mask; map->entries[i].key != 0; i = (i + 1) & mask) {
        size_t distance = (i - oomph_map_home(map, map->entries[i].key)) & mask;
        if (distance < ((i - hole) & mask))
            continue;
        map->entries[hole] = map->entries[i];
        hole = i;
    }
    map->entries[hole].key = 0;
    map->count--;
}

void oomph_map_clear(oomph_map_t *map)
{
    if (map->capacity != 0)
        memset(map->entries, 0, map->capacity * sizeof map->entries[0]);
    map->count = 0;
}

void oomph_map_destroy(oomph_map_t *map)
{
    free(map->entries);
    *map = (oomph_map_t){0};
}
