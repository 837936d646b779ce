/* Blocks that lie on device pages as far as there are any, and then on host pages. */
#include "card.h"

static oomph_block_info_t info_of(oomph_addr_t addr)
{
    oomph_block_info_t info;

    CHECK(oomph_lookup(addr, &info) == OOMPH_OK);
    return info;
}

static size_t move_to(oomph_tier_t tier, oomph_addr_t addr)
{
    oomph_move_t move = {.addr = addr};
    size_t moved_bytes = 0;

    CHECK(oomph_move(0, tier, &move, 1, &moved_bytes) == OOMPH_OK);
    CHECK(move.outcome == OOMPH_OUTCOME_THERE);
    return moved_bytes;
}

#define CARD "128MiB,context=0,memory=real"

// With host memory that is tried while there is room on the card.
static void start_limited(const char *card, size_t host_limit_bytes)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = host_limit_bytes;
    start_card(card, &config);
    oomph_addr_t block = take_living(4 * MIB, NULL);
    move_to(OOMPH_TIER_HOST, block);
    give(block);
}

static void start(const char *card)
{
    start_limited(card, 256 * MIB);
}

static void what_is_missing_lies_on_the_host(void)
{
    start(CARD);
    oomph_addr_t large = take_living(80 * MIB, NULL);
    mark(large, 80 * MIB, 1ull << 40);
    oomph_addr_t split = take_living(64 * MIB, NULL);
    oomph_block_info_t info = info_of(split);
    CHECK(info.tier == OOMPH_TIER_HOST && info.host_bytes == 16 * MIB);
    CHECK(stats_of(0).rescues == 1 && stats_of(0).rescued_bytes == 16 * MIB);
    CHECK(stats_of(0).host_block_bytes == 16 * MIB);
    mark(split, 64 * MIB, 2ull << 40);
    check_sound();
    CHECK(is_marked(large, 80 * MIB, 1ull << 40));
    CHECK(is_marked(split, 64 * MIB, 2ull << 40));
    oomph_step();
    oomph_step();
    CHECK(stats_of(0).step_host_used_bytes == 16 * MIB); // it has stayed for a step
    give(split);
    CHECK(stats_of(0).host_block_bytes == 0);
    check_sound();
    CHECK(info_of(take_living(48 * MIB, NULL)).tier == OOMPH_TIER_DEVICE);
    CHECK(is_marked(large, 80 * MIB, 1ull << 40));
    check_sound();
}

static void its_end_may_share_a_page(void)
{
    start(CARD);
    take_living(80 * MIB, NULL);
    oomph_addr_t split = take_living(63 * MIB, NULL);
    mark(split, 63 * MIB, 1ull << 40);
    CHECK(info_of(split).host_bytes == 15 * MIB);
    oomph_addr_t beside = take_living(MIB + 512, NULL); // more than what is left there
    mark(beside, MIB + 512, 2ull << 40);
    check_sound();
    give(split);
    check_sound();
    CHECK(is_marked(beside, MIB + 512, 2ull << 40));
}

static void the_next_rescue_in_a_step_leaves_twice_as_much(void)
{
    start("512MiB,context=0,memory=real");
    take_living(416 * MIB, NULL);
    size_t last = 0;
    for (int i = 0; i < 3; i++) {
        oomph_addr_t split = take_living(98 * MIB, NULL);
        size_t host_bytes = info_of(split).host_bytes;
        CHECK(host_bytes > last && host_bytes < 98 * MIB);
        last = host_bytes;
        give(split);
    }
    check_sound();
}

static void a_predicted_block_leaves_what_is_wanted(void)
{
    start(CARD);
    take_living(80 * MIB, NULL);
    oomph_addr_t split = take_living(64 * MIB, NULL);
    CHECK(info_of(split).host_bytes == 16 * MIB);
    give(split);
    oomph_step();
    CHECK(oomph_predict_host(0, 60 * MIB, 24 * MIB) == OOMPH_OK);
    split = take_living(64 * MIB, NULL);
    CHECK(info_of(split).host_bytes == 24 * MIB);
    CHECK(stats_of(0).rescues == 1);
    give(split);
    oomph_step();
    CHECK(oomph_predict_host(0, 60 * MIB, 4 * MIB) == OOMPH_OK);
    split = take_living(64 * MIB, NULL);
    CHECK(info_of(split).host_bytes == 16 * MIB); // what is missing, at least
    check_sound();
}

static void it_moves_as_a_whole(void)
{
    start(CARD);
    oomph_addr_t large = take_living(80 * MIB, NULL);
    oomph_addr_t split = take_living(64 * MIB, NULL);
    mark(split, 64 * MIB, 1ull << 40);
    CHECK(move_to(OOMPH_TIER_HOST, split) == 48 * MIB);
    CHECK(info_of(split).host_bytes == 64 * MIB);
    CHECK(stats_of(0).host_block_bytes == 64 * MIB);
    CHECK(is_marked(split, 64 * MIB, 1ull << 40));
    check_sound();
    give(large);
    CHECK(move_to(OOMPH_TIER_DEVICE, split) == 64 * MIB);
    CHECK(info_of(split).host_bytes == 0 && stats_of(0).host_block_bytes == 0);
    CHECK(is_marked(split, 64 * MIB, 1ull << 40));
    check_sound();

    take_living(48 * MIB, NULL);
    oomph_addr_t again = take_living(48 * MIB, NULL);
    mark(again, 48 * MIB, 2ull << 40);
    CHECK(info_of(again).host_bytes == 32 * MIB);
    give(split);
    CHECK(move_to(OOMPH_TIER_DEVICE, again) == 32 * MIB);
    CHECK(is_marked(again, 48 * MIB, 2ull << 40));
    check_sound();
}

static void one_that_is_named_twice_moves_once(void)
{
    start(CARD);
    oomph_addr_t large = take_living(80 * MIB, NULL);
    oomph_addr_t split = take_living(64 * MIB, NULL);
    oomph_move_t moves[] = {{.addr = split}, {.addr = split}};
    size_t moved_bytes;

    give(large);
    CHECK(oomph_move(0, OOMPH_TIER_DEVICE, moves, 2, &moved_bytes) == OOMPH_OK);
    CHECK(moved_bytes == 16 * MIB && stats_of(0).host_block_bytes == 0);
    check_sound();
}

static void it_waits_for_pages_whose_work_has_not_finished(void)
{
    start(CARD);
    oomph_stream_t side = new_stream();
    take_living(64 * MIB, NULL);
    oomph_addr_t busy = take_living(48 * MIB, side);
    CHECK(oomph_sim_launch(side, busy, 48 * MIB, 1, 1000000) == 0);
    give(busy);
    oomph_addr_t split = take_living(96 * MIB, NULL);
    CHECK(info_of(split).host_bytes == 32 * MIB);
    mark(split, 96 * MIB, 1ull << 40);
    check_sound();
}

static void small_blocks_and_buffers_are_not_split(void)
{
    oomph_addr_t copy;

    start(CARD);
    take_living(120 * MIB, NULL);
    CHECK(info_of(take_living(12 * MIB, NULL)).host_bytes == 12 * MIB);
    CHECK(oomph_buffer(0, 64 * MIB, NULL, &copy) == OOMPH_OK);
    CHECK(info_of(copy).host_bytes == 64 * MIB);
    check_sound();
}

static void where_no_copy_goes_across_it_lies_on_the_host(void)
{
    fail_always("time_copy", OOMPH_ERR_DRIVER);
    start(CARD);
    fail_always(NULL, OOMPH_OK);
    take_living(80 * MIB, NULL);
    CHECK(info_of(take_living(64 * MIB, NULL)).host_bytes == 64 * MIB);
    check_sound();
}

static void little_host_memory_is_enough_for_what_is_missing(void)
{
    start_limited(CARD, 16 * MIB);
    take_living(80 * MIB, NULL);
    CHECK(info_of(take_living(60 * MIB, NULL)).host_bytes == 12 * MIB);
    check_sound();
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(what_is_missing_lies_on_the_host),
        TEST(its_end_may_share_a_page),
        TEST(the_next_rescue_in_a_step_leaves_twice_as_much),
        TEST(a_predicted_block_leaves_what_is_wanted),
        TEST(it_moves_as_a_whole),
        TEST(one_that_is_named_twice_moves_once),
        TEST(it_waits_for_pages_whose_work_has_not_finished),
        TEST(small_blocks_and_buffers_are_not_split),
        TEST(where_no_copy_goes_across_it_lies_on_the_host),
        TEST(little_host_memory_is_enough_for_what_is_missing),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
