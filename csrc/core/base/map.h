/* map.h - small numbers by number. Pure; the caller guards it. */
#pragma once
#include "core/base/util.h"

typedef struct oomph_map_entry {
    uint64_t key; // 0: empty
    uint32_t value;
} oomph_map_entry_t;

typedef struct oomph_map {
    oomph_map_entry_t *entries;
    size_t capacity; // a power of two, or 0; at most half of it is used
    size_t count;
} oomph_map_t;

static inline size_t oomph_map_home(const oomph_map_t *map, uint64_t key)
{
    return (size_t)((key * 0x9E3779B97F4A7C15u) >> 32) & (map->capacity - 1);
}

// What was put under the key, which is not 0; `missing` if nothing was.
static inline uint32_t oomph_map_get(const oomph_map_t *map, uint64_t key,
                                     uint32_t missing)
{
    if (map->capacity == 0)
        return missing;
    size_t i = oomph_map_home(map, key);
    while (map->entries[i].key != key) {
        if (map->entries[i].key == 0)
            return missing;
        i = (i + 1) & (map->capacity - 1);
    }
    return map->entries[i].value;
}

// The key must not be there yet. False if there is no host memory.
bool oomph_map_add(oomph_map_t *map, uint64_t key, uint32_t value);
// Takes the key out, if it is there.
void oomph_map_drop(oomph_map_t *map, uint64_t key);
// Takes all keys out; keeps the memory.
void oomph_map_clear(oomph_map_t *map);
void oomph_map_destroy(oomph_map_t *map);
