/* Blocks that fell back to the host return to the device when steps end, if there is
 * room.
 */
#include "card.h"

#include <cuda.h>

static void start(const char *card)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 256 * MIB;
    start_card(card, &config);
}

static oomph_tier_t tier_of(oomph_addr_t addr)
{
    oomph_block_info_t info;

    CHECK(oomph_lookup(addr, &info) == OOMPH_OK);
    return info.tier;
}

// A block that falls back to the host, since a card of 64 MiB is full for that moment.
static oomph_addr_t take_busy_on_host(size_t bytes)
{
    oomph_addr_t large = take(64 * MIB, NULL), block = take(bytes, NULL);

    CHECK(tier_of(block) == OOMPH_TIER_HOST);
    mark(block, bytes, block);
    give(large);
    return block;
}

// The same, and it is idle between steps.
static oomph_addr_t take_on_host(size_t bytes)
{
    oomph_addr_t block = take_busy_on_host(bytes);

    CHECK(oomph_mark_idle(block + bytes / 2) == OOMPH_OK);
    return block;
}

// A step that has so much in use at its peak, beside what stays.
static void step(size_t peak_bytes)
{
    give(take(peak_bytes, NULL));
    oomph_step();
    check_sound();
}

static void a_survivor_returns_after_a_whole_step(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t block = take_on_host(16 * MIB);
    oomph_step(); // in which it was allocated
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
    step(32 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_DEVICE);
    CHECK(is_marked(block, 16 * MIB, block));
    CHECK(stats_of(0).promoted_bytes == 16 * MIB && stats_of(0).swap_drains == 1);
    step(32 * MIB);
    CHECK(stats_of(0).swap_drains == 1);
}

static void what_nobody_said_to_rest_between_steps_stays(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t busy = take_busy_on_host(16 * MIB), block = take_on_host(16 * MIB);
    for (int i = 0; i < 4; i++)
        step(8 * MIB);
    CHECK(tier_of(busy) == OOMPH_TIER_HOST);
    CHECK(tier_of(block) == OOMPH_TIER_DEVICE);
}

static void what_is_to_stay_stays_until_it_rests_again(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t block = take_on_host(16 * MIB);
    CHECK(oomph_unmark_idle(block) == OOMPH_OK);
    for (int i = 0; i < 4; i++)
        step(8 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
    CHECK(oomph_mark_idle(block) == OOMPH_OK);
    step(8 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_DEVICE);
    CHECK(is_marked(block, 16 * MIB, block));
    CHECK(oomph_unmark_idle(1) == OOMPH_ERR_INVALID);
}

static void a_block_rests_until_it_is_freed(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t block = take_on_host(16 * MIB);
    give(block);
    CHECK(oomph_mark_idle(block) == OOMPH_ERR_INVALID);
    CHECK(take_busy_on_host(16 * MIB) == block);
    for (int i = 0; i < 4; i++)
        step(8 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
}

static oomph_addr_t replaced;

// What another thread may do while the device is waited for.
static void *replace(void)
{
    oomph_addr_t block = replaced;

    replaced = 0;
    if (block != 0) {
        give(block);
        CHECK(take_busy_on_host(16 * MIB) == block);
    }
    return NULL;
}

static void go_on(void *state)
{
    (void)state;
}

static void what_came_in_the_place_of_one_that_rested_stays(void)
{
    oomph_hooks_t hooks = {.before_wait = replace, .after_wait = go_on};

    start("64MiB,context=0,memory=real");
    oomph_addr_t block = take_on_host(16 * MIB);
    oomph_step();
    oomph_set_hooks(&hooks);
    replaced = block;
    step(8 * MIB);
    CHECK(replaced == 0 && tier_of(block) == OOMPH_TIER_HOST);
}

static size_t host_bytes_of(oomph_addr_t addr)
{
    oomph_block_info_t info;

    CHECK(oomph_lookup(addr, &info) == OOMPH_OK);
    return info.host_bytes;
}

static void a_page_that_one_uses_who_does_not_rest_stays(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t large = take(64 * MIB, NULL);
    give(take(20 * MIB, NULL)); // on the host, where the two get a page together
    oomph_addr_t block = take(9 * MIB, NULL);
    oomph_move_t busy = {.addr = take(9 * MIB, NULL)};
    size_t moved_bytes;
    give(large);
    CHECK(oomph_mark_idle(block) == OOMPH_OK);
    CHECK(oomph_move(0, OOMPH_TIER_DEVICE, &busy, 1, &moved_bytes) == OOMPH_OK);
    CHECK(tier_of(busy.addr) == OOMPH_TIER_DEVICE && host_bytes_of(busy.addr) == MIB);
    oomph_step();
    step(8 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_DEVICE && host_bytes_of(block) == MIB);
    CHECK(host_bytes_of(busy.addr) == MIB);
}

static void a_block_that_lives_for_a_step_alone_does_not(void)
{
    start("64MiB,context=0,memory=real");
    for (int i = 0; i < 4; i++) {
        oomph_addr_t gradient = take_on_host(16 * MIB);
        oomph_step();
        CHECK(tier_of(gradient) == OOMPH_TIER_HOST);
        give(gradient);
    }
    CHECK(stats_of(0).swap_drains == 0);
}

static void it_stays_where_the_peak_of_a_step_leaves_no_room(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t block = take_on_host(16 * MIB);
    oomph_step();
    for (int i = 0; i < 3; i++) {
        step(50 * MIB);
        CHECK(tier_of(block) == OOMPH_TIER_HOST);
    }
    CHECK(stats_of(0).swap_drains == 0 && stats_of(0).rescues == 1);
    step(46 * MIB); // beside it there is just room
    CHECK(tier_of(block) == OOMPH_TIER_DEVICE);
    step(46 * MIB);
    CHECK(stats_of(0).rescues == 1);
}

static void what_lay_on_the_host_at_the_peak_takes_no_room(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t block = take_on_host(8 * MIB);
    oomph_move_t away = {.addr = take(32 * MIB, NULL)};
    size_t moved_bytes;
    CHECK(oomph_mark_idle(away.addr) == OOMPH_OK);
    CHECK(oomph_move(0, OOMPH_TIER_HOST, &away, 1, &moved_bytes) == OOMPH_OK);
    oomph_step();
    step(40 * MIB); // with 40 MiB on the host beside it
    CHECK(tier_of(block) == OOMPH_TIER_DEVICE);
    CHECK(tier_of(away.addr) == OOMPH_TIER_HOST);
    step(40 * MIB);
    CHECK(stats_of(0).rescues == 1);
}

static void what_other_streams_still_used_at_the_peak_takes_room(void)
{
    start("64MiB,context=0,memory=real");
    oomph_stream_t other = new_stream();
    oomph_addr_t block = take_on_host(16 * MIB);
    oomph_step();
    oomph_addr_t first = take(32 * MIB, NULL);
    CHECK(oomph_record_stream(first, 0, other, true) == OOMPH_OK);
    oomph_sim_hold(other);
    CHECK(oomph_sim_launch(other, first, MIB, 0, 1000) == 0);
    give(first);
    give(take(28 * MIB, NULL));
    oomph_sim_release(other);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    step(MIB);
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
    step(MIB);
    CHECK(tier_of(block) == OOMPH_TIER_DEVICE);
}

static void a_predicted_block_that_stays_returns_like_any_other(void)
{
    start("64MiB,context=0,memory=real");
    give(take_on_host(16 * MIB));
    oomph_step();
    CHECK(oomph_predict_host(0, 4 * MIB, 4 * MIB) == OOMPH_OK);
    oomph_addr_t block = take_on_host(16 * MIB);
    CHECK(stats_of(0).rescues == 1 && stats_of(0).predicted_count == 1);
    oomph_step();
    step(50 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
    step(32 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_DEVICE);
    CHECK(is_marked(block, 16 * MIB, block));
}

static void resetting_the_peak_does_not_make_room(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t block = take_on_host(16 * MIB);
    oomph_step();
    give(take(50 * MIB, NULL));
    CHECK(oomph_reset_peak_stats(0) == OOMPH_OK);
    oomph_step();
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
}

static void the_peak_that_is_told_does_not_end_with_a_step(void)
{
    start("64MiB,context=0,memory=real");
    give(take(40 * MIB, NULL));
    oomph_step();
    give(take(8 * MIB, NULL));
    CHECK(stats_of(0).active_bytes[0].peak == 40 * MIB);
    CHECK(oomph_reset_peak_stats(0) == OOMPH_OK);
    give(take(8 * MIB, NULL));
    oomph_step();
    CHECK(stats_of(0).active_bytes[0].peak == 8 * MIB);
}

static void the_reserve_is_left(void)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 256 * MIB;
    config.reserve_bytes = 8 * MIB;
    start_card("72MiB,context=0,memory=real", &config);
    oomph_addr_t block = take_on_host(16 * MIB);
    oomph_step();
    step(50 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
    step(46 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_DEVICE);
}

static void the_oldest_return_first(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t old = take_on_host(8 * MIB);
    step(60 * MIB);
    oomph_addr_t young = take_on_host(16 * MIB);
    step(60 * MIB);
    CHECK(tier_of(old) == OOMPH_TIER_HOST);
    step(46 * MIB);
    CHECK(tier_of(old) == OOMPH_TIER_DEVICE);
    CHECK(tier_of(young) == OOMPH_TIER_HOST);
    step(38 * MIB);
    CHECK(tier_of(young) == OOMPH_TIER_DEVICE);
}

static void of_the_same_age_the_largest_return_first(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t small = take_on_host(8 * MIB), large = take_on_host(16 * MIB);
    step(60 * MIB);
    step(46 * MIB);
    CHECK(tier_of(small) == OOMPH_TIER_HOST);
    CHECK(tier_of(large) == OOMPH_TIER_DEVICE);
}

static void it_stays_if_the_settings_say_so(void)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 256 * MIB;
    config.promote = false;
    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t block = take_on_host(16 * MIB);
    for (int i = 0; i < 4; i++)
        step(8 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
}

static void *end_step(void *unused)
{
    oomph_step();
    return unused;
}

static void it_stays_where_several_threads_end_steps(void)
{
    pthread_t thread;

    start("64MiB,context=0,memory=real");
    oomph_addr_t block = take_on_host(16 * MIB);
    oomph_step();
    CHECK(pthread_create(&thread, NULL, end_step, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    for (int i = 0; i < 4; i++)
        step(8 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
}

static void what_was_moved_as_idle_returns_when_there_is_room(void)
{
    start("64MiB,context=0,memory=real");
    oomph_move_t move = {.addr = take(16 * MIB, NULL)};
    size_t moved_bytes;
    mark(move.addr, 16 * MIB, 5);
    CHECK(oomph_mark_idle(move.addr) == OOMPH_OK);
    CHECK(oomph_move_idle(0, &move, 1, &moved_bytes) == OOMPH_OK);
    CHECK(moved_bytes == 16 * MIB && tier_of(move.addr) == OOMPH_TIER_HOST);
    for (int i = 0; i < 2; i++)
        step(56 * MIB); // beside it there is no room
    CHECK(tier_of(move.addr) == OOMPH_TIER_HOST);
    for (int i = 0; i < 2; i++)
        step(32 * MIB);
    CHECK(tier_of(move.addr) == OOMPH_TIER_DEVICE);
    CHECK(is_marked(move.addr, 16 * MIB, 5));
}

static void what_is_not_idle_is_not_moved_as_idle(void)
{
    start("64MiB,context=0,memory=real");
    oomph_move_t move = {.addr = take(16 * MIB, NULL)};
    size_t moved_bytes = 1;
    CHECK(oomph_move_idle(0, &move, 1, &moved_bytes) == OOMPH_OK);
    CHECK(moved_bytes == 0 && tier_of(move.addr) == OOMPH_TIER_DEVICE);
}

static void what_its_user_evicted_stays(void)
{
    size_t moved_bytes;

    start("64MiB,context=0,memory=real");
    oomph_move_t move = {.addr = take(16 * MIB, NULL)};
    CHECK(oomph_mark_idle(move.addr) == OOMPH_OK);
    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == OOMPH_OK);
    for (int i = 0; i < 4; i++)
        step(8 * MIB);
    CHECK(tier_of(move.addr) == OOMPH_TIER_HOST);
    CHECK(stats_of(0).promoted_bytes == 0);
}

static void a_promotion_in_vain_is_not_tried_again_while_memory_is_short(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t first = take_on_host(16 * MIB);
    oomph_step();
    step(8 * MIB);
    CHECK(tier_of(first) == OOMPH_TIER_DEVICE);
    oomph_addr_t second = take(60 * MIB, NULL); // a rescue soon after
    CHECK(tier_of(second) == OOMPH_TIER_HOST);
    CHECK(oomph_mark_idle(second) == OOMPH_OK);
    oomph_step();
    step(8 * MIB);
    CHECK(tier_of(second) == OOMPH_TIER_HOST);
    give(first);
    for (int i = 0; i < 12; i++)
        step(2 * MIB);
    CHECK(tier_of(second) == OOMPH_TIER_DEVICE);
}

static void host_pages_go_when_nothing_lies_there(void)
{
    start("64MiB,context=0,memory=real");
    take_on_host(16 * MIB);
    for (int i = 0; i < 8; i++)
        step(8 * MIB);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 0);
    CHECK(sim_stats_of(0).host_bytes == 0);
}

static void a_step_ends_well_while_a_stream_captures(void)
{
    CUgraph captured = NULL;

    start("64MiB,context=0,memory=real");
    oomph_addr_t block = take_on_host(16 * MIB);
    oomph_step();
    oomph_stream_t stream = new_stream();
    CHECK(oomph_pool_begin(0, (oomph_pool_id_t){1, 0}, stream, true) == OOMPH_OK);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    step(8 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
    CHECK(cuStreamEndCapture(stream, &captured) == CUDA_SUCCESS);
    CHECK(oomph_pool_end(0, stream, true) == OOMPH_OK);
    step(8 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_DEVICE);
    CHECK(stats_of(0).swap_failures == 0);
}

static void a_move_that_fails_at_the_end_of_a_step_is_counted(void)
{
    start("64MiB,context=0,memory=real");
    oomph_addr_t block = take_on_host(16 * MIB);
    oomph_step();
    fail_always("copy_all", OOMPH_ERR_DRIVER);
    step(8 * MIB);
    CHECK(stats_of(0).swap_failures == 1);
    CHECK(is_marked(block, 16 * MIB, block));
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(a_survivor_returns_after_a_whole_step),
        TEST(what_nobody_said_to_rest_between_steps_stays),
        TEST(what_is_to_stay_stays_until_it_rests_again),
        TEST(a_block_rests_until_it_is_freed),
        TEST(what_came_in_the_place_of_one_that_rested_stays),
        TEST(a_page_that_one_uses_who_does_not_rest_stays),
        TEST(a_block_that_lives_for_a_step_alone_does_not),
        TEST(it_stays_where_the_peak_of_a_step_leaves_no_room),
        TEST(what_lay_on_the_host_at_the_peak_takes_no_room),
        TEST(what_other_streams_still_used_at_the_peak_takes_room),
        TEST(a_predicted_block_that_stays_returns_like_any_other),
        TEST(resetting_the_peak_does_not_make_room),
        TEST(the_peak_that_is_told_does_not_end_with_a_step),
        TEST(the_reserve_is_left),
        TEST(the_oldest_return_first),
        TEST(of_the_same_age_the_largest_return_first),
        TEST(it_stays_if_the_settings_say_so),
        TEST(it_stays_where_several_threads_end_steps),
        TEST(what_was_moved_as_idle_returns_when_there_is_room),
        TEST(what_is_not_idle_is_not_moved_as_idle),
        TEST(what_its_user_evicted_stays),
        TEST(a_promotion_in_vain_is_not_tried_again_while_memory_is_short),
        TEST(host_pages_go_when_nothing_lies_there),
        TEST(a_step_ends_well_while_a_stream_captures),
        TEST(a_move_that_fails_at_the_end_of_a_step_is_counted),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
