/* layout.h - the layout packed from the record of what a pool is asked for.
 *
 * Once a period has been found (record.h), the lifetimes of one are packed into as
 * little address space as possible, and from then on each allocation that comes in the
 * same order gets its place. Lifetimes may run over the end of a period (gradients do):
 * time is a circle.
 *
 * Pure: no driver, no lock, no clock. The caller holds the device lock.
 */
#pragma once
#include "core/layout/record.h"

enum { OOMPH_LAYOUT_MAX = 1 << 14 }; // allocations packed

#define OOMPH_NO_PLACE SIZE_MAX

typedef struct oomph_place {
    size_t bytes;
    size_t offset; // in the layout's address space, or OOMPH_NO_PLACE
} oomph_place_t;

typedef struct oomph_layout {
    oomph_record_t record;

    // The layout in force.
    oomph_place_t *places; // NULL: none
    uint32_t place_count;
    uint32_t starts[OOMPH_RECORD_MARKS]; // first place of each of its steps
    unsigned step_count, step;
    size_t bytes;         // address space that the layout needs
    size_t carried_bytes; // of its blocks that were alive when it was packed
    uint32_t cursor;
    uint32_t hits, misses; // since the last full period
    uint32_t followed_steps;
    size_t moved_bytes; // in the last step that followed none
} oomph_layout_t;

void oomph_layout_destroy(oomph_layout_t *layout);
size_t oomph_layout_record_bytes(const oomph_layout_t *layout);

// Records an allocation, as oomph_record_note().
uint32_t oomph_layout_note(oomph_layout_t *layout, size_t bytes);
// So many bytes of pages have moved in a step, which ends now. Where following the
// layout moves more than steps without it did, it is dropped for good. Before the mark.
void oomph_layout_note_moved(oomph_layout_t *layout, size_t moved_bytes);
// A step has ended.
void oomph_layout_mark(oomph_layout_t *layout);

// Packs the period found and puts the layout in force, at its start. Gives false, with
// no layout in force, if there is nothing to place or it is too much.
bool oomph_layout_pack(oomph_layout_t *layout);
// Puts the layout out of force.
void oomph_layout_drop(oomph_layout_t *layout);
// The same, and never packs the same period again until another was packed.
void oomph_layout_refuse(oomph_layout_t *layout);

// The offset planned for the next allocation, or OOMPH_NO_PLACE.
size_t oomph_layout_next(oomph_layout_t *layout, size_t bytes);

enum { OOMPH_LAYOUT_PERIOD = 1 << 16 }; // a period, in units of time until a use

// When the layout in force will need each of the first `count` pages of its address
// space, from now; UINT32_MAX: never. What the next period needs counts as a period
// later, since nobody knows when that begins.
void oomph_layout_uses(const oomph_layout_t *layout, unsigned page_shift,
                       uint32_t *uses, size_t count);
