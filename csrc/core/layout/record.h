/* record.h - the record of what a pool is asked for, and the period of it.
 *
 * Training repeats itself. The record keeps the size and lifetime of each allocation of
 * one pool, in order; time is counted in allocations. Two successive stretches that are
 * equal are a period.
 *
 * Pure: no driver, no lock, no clock. The caller holds the device lock.
 */
#pragma once
#include "core/base/util.h"

enum {
    OOMPH_RECORD_MARKS = 8,     // a period has at most so many steps
    OOMPH_RECORD_MAX = 1 << 16, // allocations remembered
    OOMPH_RECORD_UNIT_SHIFT = 9,
    OOMPH_CONTEXT_BITS = 8,
};

typedef struct oomph_record_entry {
    uint64_t hash;  // of all entries before this one
    uint32_t units; // size in multiples of 512 bytes
    uint32_t death; // allocations made when it was freed; its own number: not freed
    uint32_t live_units; // alive before it, of this pool
} oomph_record_entry_t;

typedef struct oomph_record {
    // A ring of the last `capacity` entries, numbered from 0.
    oomph_record_entry_t *entries;
    uint32_t capacity; // a power of two, or 0
    uint32_t count;
    uint32_t live_units;                    // alive now
    uint64_t hash;                          // of all entries
    uint32_t marks[2 * OOMPH_RECORD_MARKS]; // where steps ended, oldest first
    unsigned mark_count;
    bool marked; // steps are announced, so repetition is not looked for
    uint32_t repeat_period, repeat_since;       // a candidate, and since when it holds
    uint32_t contexts[1 << OOMPH_CONTEXT_BITS]; // where the same sizes last occurred

    // A period that occurred twice and has not been packed; 0: none.
    uint32_t found_period;
    unsigned found_steps; // marks in it
    uint64_t found_hash;
    uint64_t packed_hash; // of the period packed last, which is not found again
} oomph_record_t;

// An entry that is kept.
static inline oomph_record_entry_t *oomph_record_entry(const oomph_record_t *record,
                                                       uint32_t number)
{
    return &record->entries[number & (record->capacity - 1)];
}

// Where the newest step but `steps` ended.
static inline uint32_t oomph_record_mark_before(const oomph_record_t *record,
                                                unsigned steps)
{
    return record->marks[record->mark_count - 1 - steps];
}

void oomph_record_destroy(oomph_record_t *record);

// Records an allocation and gives its number. Without host memory nothing is recorded
// from then on, and no period found. Where steps are not announced, it may find one.
uint32_t oomph_record_note(oomph_record_t *record, size_t bytes, bool may_find);
// Records that the allocation of this number was freed.
void oomph_record_note_free(oomph_record_t *record, uint32_t number, size_t bytes);
// A step has ended; it may be the end of a period.
void oomph_record_mark(oomph_record_t *record);
