/* plan.c - how a period is found, and how its layout is followed.
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
 * is dropped.
 */
#include "core/layout/plan.h"
#include "core/layout/pack.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROOM_FIRST = 512,   // entries of a new record
    LOOK_AHEAD = 16,    // places that a step may leave out at once
    CONTEXT = 16,       // equal sizes in a row that suggest a repetition
    STEADY_SHARE = 256, // of what is alive may change in a period without marks
    WORTH_SHARE = 8,    // of what is alive is planned, at least, without marks
    LEFT_OUT_SHARE = 3, // a period is no repetition if a third of it outlives it
    UNIT_SHIFT = 9,
};

static const uint64_t BASE = 0x9E3779B97F4A7C15u; // of the polynomial hash; odd

/* ---- The record */

static oomph_record_entry_t *entry(const oomph_plan_t *plan, uint32_t number)
{
    return &plan->entries[number & (plan->room - 1)];
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
static uint64_t hash_before(const oomph_plan_t *plan, uint32_t number)
{
    return number == plan->count ? plan->hash : entry(plan, number)->hash;
}

// Hash of the entries [first, first + length): that of the longer prefix less that of
// the shorter, shifted by `length` places.
static uint64_t hash_of(const oomph_plan_t *plan, uint32_t first, uint32_t length)
{
    return hash_before(plan, first + length) -
           hash_before(plan, first) * power_of_base(length);
}

static bool is_kept(const oomph_plan_t *plan, uint32_t number)
{
    return plan->count - number <= plan->room && number != plan->count;
}

static bool grow(oomph_plan_t *plan)
{
    uint32_t room = plan->room == 0 ? ROOM_FIRST : plan->room * 2;
    oomph_record_entry_t *entries = malloc(room * sizeof *entries);
    if (entries == NULL)
        return false;
    for (uint32_t i = 0; i < plan->room; i++) {
        uint32_t number = plan->count - plan->room + i;
        entries[number & (room - 1)] = *entry(plan, number);
    }
    free(plan->entries);
    plan->entries = entries;
    plan->room = room;
    return true;
}

void oomph_plan_destroy(oomph_plan_t *plan)
{
    free(plan->entries);
    free(plan->places);
    *plan = (oomph_plan_t){0};
}

size_t oomph_plan_record_bytes(const oomph_plan_t *plan)
{
    return plan->room * sizeof plan->entries[0] +
           plan->place_count * sizeof plan->places[0];
}

void oomph_plan_note_free(oomph_plan_t *plan, uint32_t number, size_t bytes)
{
    plan->live_units -= (uint32_t)(bytes >> UNIT_SHIFT);
    if (is_kept(plan, number) && entry(plan, number)->death == number)
        entry(plan, number)->death = plan->count;
}

/* ---- Finding the period */

static bool occurred_twice(const oomph_plan_t *plan, uint32_t period)
{
    if (period == 0 || plan->count < 2 * period || 2 * period > plan->room)
        return false;
    return hash_of(plan, plan->count - period, period) ==
           hash_of(plan, plan->count - 2 * period, period);
}

static void found(oomph_plan_t *plan, uint32_t period, unsigned steps)
{
    uint64_t hash = hash_of(plan, plan->count - period, period);

    if (hash == plan->packed_hash)
        return;
    plan->found_period = period;
    plan->found_steps = steps;
    plan->found_hash = hash;
}

// Where the newest step but `steps` ended.
static uint32_t mark_before(const oomph_plan_t *plan, unsigned steps)
{
    return plan->marks[plan->mark_count - 1 - steps];
}

void oomph_plan_mark(oomph_plan_t *plan)
{
    plan->marked = true;
    if (plan->mark_count == 2 * OOMPH_PLAN_MARKS) {
        memmove(plan->marks, plan->marks + 1,
                sizeof plan->marks - sizeof plan->marks[0]);
        plan->mark_count--;
    }
    plan->marks[plan->mark_count++] = plan->count;
    for (unsigned steps = 1; steps <= OOMPH_PLAN_MARKS; steps++) {
        if (2 * steps >= plan->mark_count)
            break; // the first of two periods began before the first mark
        uint32_t period = plan->count - mark_before(plan, steps);
        if (mark_before(plan, steps) - mark_before(plan, 2 * steps) == period &&
            occurred_twice(plan, period)) {
            found(plan, period, steps);
            break;
        }
    }
    if (plan->places == NULL)
        return;
    plan->step = (plan->step + 1) % plan->step_count;
    plan->cursor = plan->starts[plan->step];
    if (plan->step == 0) {
        if (plan->misses > plan->hits)
            oomph_plan_drop(plan);
        plan->hits = plan->misses = 0;
    }
}

// Whether a period ended with about as much alive as it began with. Layers repeat too,
// but a forward pass leaves more alive with each, a backward pass less.
static bool is_steady(const oomph_plan_t *plan, uint32_t period)
{
    uint32_t before = entry(plan, plan->count - period)->live_units;
    int64_t change = (int64_t)plan->live_units - before;

    return llabs(change) <= before / STEADY_SHARE;
}

// Without marks: the last CONTEXT sizes suggest as a period the distance to where the
// same ones occurred before; it is held on to for as long as sizes keep repeating.
static void watch_repetition(oomph_plan_t *plan)
{
    uint32_t count = plan->count, period = plan->repeat_period;

    if (count < CONTEXT)
        return;
    uint64_t context = hash_of(plan, count - CONTEXT, CONTEXT);
    uint32_t *last = &plan->contexts[context >> (64 - OOMPH_CONTEXT_BITS)];
    uint32_t distance = count - *last;
    *last = count;
    if (period != 0 &&
        entry(plan, count - 1)->units == entry(plan, count - 1 - period)->units) {
        if (plan->places == NULL && count - plan->repeat_since >= period &&
            occurred_twice(plan, period)) {
            if (is_steady(plan, period))
                found(plan, period, 1);
            plan->repeat_since = count;
        }
        return;
    }
    bool repeats = distance >= 1 && distance <= plan->room / 2 &&
                   distance + CONTEXT <= count &&
                   hash_of(plan, count - CONTEXT - distance, CONTEXT) == context;
    plan->repeat_period = repeats ? distance : 0;
    plan->repeat_since = count;
}

uint32_t oomph_plan_note(oomph_plan_t *plan, size_t bytes)
{
    uint32_t number = plan->count;
    uint32_t units = (uint32_t)oomph_min(bytes >> UNIT_SHIFT, UINT32_MAX);

    // Once a period has been found, the record is long enough.
    if ((number & (plan->room - 1)) == 0 && plan->room < OOMPH_RECORD_MAX &&
        plan->packed_hash == 0 && !grow(plan) && plan->room == 0)
        return number;
    *entry(plan, number) =
        (oomph_record_entry_t){plan->hash, units, number, plan->live_units};
    plan->live_units += units;
    plan->hash = plan->hash * BASE + mix(units);
    plan->count++;
    if (!plan->marked)
        watch_repetition(plan);
    return number;
}

/* ---- Packing */

// The lifetimes of the older of the two periods found, whose frees are all known by
// now. What outlives a period is no part of the repetition. Gives the number of items.
static size_t collect_items(oomph_plan_t *plan, oomph_item_t *items, size_t *bytes,
                            size_t *left_out_bytes)
{
    uint32_t period = plan->found_period;
    uint32_t first = plan->count - 2 * period;
    size_t count = 0;

    *bytes = *left_out_bytes = plan->carried_bytes = 0;
    for (uint32_t i = 0; i < period; i++) {
        const oomph_record_entry_t *old = entry(plan, first + i);
        const oomph_record_entry_t *new = entry(plan, first + period + i);
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
            plan->carried_bytes += size;
        items[count++] = (oomph_item_t){size, 0, i, life};
        *bytes += size;
    }
    return count;
}

static oomph_place_t *places_of(const oomph_plan_t *plan, const oomph_item_t *items,
                                size_t count)
{
    uint32_t first = plan->count - plan->found_period;
    oomph_place_t *places = malloc(plan->found_period * sizeof *places);

    for (uint32_t i = 0; places != NULL && i < plan->found_period; i++)
        places[i] = (oomph_place_t){(size_t)entry(plan, first + i)->units << UNIT_SHIFT,
                                    OOMPH_NO_PLACE};
    for (size_t i = 0; places != NULL && i < count; i++)
        places[items[i].birth].offset = items[i].offset;
    return places;
}

static void put_in_force(oomph_plan_t *plan, oomph_place_t *places, size_t bytes)
{
    plan->places = places;
    plan->place_count = plan->found_period;
    plan->bytes = bytes;
    plan->step_count = plan->found_steps;
    plan->step = 0;
    plan->cursor = 0;
    plan->hits = plan->misses = 0;
    plan->starts[0] = 0;
    for (unsigned i = 1; i < plan->step_count; i++)
        plan->starts[i] = mark_before(plan, plan->step_count - i) -
                          mark_before(plan, plan->step_count);
}

// A repetition that nobody announced and that is small beside what is alive may be one
// layer of many.
static bool is_worthwhile(const oomph_plan_t *plan, size_t bytes)
{
    size_t live = (size_t)plan->live_units << UNIT_SHIFT;

    return bytes != SIZE_MAX && (plan->marked || bytes >= live / WORTH_SHARE);
}

bool oomph_plan_pack(oomph_plan_t *plan)
{
    size_t bytes, left_out_bytes;

    oomph_plan_drop(plan);
    plan->packed_hash = plan->found_hash;
    oomph_item_t *items = plan->found_period <= OOMPH_PLAN_MAX
                              ? malloc(plan->found_period * sizeof *items)
                              : NULL;
    if (items != NULL) {
        size_t count = collect_items(plan, items, &bytes, &left_out_bytes);
        if (bytes > 0 && left_out_bytes <= bytes / LEFT_OUT_SHARE) {
            size_t height = oomph_pack(items, count, plan->found_period);
            oomph_place_t *places =
                is_worthwhile(plan, height) ? places_of(plan, items, count) : NULL;
            if (places != NULL)
                put_in_force(plan, places, height);
        }
    }
    free(items);
    plan->found_period = 0;
    return plan->places != NULL;
}

void oomph_plan_drop(oomph_plan_t *plan)
{
    free(plan->places);
    plan->places = NULL;
    plan->place_count = 0;
    plan->bytes = 0;
    plan->packed_hash = 0;
}

/* ---- Following the layout */

size_t oomph_plan_next(oomph_plan_t *plan, size_t bytes)
{
    if (plan->places == NULL)
        return OOMPH_NO_PLACE;
    for (uint32_t skipped = 0; skipped <= LOOK_AHEAD; skipped++) {
        uint32_t at = plan->cursor + skipped;
        if (at >= plan->place_count) {
            if (plan->marked)
                break;
            at -= plan->place_count;
        }
        if (at < plan->place_count && plan->places[at].bytes == bytes) {
            plan->cursor = at + 1;
            plan->hits++;
            return plan->places[at].offset;
        }
    }
    plan->misses++;
    if (!plan->marked && plan->misses > plan->hits + plan->place_count)
        oomph_plan_drop(plan);
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

void oomph_plan_uses(const oomph_plan_t *plan, unsigned page_shift, uint32_t *uses,
                     size_t count)
{
    size_t left = count;

    memset(uses, 0xff, count * sizeof uses[0]);
    for (uint32_t i = 0; i < plan->place_count && left > 0; i++) {
        uint64_t at = plan->cursor + i, ahead = i;
        if (at >= plan->place_count) {
            at -= plan->place_count;
            ahead += plan->place_count;
        }
        if (plan->places[at].offset != OOMPH_NO_PLACE)
            left -= note_use(&plan->places[at],
                             (uint32_t)(ahead * OOMPH_PLAN_PERIOD / plan->place_count),
                             page_shift, uses, count);
    }
}
