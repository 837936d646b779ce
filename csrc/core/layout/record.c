/* record.c - how the record is kept, and how a period is found in it.
 *
 * Each entry of the record keeps a polynomial hash of all sizes before it, so that two
 * stretches of any length are compared in O(log length). Where steps are announced,
 * the stretches between their ends are compared, and those of up to 8 steps together,
 * as accumulation repeats itself only then. Where they are not, the last 16 sizes are
 * looked up in a small table: where the same came before, their distance is taken for
 * the period as long as sizes repeat. One hash costs a multiplication for each
 * allocation; comparing the sizes themselves would cost a period for each.
 */
#include "core/layout/record.h"

#include <stdlib.h>
#include <string.h>

enum {
    CAPACITY_FIRST = 512, // entries of a new record
    CONTEXT = 16,         // equal sizes in a row that suggest a repetition
    STEADY_DIVISOR = 256, // 1/256 of what is alive may change in a period without marks
};

static const uint64_t BASE = 0x9E3779B97F4A7C15u; // of the polynomial hash; odd

/* ---- The record */

// BASE to the power of `exponent`.
static uint64_t power_of_base(uint32_t exponent)
{
    uint64_t power = 1, base = BASE;

    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1)
            power *= base;
    return power;
}

static uint64_t mix(uint32_t units)
{
    uint64_t x = (units + 1) * 0xBF58476D1CE4E5B9u;
    return x ^ (x >> 31);
}

// The hash of all entries before `number`, which may be the next.
static uint64_t hash_before(const oomph_record_t *record, uint32_t number)
{
    return number == record->count ? record->hash
                                   : oomph_record_entry(record, number)->hash;
}

// Hash of the entries [first, first + length): that of the longer prefix less that of
// the shorter, shifted by `length` places.
static uint64_t hash_of(const oomph_record_t *record, uint32_t first, uint32_t length)
{
    return hash_before(record, first + length) -
           hash_before(record, first) * power_of_base(length);
}

static bool is_kept(const oomph_record_t *record, uint32_t number)
{
    return record->count - number <= record->capacity && number != record->count;
}

static bool grow(oomph_record_t *record)
{
    uint32_t capacity = record->capacity == 0 ? CAPACITY_FIRST : record->capacity * 2;
    oomph_record_entry_t *entries = malloc(capacity * sizeof *entries);
    if (entries == NULL)
        return false;
    for (uint32_t i = 0; i < record->capacity; i++) {
        uint32_t number = record->count - record->capacity + i;
        entries[number & (capacity - 1)] = *oomph_record_entry(record, number);
    }
    free(record->entries);
    record->entries = entries;
    record->capacity = capacity;
    return true;
}

void oomph_record_destroy(oomph_record_t *record)
{
    free(record->entries);
    *record = (oomph_record_t){0};
}

void oomph_record_note_free(oomph_record_t *record, uint32_t number, size_t bytes)
{
    record->live_units -= (uint32_t)(bytes >> OOMPH_RECORD_UNIT_SHIFT);
    if (is_kept(record, number) && oomph_record_entry(record, number)->death == number)
        oomph_record_entry(record, number)->death = record->count;
}

/* ---- Finding the period */

static bool occurred_twice(const oomph_record_t *record, uint32_t period)
{
    if (period == 0 || record->count < 2 * period || 2 * period > record->capacity)
        return false;
    return hash_of(record, record->count - period, period) ==
           hash_of(record, record->count - 2 * period, period);
}

static void found(oomph_record_t *record, uint32_t period, unsigned steps)
{
    uint64_t hash = hash_of(record, record->count - period, period);

    if (hash == record->packed_hash)
        return;
    record->found_period = period;
    record->found_steps = steps;
    record->found_hash = hash;
}

void oomph_record_mark(oomph_record_t *record)
{
    record->marked = true;
    if (record->mark_count == 2 * OOMPH_RECORD_MARKS) {
        memmove(record->marks, record->marks + 1,
                sizeof record->marks - sizeof record->marks[0]);
        record->mark_count--;
    }
    record->marks[record->mark_count++] = record->count;
    for (unsigned steps = 1; steps <= OOMPH_RECORD_MARKS; steps++) {
        if (2 * steps >= record->mark_count)
            break; // the first of two periods began before the first mark
        uint32_t middle = oomph_record_mark_before(record, steps);
        uint32_t period = record->count - middle;
        if (middle - oomph_record_mark_before(record, 2 * steps) == period &&
            occurred_twice(record, period)) {
            found(record, period, steps);
            break;
        }
    }
}

// Whether a period ended with about as much alive as it began with. Layers repeat too,
// but a forward pass leaves more alive with each, a backward pass less.
static bool is_steady(const oomph_record_t *record, uint32_t period)
{
    uint32_t before = oomph_record_entry(record, record->count - period)->live_units;
    int64_t change = (int64_t)record->live_units - before;

    return llabs(change) <= before / STEADY_DIVISOR;
}

// Without marks: the last CONTEXT sizes suggest as a period the distance to where the
// same ones occurred before; it is held on to for as long as sizes keep repeating.
static void watch_repetition(oomph_record_t *record, bool may_find)
{
    uint32_t count = record->count, period = record->repeat_period;

    if (count < CONTEXT)
        return;
    uint64_t context = hash_of(record, count - CONTEXT, CONTEXT);
    uint32_t *last = &record->contexts[context >> (64 - OOMPH_CONTEXT_BITS)];
    uint32_t distance = count - *last;
    *last = count;
    if (period != 0 && oomph_record_entry(record, count - 1)->units ==
                           oomph_record_entry(record, count - 1 - period)->units) {
        if (may_find && count - record->repeat_since >= period &&
            occurred_twice(record, period)) {
            if (is_steady(record, period))
                found(record, period, 1);
            record->repeat_since = count;
        }
        return;
    }
    bool repeats = distance >= 1 && distance <= record->capacity / 2 &&
                   distance + CONTEXT <= count &&
                   hash_of(record, count - CONTEXT - distance, CONTEXT) == context;
    record->repeat_period = repeats ? distance : 0;
    record->repeat_since = count;
}

uint32_t oomph_record_note(oomph_record_t *record, size_t bytes, bool may_find)
{
    uint32_t number = record->count;
    uint32_t units = (uint32_t)oomph_min(bytes >> OOMPH_RECORD_UNIT_SHIFT, UINT32_MAX);

    // Once a period has been found, the record is long enough.
    if ((number & (record->capacity - 1)) == 0 && record->capacity < OOMPH_RECORD_MAX &&
        record->packed_hash == 0 && !grow(record) && record->capacity == 0)
        return number;
    *oomph_record_entry(record, number) =
        (oomph_record_entry_t){record->hash, units, number, record->live_units};
    record->live_units += units;
    record->hash = record->hash * BASE + mix(units);
    record->count++;
    if (!record->marked)
        watch_repetition(record, may_find);
    return number;
}
