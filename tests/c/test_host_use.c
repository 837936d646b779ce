/* What a step used on host pages, whatever had put it there. */
#include "card.h"

#include <cuda.h>

static const oomph_pool_id_t GRAPH = {0, 1};

static void start(oomph_host_kind_t kind)
{
    oomph_config_t config = test_config();

    config.host_kind = kind;
    config.host_limit_bytes = 256 * MIB;
    start_card("64MiB,context=0,memory=real", &config);
}

// A block that finds a card of 64 MiB full for that moment.
static oomph_addr_t take_on_host(size_t bytes)
{
    oomph_addr_t large = take(64 * MIB, NULL), block = take(bytes, NULL);

    give(large);
    return block;
}

// Ends the step; gives the MiB that it used on the host.
static size_t end_step(void)
{
    int64_t before_bytes = stats_of(0).host_used_bytes;

    oomph_step();
    check_sound();
    oomph_stats_t stats = stats_of(0);
    CHECK(stats.host_used_bytes >= before_bytes && stats.step_host_used_bytes >= 0);
    return (size_t)stats.step_host_used_bytes / MIB;
}

static void a_step_that_fits_used_nothing(void)
{
    start(OOMPH_HOST_AUTO);
    give(take(64 * MIB, NULL));
    CHECK(end_step() == 0 && stats_of(0).host_used_bytes == 0);
}

static void what_falls_back_counts_once_for_each_block(void)
{
    start(OOMPH_HOST_AUTO);
    give(take_on_host(16 * MIB));
    give(take_on_host(8 * MIB));
    CHECK(stats_of(0).host_used_bytes == 24 * MIB);
    CHECK(end_step() == 24 && end_step() == 0);
    CHECK(stats_of(0).host_used_bytes == 24 * MIB);
}

static void what_was_predicted_counts_though_nothing_was_rescued(void)
{
    start(OOMPH_HOST_AUTO);
    CHECK(oomph_predict_host(0, 4 * MIB, 4 * MIB) == OOMPH_OK);
    for (int i = 0; i < 4; i++) {
        give(take_on_host(16 * MIB));
        CHECK(end_step() == 16 && stats_of(0).step_rescues == (i == 0));
    }
    CHECK(stats_of(0).host_used_bytes == 64 * MIB);
}

static void page_locked_blocks_count_as_well(void)
{
    start(OOMPH_HOST_PINNED);
    give(take_on_host(16 * MIB));
    CHECK(end_step() == 16);
}

static void small_blocks_count_as_well(void)
{
    start(OOMPH_HOST_AUTO);
    oomph_addr_t large = take(64 * MIB, NULL);
    for (size_t i = 0; i < 4; i++)
        take(MIB, NULL);
    give(large);
    CHECK(end_step() == 4 && end_step() == 4);
}

static void what_stays_counts_again_in_each_step(void)
{
    start(OOMPH_HOST_AUTO);
    oomph_addr_t block = take_on_host(16 * MIB);
    CHECK(end_step() == 16 && end_step() == 16 && end_step() == 16);
    give(block);
    CHECK(end_step() == 0);
    CHECK(stats_of(0).host_used_bytes == 48 * MIB);
}

static void what_is_left_over_for_the_next_step_to_free_counts_once(void)
{
    start(OOMPH_HOST_AUTO);
    oomph_addr_t gradient = take_on_host(16 * MIB);
    CHECK(end_step() == 16);
    for (int i = 0; i < 3; i++) {
        give(gradient);
        gradient = take_on_host(16 * MIB);
        CHECK(end_step() == 16);
    }
}

static void what_the_user_moves_to_the_host_counts_until_it_returns(void)
{
    start(OOMPH_HOST_AUTO);
    oomph_move_t move = {.addr = take(16 * MIB, NULL)};
    size_t moved_bytes;
    CHECK(end_step() == 0);
    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == OOMPH_OK);
    CHECK(end_step() == 16 && end_step() == 16);
    CHECK(oomph_move(0, OOMPH_TIER_DEVICE, &move, 1, &moved_bytes) == OOMPH_OK);
    CHECK(end_step() == 0);
    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == OOMPH_OK);
    CHECK(end_step() == 16); // it came anew, and was not there before
}

static void what_leaves_between_steps_counts_unless_it_is_worked_on_in_copies(void)
{
    start(OOMPH_HOST_AUTO);
    oomph_move_t moves[] = {{.addr = take(16 * MIB, NULL)},
                            {.addr = take(8 * MIB, NULL)}};
    size_t moved_bytes;
    CHECK(oomph_mark_idle(moves[0].addr) == OOMPH_OK);
    CHECK(oomph_mark_idle(moves[1].addr) == OOMPH_OK);
    CHECK(end_step() == 0);
    CHECK(oomph_move_idle(0, moves, 2, &moved_bytes) == OOMPH_OK);
    CHECK(moved_bytes == 24 * MIB && stats_of(0).host_used_bytes == 0);
    CHECK(oomph_unmark_idle(moves[0].addr) == OOMPH_OK); // neither returns
    CHECK(oomph_unmark_idle(moves[1].addr) == OOMPH_OK);
    CHECK(oomph_mark_copied(moves[0].addr) == OOMPH_OK);
    CHECK(end_step() == 8);
    CHECK(end_step() == 24);
}

static void what_returns_when_a_step_ends_was_used_in_that_step(void)
{
    start(OOMPH_HOST_AUTO);
    CHECK(oomph_mark_idle(take_on_host(16 * MIB)) == OOMPH_OK);
    CHECK(end_step() == 16);
    CHECK(end_step() == 16 && stats_of(0).promoted_bytes == 16 * MIB);
    CHECK(end_step() == 0);
}

static void buffers_of_our_own_copies_do_not_count(void)
{
    oomph_addr_t buffer;

    start(OOMPH_HOST_AUTO);
    give(take(MIB, NULL));
    CHECK(oomph_buffer(0, 16 * MIB, NULL, &buffer) == OOMPH_OK);
    CHECK(end_step() == 0 && end_step() == 0);
    give(buffer);
}

static void what_was_worked_on_in_copies_alone_does_not_count_in_that_step(void)
{
    start(OOMPH_HOST_AUTO);
    oomph_addr_t state = take_on_host(16 * MIB);
    CHECK(oomph_mark_copied(state) == OOMPH_OK);
    CHECK(end_step() == 16); // it was made there in this one
    CHECK(oomph_mark_copied(state) == OOMPH_OK);
    CHECK(end_step() == 0);
    CHECK(end_step() == 16);
    give(state);
    CHECK(oomph_mark_copied(state) == OOMPH_ERR_INVALID);
}

/* ---- Graphs */

static oomph_addr_t capture(oomph_stream_t stream, size_t bytes)
{
    oomph_request_t request = {
        .bytes = bytes, .stream = stream, .stream_lives = true, .pool = GRAPH};
    oomph_addr_t block;
    CUgraph graph;

    CHECK(oomph_pool_begin(0, GRAPH, stream, true) == OOMPH_OK);
    CHECK(cuStreamBeginCapture((CUstream)stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
          CUDA_SUCCESS);
    CHECK(oomph_malloc(&request, &block) == OOMPH_OK);
    CHECK(cuStreamEndCapture((CUstream)stream, &graph) == CUDA_SUCCESS);
    CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    CHECK(oomph_pool_end(0, stream, true) == OOMPH_OK);
    return block;
}

// A step that shows what a capture will need, then one with 56 MiB that stay, so that
// the capture's pool gets host memory.
static oomph_stream_t prepare_capture(oomph_host_kind_t kind)
{
    start(kind);
    give(take(MIB, NULL));
    oomph_step();
    give(take(40 * MIB, NULL));
    oomph_step();
    take(56 * MIB, NULL);
    return new_stream();
}

static void what_a_graph_captured_counts_in_each_step_until_it_is_gone(void)
{
    oomph_stream_t stream = prepare_capture(OOMPH_HOST_AUTO);
    give(capture(stream, 16 * MIB)); // replays use it all the same
    CHECK(stats_of(0).host_used_bytes == 16 * MIB);
    CHECK(end_step() == 16); // not what was laid in and is not used
    CHECK(end_step() == 16);
    CHECK(oomph_pool_release(0, GRAPH) == OOMPH_OK);
    CHECK(end_step() == 0);
}

static void what_a_graph_captured_of_page_locked_memory_counts(void)
{
    oomph_stream_t stream = prepare_capture(OOMPH_HOST_PINNED);
    oomph_addr_t block = capture(stream, 16 * MIB);
    CHECK(end_step() == 16);
    size_t kept = end_step(); // whole pieces
    CHECK(kept >= 16 && kept < 64 && end_step() == kept);
    give(block);
    CHECK(end_step() == kept);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(a_step_that_fits_used_nothing),
        TEST(what_falls_back_counts_once_for_each_block),
        TEST(what_was_predicted_counts_though_nothing_was_rescued),
        TEST(page_locked_blocks_count_as_well),
        TEST(small_blocks_count_as_well),
        TEST(what_stays_counts_again_in_each_step),
        TEST(what_is_left_over_for_the_next_step_to_free_counts_once),
        TEST(what_the_user_moves_to_the_host_counts_until_it_returns),
        TEST(what_leaves_between_steps_counts_unless_it_is_worked_on_in_copies),
        TEST(what_returns_when_a_step_ends_was_used_in_that_step),
        TEST(buffers_of_our_own_copies_do_not_count),
        TEST(what_was_worked_on_in_copies_alone_does_not_count_in_that_step),
        TEST(what_a_graph_captured_counts_in_each_step_until_it_is_gone),
        TEST(what_a_graph_captured_of_page_locked_memory_counts),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
