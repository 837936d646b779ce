/* table.c - open addressing with linear probing, at most half full.
 *
 * An entry is two words, so that a lookup is one cache line in most cases. Taking an
 * entry out moves those behind it back: there are no tombstones to gather, however
 * often blocks come and go.
 */
#include "core/heap/table.h"

enum { CAPACITY_FIRST = 1024 };

// Where an address belongs: a multiplication spreads the multiples of 512.
static size_t home(const oomph_table_t *table, oomph_addr_t addr)
{
    return (size_t)(((addr >> 9) * 0x9E3779B97F4A7C15u) >> table->shift);
}

static size_t next(const oomph_table_t *table, size_t i)
{
    return (i + 1) & (table->capacity - 1);
}

static void put(oomph_table_t *table, oomph_table_entry_t entry)
{
    size_t i = home(table, entry.addr);

    while (table->entries[i].addr != 0)
        i = next(table, i);
    table->entries[i] = entry;
}

void oomph_table_destroy(oomph_table_t *table)
{
    oomph_unmap(table->entries, table->capacity * sizeof table->entries[0]);
    *table = (oomph_table_t){0};
}

oomph_status_t oomph_table_grow(oomph_table_t *table)
{
    oomph_table_t grown = {.capacity = table->capacity == 0 ? CAPACITY_FIRST
                                                            : table->capacity * 2,
                           .count = table->count};
    grown.shift = 64 - (unsigned)__builtin_ctzll(grown.capacity);
    grown.entries = oomph_map(grown.capacity * sizeof grown.entries[0]);
    if (grown.entries == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY,
                          "no host memory for the table of blocks");
    for (size_t i = 0; i < table->capacity; i++)
        if (table->entries[i].addr != 0)
            put(&grown, table->entries[i]);
    oomph_unmap(table->entries, table->capacity * sizeof table->entries[0]);
    *table = grown;
    return OOMPH_OK;
}

void oomph_table_add(oomph_table_t *table, oomph_block_t *block)
{
    put(table, (oomph_table_entry_t){block->addr, block});
    table->count++;
}

static bool locate(const oomph_table_t *table, oomph_addr_t addr, size_t *at)
{
    if (table->capacity == 0)
        return false;
    size_t i = home(table, addr);
    while (table->entries[i].addr != 0 && table->entries[i].addr != addr)
        i = next(table, i);
    *at = i;
    return table->entries[i].addr == addr;
}

oomph_block_t *oomph_table_find(const oomph_table_t *table, oomph_addr_t addr)
{
    size_t i;

    return addr != 0 && locate(table, addr, &i) ? table->entries[i].block : NULL;
}

oomph_block_t *oomph_table_take(oomph_table_t *table, oomph_addr_t addr)
{
    size_t hole;
    if (addr == 0 || !locate(table, addr, &hole))
        return NULL;

    oomph_block_t *block = table->entries[hole].block;
    // Its neighbours will be looked at, too: mostly their records were made one after
    // another, so all three can be on their way at once.
    __builtin_prefetch(block);
    __builtin_prefetch(block - 1);
    __builtin_prefetch(block + 1);
    // Close the gap: move up each entry that it would cut off from its home.
    for (size_t i = next(table, hole); table->entries[i].addr != 0;
         i = next(table, i)) {
        size_t distance =
            (i - home(table, table->entries[i].addr)) & (table->capacity - 1);
        if (distance < ((i - hole) & (table->capacity - 1)))
            continue;
        table->entries[hole] = table->entries[i];
        hole = i;
    }
    table->entries[hole].addr = 0;
    table->count--;
    return block;
}
