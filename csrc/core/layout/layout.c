/* layout.c - how a period is found, and how its layout is followed.
 *
 * Each entry of the record keeps a polynomial hash of all sizes before it, so that two
 * stretches of any length are compared in O(log length). Where steps are announced,
 * the stretches between their ends are compared, and those of up to 8 steps together,
 * as accumulation repeats itself only then. Where they are not, the last 16 sizes are
 * looked up in a small table: where the same came before, their distance is taken for
 * the period as long as sizes repeat. One hash costs a multiplication for each
 * allocation; comparing the sizes themselves would cost a period for each.
 *
 * A layout is followed by a cursor: the next allocation of the size that is due takes
 * its place, and up to 16 places may be skipped. A layout that misses more than it hits
 * is dropped, and so is one under which more pages move than without: a timing that
 * differs from step to step, as that of copies to the host, it cannot know.
 */
#include "core/layout/layout.h"
#include "core/layout/pack.h"

#include <stdlib.h>
#include <string.h>

enum {
    CAPACITY_FIRST = 512, // entries of a new record
    LOOK_AHEAD = 16,      // places that a step may leave out at once
    CONTEXT = 16,         // equal sizes in a row that suggest a repetition
    STEADY_DIVISOR = 256, // 1/256 of what is alive may change in a period without marks
    WORTH_DIVISOR = 8, // without marks, at least 1/8 of what is alive must be planned
    LEFT_OUT_DIVISOR = 3, // no repetition if more than 1/3 of a period outlives it
    SETTLING_STEPS = 3,   // until what moves with a layout is compared
    UNIT_SHIFT = 9,
};

static const uint64_t BASE = 0x9E3779B97F4A7C15u; // of the polynomial hash; odd

/* ---- The record */

static oomph_record_entry_t *entry(const oomph_layout_t *layout, uint32_t number)
{
    return &layout->entries[number & (layout->capacity - 1)];
}

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
static uint64_t hash_before(const oomph_layout_t *layout, uint32_t number)
{
    return number == layout->count ? layout->hash : entry(layout, number)->hash;
}

// Hash of the entries [first, first + length): that of the longer prefix less that of
// the shorter, shifted by `length` places.
static uint64_t hash_of(const oomph_layout_t *layout, uint32_t first, uint32_t length)
{
    return hash_before(layout, first + length) -
           hash_before(layout, first) * power_of_base(length);
}

static bool is_kept(const oomph_layout_t *layout, uint32_t number)
{
    return layout->count - number <= layout->capacity && number != layout->count;
}

static bool grow(oomph_layout_t *layout)
{
    uint32_t capacity = layout->capacity == 0 ? CAPACITY_FIRST : layout->capacity * 2;
    oomph_record_entry_t *entries = malloc(capacity * sizeof *entries);
    if (entries == NULL)
        return false;
    for (uint32_t i = 0; i < layout->capacity; i++) {
        uint32_t number = layout->count - layout->capacity + i;
        entries[number & (capacity - 1)] = *entry(layout, number);
    }
    free(layout->entries);
    layout->entries = entries;
    layout->capacity = capacity;
    return true;
}

void oomph_layout_destroy(oomph_layout_t *layout)
{
    free(layout->entries);
    free(layout->places);
    *layout = (oomph_layout_t){0};
}

size_t oomph_layout_record_bytes(const oomph_layout_t *layout)
{
    return layout->capacity * sizeof layout->entries[0] +
           layout->place_count * sizeof layout->places[0];
}

void oomph_layout_note_free(oomph_layout_t *layout, uint32_t number, size_t bytes)
{
    layout->live_units -= (uint32_t)(bytes >> UNIT_SHIFT);
    if (is_kept(layout, number) && entry(layout, number)->death == number)
        entry(layout, number)->death = layout->count;
}

/* ---- Finding the period */

static bool occurred_twice(const oomph_layout_t *layout, uint32_t period)
{
    if (period == 0 || layout->count < 2 * period || 2 * period > layout->capacity)
        return false;
    return hash_of(layout, layout->count - period, period) ==
           hash_of(layout, layout->count - 2 * period, period);
}

static void found(oomph_layout_t *layout, uint32_t period, unsigned steps)
{
    uint64_t hash = hash_of(layout, layout->count - period, period);

    if (hash == layout->packed_hash)
        return;
    layout->found_period = period;
    layout->found_steps = steps;
    layout->found_hash = hash;
}

// Where the newest step but `steps` ended.
static uint32_t mark_before(const oomph_layout_t *layout, unsigned steps)
{
    return layout->marks[layout->mark_count - 1 - steps];
}

void oomph_layout_mark(oomph_layout_t *layout)
{
    layout->marked = true;
    if (layout->mark_count == 2 * OOMPH_LAYOUT_MARKS) {
        memmove(layout->marks, layout->marks + 1,
                sizeof layout->marks - sizeof layout->marks[0]);
        layout->mark_count--;
    }
    layout->marks[layout->mark_count++] = layout->count;
    for (unsigned steps = 1; steps <= OOMPH_LAYOUT_MARKS; steps++) {
        if (2 * steps >= layout->mark_count)
            break; // the first of two periods began before the first mark
        uint32_t period = layout->count - mark_before(layout, steps);
        if (mark_before(layout, steps) - mark_before(layout, 2 * steps) == period &&
            occurred_twice(layout, period)) {
            found(layout, period, steps);
            break;
        }
    }
    if (layout->places == NULL)
        return;
    layout->step = (layout->step + 1) % layout->step_count;
    layout->cursor = layout->starts[layout->step];
    if (layout->step == 0) {
        if (layout->misses > layout->hits)
            oomph_layout_drop(layout);
        layout->hits = layout->misses = 0;
    }
}

// Whether a period ended with about as much alive as it began with. Layers repeat too,
// but a forward pass leaves more alive with each, a backward pass less.
static bool is_steady(const oomph_layout_t *layout, uint32_t period)
{
    uint32_t before = entry(layout, layout->count - period)->live_units;
    int64_t change = (int64_t)layout->live_units - before;

    return llabs(change) <= before / STEADY_DIVISOR;
}

// Without marks: the last CONTEXT sizes suggest as a period the distance to where the
// same ones occurred before; it is held on to for as long as sizes keep repeating.
static void watch_repetition(oomph_layout_t *layout)
{
    uint32_t count = layout->count, period = layout->repeat_period;

    if (count < CONTEXT)
        return;
    uint64_t context = hash_of(layout, count - CONTEXT, CONTEXT);
    uint32_t *last = &layout->contexts[context >> (64 - OOMPH_CONTEXT_BITS)];
    uint32_t distance = count - *last;
    *last = count;
    if (period != 0 &&
        entry(layout, count - 1)->units == entry(layout, count - 1 - period)->units) {
        if (layout->places == NULL && count - layout->repeat_since >= period &&
            occurred_twice(layout, period)) {
            if (is_steady(layout, period))
                found(layout, period, 1);
            layout->repeat_since = count;
        }
        return;
    }
    bool repeats = distance >= 1 && distance <= layout->capacity / 2 &&
                   distance + CONTEXT <= count &&
                   hash_of(layout, count - CONTEXT - distance, CONTEXT) == context;
    layout->repeat_period = repeats ? distance : 0;
    layout->repeat_since = count;
}

uint32_t oomph_layout_note(oomph_layout_t *layout, size_t bytes)
{
    uint32_t number = layout->count;
    uint32_t units = (uint32_t)oomph_min(bytes >> UNIT_SHIFT, UINT32_MAX);

    // Once a period has been found, the record is long enough.
    if ((number & (layout->capacity - 1)) == 0 && layout->capacity < OOMPH_RECORD_MAX &&
        layout->packed_hash == 0 && !grow(layout) && layout->capacity == 0)
        return number;
    *entry(layout, number) =
        (oomph_record_entry_t){layout->hash, units, number, layout->live_units};
    layout->live_units += units;
    layout->hash = layout->hash * BASE + mix(units);
    layout->count++;
    if (!layout->marked)
        watch_repetition(layout);
    return number;
}

/* ---- Packing */

// The lifetimes of the older of the two periods found, whose frees are all known by
// now. What outlives a period is no part of the repetition. Gives the number of items.
static size_t collect_items(oomph_layout_t *layout, oomph_item_t *items, size_t *bytes,
                            size_t *left_out_bytes)
{
    uint32_t period = layout->found_period;
    uint32_t first = layout->count - 2 * period;
    size_t count = 0;

    *bytes = *left_out_bytes = layout->carried_bytes = 0;
    for (uint32_t i = 0; i < period; i++) {
        const oomph_record_entry_t *old = entry(layout, first + i);
        const oomph_record_entry_t *new = entry(layout, first + period + i);
        uint32_t life = old->death - (first + i);
        uint32_t newer = new->death - (first + period + i);
        size_t size = (size_t)old->units << UNIT_SHIFT;
        if (life == 0 || life > period) {
            *left_out_bytes += size;
            continue;
        }
        if (newer > life && newer <= period)
            life = newer;
        if (newer == 0)
            layout->carried_bytes += size;
        items[count++] = (oomph_item_t){size, 0, i, life};
        *bytes += size;
    }
    return count;
}

static oomph_place_t *places_of(const oomph_layout_t *layout, const oomph_item_t *items,
                                size_t count)
{
    uint32_t first = layout->count - layout->found_period;
    oomph_place_t *places = malloc(layout->found_period * sizeof *places);

    for (uint32_t i = 0; places != NULL && i < layout->found_period; i++)
        places[i] = (oomph_place_t){
            (size_t)entry(layout, first + i)->units << UNIT_SHIFT, OOMPH_NO_PLACE};
    for (size_t i = 0; places != NULL && i < count; i++)
        places[items[i].birth].offset = items[i].offset;
    return places;
}

static void put_in_force(oomph_layout_t *layout, oomph_place_t *places, size_t bytes)
{
    layout->places = places;
    layout->place_count = layout->found_period;
    layout->bytes = bytes;
    layout->step_count = layout->found_steps;
    layout->step = 0;
    layout->cursor = 0;
    layout->hits = layout->misses = 0;
    layout->starts[0] = 0;
    for (unsigned i = 1; i < layout->step_count; i++)
        layout->starts[i] = mark_before(layout, layout->step_count - i) -
                            mark_before(layout, layout->step_count);
}

// A repetition that nobody announced and that is small beside what is alive may be one
// layer of many.
static bool is_worthwhile(const oomph_layout_t *layout, size_t bytes)
{
    size_t live = (size_t)layout->live_units << UNIT_SHIFT;

    return bytes != SIZE_MAX && (layout->marked || bytes >= live / WORTH_DIVISOR);
}

bool oomph_layout_pack(oomph_layout_t *layout)
{
    size_t bytes, left_out_bytes;

    oomph_layout_drop(layout);
    layout->packed_hash = layout->found_hash;
    oomph_item_t *items = layout->found_period <= OOMPH_LAYOUT_MAX
                              ? malloc(layout->found_period * sizeof *items)
                              : NULL;
    if (items != NULL) {
        size_t count = collect_items(layout, items, &bytes, &left_out_bytes);
        if (bytes > 0 && left_out_bytes <= bytes / LEFT_OUT_DIVISOR) {
            size_t height = oomph_pack(items, count, layout->found_period);
            oomph_place_t *places =
                is_worthwhile(layout, height) ? places_of(layout, items, count) : NULL;
            if (places != NULL)
                put_in_force(layout, places, height);
        }
    }
    free(items);
    layout->found_period = 0;
    return layout->places != NULL;
}

void oomph_layout_drop(oomph_layout_t *layout)
{
    free(layout->places);
    layout->places = NULL;
    layout->place_count = 0;
    layout->bytes = 0;
    layout->packed_hash = 0;
}

void oomph_layout_refuse(oomph_layout_t *layout)
{
    uint64_t hash = layout->packed_hash;

    oomph_layout_drop(layout);
    layout->packed_hash = hash;
}

void oomph_layout_note_moved(oomph_layout_t *layout, size_t moved_bytes)
{
    if (layout->places == NULL) {
        layout->moved_bytes = moved_bytes;
        layout->followed_steps = 0;
    } else if (++layout->followed_steps >= SETTLING_STEPS &&
               moved_bytes > layout->moved_bytes) {
        oomph_layout_refuse(layout);
    }
}

/* ---- Following the layout */

size_t oomph_layout_next(oomph_layout_t *layout, size_t bytes)
{
    if (layout->places == NULL)
        return OOMPH_NO_PLACE;
    for (uint32_t skipped = 0; skipped <= LOOK_AHEAD; skipped++) {
        uint32_t at = layout->cursor + skipped;
        if (at >= layout->place_count) {
            if (layout->marked)
                break;
            at -= layout->place_count;
        }
        if (at < layout->place_count && layout->places[at].bytes == bytes) {
            layout->cursor = at + 1;
            layout->hits++;
            return layout->places[at].offset;
        }
    }
    layout->misses++;
    if (!layout->marked && layout->misses > layout->hits + layout->place_count)
        oomph_layout_drop(layout);
    return OOMPH_NO_PLACE;
}

// Notes the pages of a place that have no use yet. Gives how many these were.
static size_t note_use(const oomph_place_t *place, uint32_t when, unsigned page_shift,
                       uint32_t *uses, size_t count)
{
    size_t page = place->offset >> page_shift, noted = 0;
    size_t end = ((place->offset + place->bytes - 1) >> page_shift) + 1;

    for (; page < oomph_min(end, count); page++) {
        if (uses[page] != UINT32_MAX)
            continue;
        uses[page] = when;
        noted++;
    }
    return noted;
}

void oomph_layout_uses(const oomph_layout_t *layout, unsigned page_shift,
                       uint32_t *uses, size_t count)
{
    size_t left = count;

    memset(uses, 0xff, count * sizeof uses[0]);
    for (uint32_t i = 0; i < layout->place_count && left > 0; i++) {
        uint64_t at = layout->cursor + i, ahead = i;
        if (at >= layout->place_count) {
            at -= layout->place_count;
            ahead += layout->place_count;
        }
        if (layout->places[at].offset != OOMPH_NO_PLACE)
            left -=
                note_use(&layout->places[at],
                         (uint32_t)(ahead * OOMPH_LAYOUT_PERIOD / layout->place_count),
                         page_shift, uses, count);
    }
}
