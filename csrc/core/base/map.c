/* map.c - open addressing with linear probing, at most half full.
 *
 * An entry is two words, so that a lookup is one cache line in most cases. Taking a key
 * out moves the entries behind it back: no tombstones gather, however often keys come
 * and go.
 */
#include "core/base/map.h"

#include <string.h>

enum { CAPACITY_FIRST = 256 };

bool oomph_map_grow(oomph_map_t *map)
{
    size_t capacity = map->capacity == 0 ? CAPACITY_FIRST : map->capacity * 2;
    oomph_map_t grown = {oomph_map(capacity * sizeof grown.entries[0]), capacity, 0,
                         64 - (unsigned)__builtin_ctzll(capacity)};

    if (grown.entries == NULL)
        return false;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->entries[i].key != 0)
            oomph_map_put(&grown, map->entries[i].key, map->entries[i].value);
    oomph_unmap(map->entries, map->capacity * sizeof map->entries[0]);
    *map = grown;
    return true;
}

bool oomph_map_add(oomph_map_t *map, uint64_t key, uint64_t value)
{
    if (!oomph_map_reserve(map))
        return false;
    oomph_map_put(map, key, value);
    return true;
}

uint64_t oomph_map_take(oomph_map_t *map, uint64_t key, uint64_t missing)
{
    if (map->capacity == 0)
        return missing;
    size_t hole = oomph_map_home(map, key);
    while (map->entries[hole].key != key) {
        if (map->entries[hole].key == 0)
            return missing;
        hole = oomph_map_next(map, hole);
    }
    uint64_t value = map->entries[hole].value;
    // Close the gap: move up each entry that it would cut off from its home.
    for (size_t i = oomph_map_next(map, hole); map->entries[i].key != 0;
         i = oomph_map_next(map, i)) {
        size_t distance =
            (i - oomph_map_home(map, map->entries[i].key)) & (map->capacity - 1);
        if (distance < ((i - hole) & (map->capacity - 1)))
            continue;
        map->entries[hole] = map->entries[i];
        hole = i;
    }
    map->entries[hole].key = 0;
    map->count--;
    return value;
}

void oomph_map_clear(oomph_map_t *map)
{
    if (map->capacity != 0)
        memset(map->entries, 0, map->capacity * sizeof map->entries[0]);
    map->count = 0;
}
