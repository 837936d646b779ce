/* map.h - numbers by number. Pure; the caller guards it. */
#pragma once
#include "core/base/util.h"

typedef struct oomph_map_entry {
    uint64_t key; // 0: empty
    uint64_t value;
} oomph_map_entry_t;

typedef struct oomph_map {
    oomph_map_entry_t *entries;
    size_t capacity; // a power of two, or 0; at most half of it is used
    size_t count;
    unsigned shift; // 64 - log2(capacity)
} oomph_map_t;

// Where a key belongs: the upper bits of the product spread keys that differ little.
static inline size_t oomph_map_home(const oomph_map_t *map, uint64_t key)
{
    return (size_t)((key * 0x9E3779B97F4A7C15u) >> map->shift);
}

// The entry that is tried after another.
static inline size_t oomph_map_next(const oomph_map_t *map, size_t i)
{
    return (i + 1) & (map->capacity - 1);
}

// What was put under the key, which is not 0; `missing` if nothing was.
static inline uint64_t oomph_map_get(const oomph_map_t *map, uint64_t key,
                                     uint64_t missing)
{
    if (map->capacity == 0)
        return missing;
    size_t i = oomph_map_home(map, key);
    while (map->entries[i].key != key) {
        if (map->entries[i].key == 0)
            return missing;
        i = oomph_map_next(map, i);
    }
    return map->entries[i].value;
}

// Puts a key that is not there yet. Room was reserved for it.
static inline void oomph_map_put(oomph_map_t *map, uint64_t key, uint64_t value)
{
    size_t i = oomph_map_home(map, key);

    while (map->entries[i].key != 0)
        i = oomph_map_next(map, i);
    map->entries[i] = (oomph_map_entry_t){key, value};
    map->count++;
}

bool oomph_map_grow(oomph_map_t *map);
// Makes room for one key more. False if there is no host memory.
static inline bool oomph_map_reserve(oomph_map_t *map)
{
    return map->count < map->capacity / 2 || oomph_map_grow(map);
}
// The key must not be there yet. False if there is no host memory.
bool oomph_map_add(oomph_map_t *map, uint64_t key, uint64_t value);
// Takes the key out; gives what was under it, or `missing`.
uint64_t oomph_map_take(oomph_map_t *map, uint64_t key, uint64_t missing);
// Takes all keys out; keeps the memory.
void oomph_map_clear(oomph_map_t *map);
