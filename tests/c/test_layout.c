/* The record of a step (record.h) and the layout packed from it (layout.h). */
#include "core/layout/layout.h"
#include "harness.h"

#include <string.h>

#define MIB ((size_t)1 << 20)

static oomph_layout_t layout;

// One step: each block is allocated and freed as the table says, by position.
typedef struct step_block {
    size_t mib;
    int dies; // freed before the allocation of this position; -1: never
} step_block_t;

enum { BLOCKS_MAX = 4096 };
static uint32_t numbers[BLOCKS_MAX];
static size_t places[BLOCKS_MAX];

static void free_dying(const step_block_t *blocks, int count, int position)
{
    for (int i = 0; i < count; i++)
        if (blocks[i].dies == position)
            oomph_record_note_free(&layout.record, numbers[i], blocks[i].mib * MIB);
}

// Blocks that die at `count` or later die in the next step, before its first
// allocation.
static void run_step(const step_block_t *blocks, int count)
{
    for (int i = 0; i < count; i++) {
        free_dying(blocks, count, i);
        places[i] = oomph_layout_next(&layout, blocks[i].mib * MIB);
        numbers[i] = oomph_layout_note(&layout, blocks[i].mib * MIB);
    }
    free_dying(blocks, count, count);
}

static bool end_step(void)
{
    oomph_layout_mark(&layout);
    return layout.record.found_period != 0 && oomph_layout_pack(&layout);
}

// The most bytes alive at once in a step whose blocks all die in it.
static size_t peak_of(const step_block_t *blocks, int count)
{
    size_t peak = 0;

    for (int now = 0; now < count; now++) {
        size_t live = 0;
        for (int i = 0; i <= now; i++)
            if (blocks[i].dies > now)
                live += blocks[i].mib * MIB;
        peak = oomph_max(peak, live);
    }
    return peak;
}

static const step_block_t layers[] = {{8, 6}, {4, 5}, {2, 3}, {16, 4},
                                      {3, 7}, {8, 7}, {6, 7}};
enum { LAYERS = sizeof layers / sizeof layers[0] };

static void two_equal_steps_make_a_layout(void)
{
    oomph_layout_mark(&layout);
    run_step(layers, LAYERS);
    CHECK(!end_step());
    run_step(layers, LAYERS);
    CHECK(end_step());
    CHECK(layout.bytes >= peak_of(layers, LAYERS));
    run_step(layers, LAYERS);
    for (int i = 0; i < LAYERS; i++)
        CHECK(places[i] != OOMPH_NO_PLACE);
}

static void blocks_alive_together_do_not_overlap(void)
{
    oomph_layout_mark(&layout);
    for (int step = 0; step < 3; step++) {
        run_step(layers, LAYERS);
        end_step();
    }
    run_step(layers, LAYERS);
    for (int i = 0; i < LAYERS; i++)
        for (int k = i + 1; k < LAYERS && k < layers[i].dies; k++)
            CHECK(places[i] + layers[i].mib * MIB <= places[k] ||
                  places[k] + layers[k].mib * MIB <= places[i]);
}

static void different_steps_make_no_layout(void)
{
    static const step_block_t other[] = {{8, 2}, {5, 2}};

    oomph_layout_mark(&layout);
    run_step(layers, LAYERS);
    end_step();
    run_step(other, 2);
    CHECK(!end_step());
    CHECK(layout.places == NULL);
}

static void steps_that_alternate_are_one_period(void)
{
    static const step_block_t other[] = {{8, 2}, {5, 2}};

    oomph_layout_mark(&layout);
    for (int i = 0; i < 2; i++) {
        run_step(layers, LAYERS);
        CHECK(!end_step());
        run_step(other, 2);
        CHECK(end_step() == (i == 1));
    }
    CHECK(layout.step_count == 2 && layout.place_count == LAYERS + 2);
    // The second step of a period finds its own places even if the first was cut short.
    oomph_layout_next(&layout, 8 * MIB);
    oomph_layout_mark(&layout);
    CHECK(layout.cursor == LAYERS);
}

// A gradient: allocated late in a step, freed when the next has begun.
static void a_lifetime_may_run_over_the_end_of_a_step(void)
{
    uint32_t gradient = 0;
    size_t early = 0, late = 0;

    oomph_layout_mark(&layout);
    for (int step = 0; step < 5; step++) {
        early = oomph_layout_next(&layout, 4 * MIB);
        uint32_t activation = oomph_layout_note(&layout, 4 * MIB);
        if (step > 0)
            oomph_record_note_free(&layout.record, gradient, 6 * MIB);
        late = oomph_layout_next(&layout, 6 * MIB);
        gradient = oomph_layout_note(&layout, 6 * MIB);
        oomph_record_note_free(&layout.record, activation, 4 * MIB);
        oomph_layout_mark(&layout);
        if (layout.record.found_period != 0)
            oomph_layout_pack(&layout);
    }
    CHECK(early != OOMPH_NO_PLACE && late != OOMPH_NO_PLACE);
    CHECK(early + 4 * MIB <= late || late + 6 * MIB <= early);
    CHECK(layout.bytes == 10 * MIB);
}

static void of_two_lifetimes_the_longer_one_is_planned(void)
{
    static const step_block_t shorter[] = {{8, 1}, {4, 3}, {2, 3}};
    static const step_block_t longer[] = {{8, 3}, {4, 3}, {2, 3}};

    oomph_layout_mark(&layout);
    run_step(shorter, 3);
    end_step();
    run_step(longer, 3);
    CHECK(end_step());
    CHECK(layout.bytes == 14 * MIB);
}

static void what_is_alive_when_the_layout_is_made_is_carried_into_it(void)
{
    uint32_t gradient = 0;

    oomph_layout_mark(&layout);
    for (int step = 0; step < 3 && layout.places == NULL; step++) {
        if (step > 0)
            oomph_record_note_free(&layout.record, gradient, 6 * MIB);
        run_step(layers, LAYERS);
        gradient = oomph_layout_note(&layout, 6 * MIB);
        end_step();
    }
    CHECK(layout.places != NULL && layout.carried_bytes == 6 * MIB);
}

static void what_outlives_a_period_has_no_place(void)
{
    oomph_layout_mark(&layout);
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < 4; i++) {
            oomph_layout_next(&layout, 8 * MIB);
            uint32_t number = oomph_layout_note(&layout, 8 * MIB);
            oomph_record_note_free(&layout.record, number, 8 * MIB);
        }
        places[0] = oomph_layout_next(&layout, 3 * MIB);
        oomph_layout_note(&layout, 3 * MIB); // a leak
        end_step();
    }
    CHECK(layout.places != NULL && places[0] == OOMPH_NO_PLACE);
}

static void what_is_freed_only_in_the_step_after_next_has_no_place(void)
{
    uint32_t kept[6] = {0};
    size_t place = 0;

    oomph_layout_mark(&layout);
    for (int step = 0; step < 6; step++) {
        place = oomph_layout_next(&layout, 3 * MIB);
        kept[step] = oomph_layout_note(&layout, 3 * MIB);
        run_step(layers, LAYERS);
        if (step > 0) // more than a period after its allocation
            oomph_record_note_free(&layout.record, kept[step - 1], 3 * MIB);
        end_step();
    }
    CHECK(layout.places != NULL && place == OOMPH_NO_PLACE);
}

static void what_was_not_recorded_gets_no_place_and_does_no_harm(void)
{
    oomph_layout_mark(&layout);
    for (int step = 0; step < 3; step++) {
        run_step(layers, LAYERS);
        end_step();
    }
    size_t expected = layout.places[0].offset;
    CHECK(oomph_layout_next(&layout, 77 * MIB) == OOMPH_NO_PLACE);
    CHECK(oomph_layout_next(&layout, layers[0].mib * MIB) == expected);
}

static void a_layout_that_is_not_followed_is_dropped(void)
{
    oomph_layout_mark(&layout);
    for (int step = 0; step < 3; step++) {
        run_step(layers, LAYERS);
        end_step();
    }
    CHECK(layout.places != NULL);
    for (int i = 0; i < 20; i++)
        oomph_layout_next(&layout, 77 * MIB);
    oomph_layout_mark(&layout);
    CHECK(layout.places == NULL);
}

// Steps in which so many MiB move; gives whether a layout is in force at the end.
static bool is_followed_after(int steps, size_t moved_mib)
{
    for (int step = 0; step < steps; step++) {
        run_step(layers, LAYERS);
        oomph_layout_note_moved(&layout, moved_mib * MIB);
        end_step();
    }
    return layout.places != NULL;
}

static void a_layout_under_which_more_moves_than_without_is_dropped_for_good(void)
{
    oomph_layout_mark(&layout);
    CHECK(is_followed_after(2, 10));
    CHECK(is_followed_after(2, 90)); // moving in
    CHECK(is_followed_after(8, 10));
    CHECK(!is_followed_after(1, 11));
    CHECK(!is_followed_after(8, 20));
}

static void repetition_is_found_without_steps(void)
{
    for (int turn = 0; turn < 12 && layout.places == NULL; turn++)
        for (int i = 0; i < LAYERS; i++) {
            free_dying(layers, LAYERS, i);
            if (i == 0 && turn > 0)
                free_dying(layers, LAYERS, LAYERS);
            oomph_layout_next(&layout, layers[i].mib * MIB);
            numbers[i] = oomph_layout_note(&layout, layers[i].mib * MIB);
            if (layout.record.found_period != 0)
                oomph_layout_pack(&layout);
        }
    CHECK(layout.places != NULL && layout.place_count == LAYERS);
}

// Layers repeat too, but each leaves something alive: no period.
static void a_forward_pass_is_no_repetition(void)
{
    for (int layer = 0; layer < 48; layer++) {
        for (int i = 0; i < 5; i++) {
            oomph_layout_note(&layout, 4 * MIB); // saved for backward
            uint32_t number = oomph_layout_note(&layout, 2 * MIB);
            oomph_record_note_free(&layout.record, number, 2 * MIB);
        }
        CHECK(layout.record.found_period == 0);
    }
}

static void a_random_step_is_packed_close_to_its_peak(void)
{
    rng_t rng = rng_seeded("test_layout");
    static step_block_t blocks[1000];
    enum { COUNT = sizeof blocks / sizeof blocks[0] };

    for (int i = 0; i < COUNT; i++) {
        // Forward and backward: what comes early dies late, and much dies at once.
        bool saved = rng_below(&rng, 3) == 0 && i < COUNT / 2;
        int dies = saved ? COUNT - i : i + 1 + (int)rng_below(&rng, 6);
        blocks[i] =
            (step_block_t){1 + rng_below(&rng, 64), dies < COUNT ? dies : COUNT};
    }
    oomph_layout_mark(&layout);
    for (int step = 0; step < 2; step++) {
        run_step(blocks, COUNT);
        end_step();
    }
    double ratio = (double)layout.bytes / (double)peak_of(blocks, COUNT);
    printf("packed to %.4f of the peak\n", ratio);
    CHECK(layout.places != NULL && ratio < 1.02);
    run_step(blocks, COUNT);
    for (int i = 0; i < COUNT; i++)
        for (int k = i + 1; k < COUNT && k < blocks[i].dies; k++)
            CHECK(places[i] + blocks[i].mib * MIB <= places[k] ||
                  places[k] + blocks[k].mib * MIB <= places[i]);
}

// Placed by size or by lifetime, these eight need 17 MiB.
static void a_step_is_packed_to_its_peak_where_no_simple_order_does(void)
{
    static const step_block_t blocks[] = {{2, 2}, {3, 5}, {2, 7}, {3, 8},
                                          {4, 8}, {3, 8}, {1, 8}, {4, 8}};

    oomph_layout_mark(&layout);
    for (int step = 0; step < 2; step++) {
        run_step(blocks, 8);
        end_step();
    }
    CHECK(layout.places != NULL && layout.bytes == 15 * MIB);
    CHECK(layout.bytes == peak_of(blocks, 8));
}

// A block of a page's size in each of the places that follow each other in time.
static void the_layout_tells_when_each_page_is_needed(void)
{
    static const step_block_t blocks[] = {{2, 4}, {2, 4}, {2, 4}, {2, 4}};
    uint32_t uses[5];

    oomph_layout_mark(&layout);
    for (int step = 0; step < 3; step++) {
        run_step(blocks, 4);
        end_step();
    }
    for (int i = 0; i < 2; i++)
        oomph_layout_next(&layout, 2 * MIB);
    oomph_layout_uses(&layout, 21, uses, 5);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t ahead = i < 2 ? i + 2 + 4 : i - 2; // the next period is far
        CHECK(uses[places[i] / (2 * MIB)] == ahead * (OOMPH_LAYOUT_PERIOD / 4));
    }
    CHECK(uses[4] == UINT32_MAX);
}

static void the_record_keeps_its_size(void)
{
    for (uint32_t i = 0; i < 5 * OOMPH_RECORD_MAX; i++) {
        uint32_t number = oomph_layout_note(&layout, (i % 977 + 1) * MIB);
        oomph_record_note_free(&layout.record, number, (i % 977 + 1) * MIB);
    }
    CHECK(layout.record.capacity <= OOMPH_RECORD_MAX);
    CHECK(layout.record.live_units == 0);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(two_equal_steps_make_a_layout),
        TEST(blocks_alive_together_do_not_overlap),
        TEST(different_steps_make_no_layout),
        TEST(steps_that_alternate_are_one_period),
        TEST(a_lifetime_may_run_over_the_end_of_a_step),
        TEST(of_two_lifetimes_the_longer_one_is_planned),
        TEST(what_is_alive_when_the_layout_is_made_is_carried_into_it),
        TEST(what_outlives_a_period_has_no_place),
        TEST(what_is_freed_only_in_the_step_after_next_has_no_place),
        TEST(what_was_not_recorded_gets_no_place_and_does_no_harm),
        TEST(a_layout_that_is_not_followed_is_dropped),
        TEST(a_layout_under_which_more_moves_than_without_is_dropped_for_good),
        TEST(repetition_is_found_without_steps),
        TEST(a_forward_pass_is_no_repetition),
        TEST(a_random_step_is_packed_close_to_its_peak),
        TEST(a_step_is_packed_to_its_peak_where_no_simple_order_does),
        TEST(the_layout_tells_when_each_page_is_needed),
        TEST(the_record_keeps_its_size),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
