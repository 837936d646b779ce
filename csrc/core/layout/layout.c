/* layout.c - how a period is packed, and how its layout is followed.
 *
 * A layout is followed by a cursor: the next allocation of the size that is due takes
 * its place, and up to 16 places may be skipped. A layout that misses more than it hits
 * is dropped, and so is one under which more pages move than without: a timing that
 * differs from step to step, as that of copies to the host, it cannot know.
 *
 * To follow costs a comparison for each allocation, and at most 17 where it deviates: a
 * search of all places would find more matches, but take as long as the period has
 * allocations. To pack costs more (pack.c), once for each period found.
 */
#include "core/layout/layout.h"
#include "core/layout/pack.h"

#include <stdlib.h>
#include <string.h>

enum {
    LOOK_AHEAD = 16,   // places that a step may leave out at once
    WORTH_DIVISOR = 8, // without marks, at least 1/8 of what is alive must be planned
    LEFT_OUT_DIVISOR = 3, // no repetition if more than 1/3 of a period outlives it
    SETTLING_STEPS = 3,   // until what moves with a layout is compared
};

void oomph_layout_destroy(oomph_layout_t *layout)
{
    oomph_record_destroy(&layout->record);
    free(layout->places);
    *layout = (oomph_layout_t){0};
}

size_t oomph_layout_record_bytes(const oomph_layout_t *layout)
{
    return layout->record.capacity * sizeof layout->record.entries[0] +
           layout->place_count * sizeof layout->places[0];
}

uint32_t oomph_layout_note(oomph_layout_t *layout, size_t bytes)
{
    return oomph_record_note(&layout->record, bytes, layout->places == NULL);
}

void oomph_layout_mark(oomph_layout_t *layout)
{
    oomph_record_mark(&layout->record);
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

/* ---- Packing */

// The lifetimes of the older of the two periods found, whose frees are all known by
// now. What outlives a period is no part of the repetition. Gives the number of items.
static size_t collect_items(oomph_layout_t *layout, oomph_item_t *items, size_t *bytes,
                            size_t *left_out_bytes)
{
    uint32_t period = layout->record.found_period;
    uint32_t first = layout->record.count - 2 * period;
    size_t count = 0;

    *bytes = *left_out_bytes = layout->carried_bytes = 0;
    for (uint32_t i = 0; i < period; i++) {
        const oomph_record_entry_t *old =
            oomph_record_entry(&layout->record, first + i);
        const oomph_record_entry_t *new =
            oomph_record_entry(&layout->record, first + period + i);
        uint32_t life = old->death - (first + i);
        uint32_t newer = new->death - (first + period + i);
        size_t size = (size_t)old->units << OOMPH_RECORD_UNIT_SHIFT;
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
    uint32_t first = layout->record.count - layout->record.found_period;
    oomph_place_t *places = malloc(layout->record.found_period * sizeof *places);

    for (uint32_t i = 0; places != NULL && i < layout->record.found_period; i++)
        places[i] = (oomph_place_t){
            (size_t)oomph_record_entry(&layout->record, first + i)->units
                << OOMPH_RECORD_UNIT_SHIFT,
            OOMPH_NO_PLACE};
    for (size_t i = 0; places != NULL && i < count; i++)
        places[items[i].birth].offset = items[i].offset;
    return places;
}

static void put_in_force(oomph_layout_t *layout, oomph_place_t *places, size_t bytes)
{
    layout->places = places;
    layout->place_count = layout->record.found_period;
    layout->bytes = bytes;
    layout->step_count = layout->record.found_steps;
    layout->step = 0;
    layout->cursor = 0;
    layout->hits = layout->misses = 0;
    layout->starts[0] = 0;
    for (unsigned i = 1; i < layout->step_count; i++)
        layout->starts[i] =
            oomph_record_mark_before(&layout->record, layout->step_count - i) -
            oomph_record_mark_before(&layout->record, layout->step_count);
}

// A repetition that nobody announced and that is small beside what is alive may be one
// layer of many.
static bool is_worthwhile(const oomph_layout_t *layout, size_t bytes)
{
    size_t live = (size_t)layout->record.live_units << OOMPH_RECORD_UNIT_SHIFT;

    return bytes != SIZE_MAX &&
           (layout->record.marked || bytes >= live / WORTH_DIVISOR);
}

bool oomph_layout_pack(oomph_layout_t *layout)
{
    size_t bytes, left_out_bytes;

    oomph_layout_drop(layout);
    layout->record.packed_hash = layout->record.found_hash;
    oomph_item_t *items = layout->record.found_period <= OOMPH_LAYOUT_MAX
                              ? malloc(layout->record.found_period * sizeof *items)
                              : NULL;
    if (items != NULL) {
        size_t count = collect_items(layout, items, &bytes, &left_out_bytes);
        if (bytes > 0 && left_out_bytes <= bytes / LEFT_OUT_DIVISOR) {
            size_t height = oomph_pack(items, count, layout->record.found_period);
            oomph_place_t *places =
                is_worthwhile(layout, height) ? places_of(layout, items, count) : NULL;
            if (places != NULL)
                put_in_force(layout, places, height);
        }
    }
    free(items);
    layout->record.found_period = 0;
    return layout->places != NULL;
}

void oomph_layout_drop(oomph_layout_t *layout)
{
    free(layout->places);
    layout->places = NULL;
    layout->place_count = 0;
    layout->bytes = 0;
    layout->record.packed_hash = 0;
}

void oomph_layout_refuse(oomph_layout_t *layout)
{
    uint64_t hash = layout->record.packed_hash;

    oomph_layout_drop(layout);
    layout->record.packed_hash = hash;
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
            if (layout->record.marked)
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
    if (!layout->record.marked && layout->misses > layout->hits + layout->place_count)
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
