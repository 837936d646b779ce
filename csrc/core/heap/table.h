/* table.h - the blocks in use, found by address. Pure; the caller holds the device
 * lock.
 */
#pragma once
#include "core/heap/block.h"

typedef struct oomph_table_entry {
    oomph_addr_t addr; // 0: empty
    oomph_block_t *block;
} oomph_table_entry_t;

typedef struct oomph_table {
    oomph_table_entry_t *entries;
    size_t capacity; // a power of two, or 0; at most half of it is used
    size_t count;
    unsigned shift; // 64 - log2(capacity)
} oomph_table_t;

void oomph_table_destroy(oomph_table_t *table);
// Makes sure that the next add cannot fail. Errors: OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_table_grow(oomph_table_t *table);
static inline oomph_status_t oomph_table_reserve(oomph_table_t *table)
{
    return table->count < table->capacity / 2 ? OOMPH_OK : oomph_table_grow(table);
}
void oomph_table_add(oomph_table_t *table, oomph_block_t *block);
// The block in use that begins at `addr`, or NULL.
oomph_block_t *oomph_table_find(const oomph_table_t *table, oomph_addr_t addr);
// Takes it out; NULL if there is none.
oomph_block_t *oomph_table_take(oomph_table_t *table, oomph_addr_t addr);
