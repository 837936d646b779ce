/* Room for what a graph captures is made before the capture begins, if it is missing.
 */
#include "card.h"

#include <cuda.h>
#include <stdlib.h>

static const oomph_pool_id_t GRAPH = {0, 1};
static oomph_addr_t idle[4];
static size_t idle_count;
static int asked;

// What the embedder says.
static size_t list_idle(int device, oomph_addr_t **addrs)
{
    CHECK(device == 0);
    asked++;
    *addrs = malloc(sizeof idle);
    CHECK(*addrs != NULL);
    for (size_t i = 0; i < idle_count; i++)
        (*addrs)[i] = idle[i];
    return idle_count;
}

static void start_with(oomph_host_kind_t kind, size_t host_bytes)
{
    oomph_config_t config = test_config();
    oomph_hooks_t hooks = {.idle_blocks = list_idle};

    config.host_kind = kind;
    config.host_limit_bytes = host_bytes;
    start_card("64MiB,context=0,memory=real", &config);
    oomph_set_hooks(&hooks);
    idle_count = 0;
    asked = 0;
}

static void start(void)
{
    start_with(OOMPH_HOST_AUTO, 256 * MIB);
}

static oomph_tier_t tier_of(oomph_addr_t addr)
{
    oomph_block_info_t info;

    CHECK(oomph_lookup(addr, &info) == OOMPH_OK);
    return info.tier;
}

static oomph_addr_t take_idle(size_t bytes)
{
    oomph_addr_t block = take(bytes, NULL);

    mark(block, bytes, block);
    idle[idle_count++] = block;
    return block;
}

// A step with so much in use at its peak, beside what stays.
static void step(size_t bytes)
{
    give(take(bytes, NULL));
    oomph_step();
    check_sound();
}

static void begin_capture(oomph_stream_t stream)
{
    CHECK(oomph_pool_begin(0, GRAPH, stream, true) == OOMPH_OK);
    CHECK(cuStreamBeginCapture((CUstream)stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
          CUDA_SUCCESS);
}

static void end_capture(oomph_stream_t stream)
{
    CUgraph graph;

    CHECK(cuStreamEndCapture((CUstream)stream, &graph) == CUDA_SUCCESS);
    CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    CHECK(oomph_pool_end(0, stream, true) == OOMPH_OK);
}

static oomph_status_t try_capture(oomph_stream_t stream, size_t bytes,
                                  oomph_addr_t *addr)
{
    oomph_request_t request = {
        .bytes = bytes, .stream = stream, .stream_lives = true, .pool = GRAPH};

    begin_capture(stream);
    oomph_status_t status = oomph_malloc(&request, addr);
    end_capture(stream);
    check_sound();
    return status;
}

static oomph_addr_t capture(oomph_stream_t stream, size_t bytes)
{
    oomph_addr_t block;

    CHECK(try_capture(stream, bytes, &block) == OOMPH_OK);
    return block;
}

static void what_rests_leaves_for_a_capture_that_would_find_no_room(void)
{
    start();
    oomph_stream_t stream = new_stream();
    step(MIB);
    step(40 * MIB);
    oomph_addr_t state = take_idle(32 * MIB);
    oomph_addr_t block = capture(stream, 40 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_DEVICE && tier_of(state) == OOMPH_TIER_HOST);
    CHECK(is_marked(state, 32 * MIB, state));
    CHECK(stats_of(0).evicted_bytes == 32 * MIB && stats_of(0).rescues == 0);
}

static void no_more_leaves_than_is_missing_the_first_named_first(void)
{
    start();
    oomph_stream_t stream = new_stream();
    step(MIB);
    step(40 * MIB);
    oomph_addr_t first = take_idle(8 * MIB), second = take_idle(8 * MIB);
    capture(stream, 40 * MIB); // 50 are expected beside 16
    CHECK(tier_of(first) == OOMPH_TIER_HOST && tier_of(second) == OOMPH_TIER_DEVICE);
}

static oomph_addr_t take_workspace(oomph_stream_t stream)
{
    oomph_request_t request = {.bytes = 16 * MIB,
                               .stream = stream,
                               .stream_lives = true,
                               .may_use_reserve = true};
    oomph_addr_t addr;

    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK);
    return addr;
}

static void a_stream_without_workspaces_will_want_them_in_the_capture(void)
{
    start();
    oomph_stream_t stream = new_stream();
    take_workspace(NULL);
    step(MIB);
    step(20 * MIB);
    oomph_addr_t state = take_idle(16 * MIB); // 32 MiB are free, 41 expected
    capture(stream, 20 * MIB);
    CHECK(tier_of(state) == OOMPH_TIER_HOST);
}

static void a_stream_that_has_had_workspaces_wants_no_more_of_them(void)
{
    start();
    oomph_stream_t stream = new_stream();
    give(take_workspace(stream));
    step(MIB);
    step(20 * MIB);
    take_idle(32 * MIB); // 32 MiB are free, 25 expected
    capture(stream, 20 * MIB);
    CHECK(asked == 0 && stats_of(0).evicted_bytes == 0);
}

static void where_there_is_room_nothing_moves_and_nobody_waits(void)
{
    start();
    oomph_stream_t stream = new_stream();
    step(MIB);
    step(24 * MIB);
    take_idle(32 * MIB);
    int64_t syncs = stats_of(0).sync_count;
    capture(stream, 24 * MIB);
    oomph_stats_t stats = stats_of(0);
    CHECK(asked == 0 && stats.evicted_bytes == 0 && stats.swap_drains == 0);
    CHECK(stats.sync_count == syncs && stats.tier_bytes[OOMPH_TIER_HOST] == 0);
}

static void what_is_missing_still_is_ready_on_the_host(void)
{
    start();
    oomph_stream_t stream = new_stream();
    oomph_addr_t busy = take(32 * MIB, NULL);
    step(MIB);
    step(40 * MIB); // falls back to the host
    oomph_addr_t block = capture(stream, 40 * MIB);
    CHECK(tier_of(busy) == OOMPH_TIER_DEVICE && tier_of(block) == OOMPH_TIER_HOST);
    mark(block, 40 * MIB, 7);
    CHECK(is_marked(block, 40 * MIB, 7));
}

static void small_blocks_find_it_too(void)
{
    start();
    oomph_stream_t stream = new_stream();
    take(32 * MIB, NULL);
    step(MIB);
    step(40 * MIB);
    take(32 * MIB, NULL); // the device is full
    oomph_addr_t block = capture(stream, 2048);
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
    mark(block, 2048, 7);
    CHECK(is_marked(block, 2048, 7));
    give(block);
    check_sound();
}

static void a_stream_that_joins_the_capture_finds_it_too(void)
{
    start();
    oomph_stream_t stream = new_stream(), other = new_stream();
    oomph_request_t request = {
        .bytes = 8 * MIB, .stream = other, .stream_lives = true, .pool = GRAPH};
    oomph_addr_t first, block;

    take(32 * MIB, NULL);
    step(MIB);
    step(40 * MIB);
    take(32 * MIB, NULL); // the device is full
    begin_capture(stream);
    CHECK(oomph_malloc(&request, &block) == OOMPH_OK);
    mark(block, 8 * MIB, 7);
    request.stream = stream;
    CHECK(oomph_malloc(&request, &first) == OOMPH_OK);
    mark(first, 8 * MIB, 8);
    give(block); // the graph may still use it,
    request.bytes = 4 * MIB;
    CHECK(oomph_malloc(&request, &first) == OOMPH_OK); // and no other stream
    CHECK(first < block || first >= block + 8 * MIB);
    end_capture(stream);
    CHECK(tier_of(first) == OOMPH_TIER_HOST && is_marked(block, 8 * MIB, 7));
    check_sound();
}

static void *capture_elsewhere(void *stream)
{
    oomph_addr_t block;

    try_capture(stream, 40 * MIB, &block);
    return NULL;
}

static void another_thread_than_the_one_that_ends_steps_moves_nothing(void)
{
    pthread_t thread;

    start();
    oomph_stream_t stream = new_stream();
    step(MIB);
    step(40 * MIB);
    oomph_addr_t state = take_idle(32 * MIB);
    CHECK(pthread_create(&thread, NULL, capture_elsewhere, stream) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(asked == 0 && tier_of(state) == OOMPH_TIER_DEVICE);
}

static void a_mem_pool_gets_no_room(void)
{
    start();
    oomph_stream_t stream = new_stream();
    oomph_addr_t block;
    step(MIB);
    step(40 * MIB);
    oomph_addr_t state = take_idle(32 * MIB);
    CHECK(oomph_pool_retain(0, GRAPH) == OOMPH_OK);
    CHECK(try_capture(stream, 40 * MIB, &block) == OOMPH_ERR_NO_MEMORY);
    CHECK(asked == 0 && tier_of(state) == OOMPH_TIER_DEVICE);
}

static void captures_that_go_on_do_not_move_blocks_to_and_fro(void)
{
    start();
    oomph_stream_t stream = new_stream();
    step(MIB);
    step(40 * MIB);
    oomph_addr_t state = take_idle(32 * MIB);
    for (int i = 0; i < 40; i++) {
        give(capture(stream, 40 * MIB));
        CHECK(oomph_pool_release(0, GRAPH) == OOMPH_OK);
        step(MIB);
    }
    CHECK(tier_of(state) == OOMPH_TIER_HOST && is_marked(state, 32 * MIB, state));
    CHECK(stats_of(0).evicted_bytes == 32 * MIB && stats_of(0).promoted_bytes == 0);
}

static void once_captures_are_over_what_left_returns(void)
{
    start();
    oomph_stream_t stream = new_stream();
    step(MIB);
    step(40 * MIB);
    oomph_addr_t state = take_idle(32 * MIB);
    give(capture(stream, 40 * MIB));
    CHECK(oomph_pool_release(0, GRAPH) == OOMPH_OK);
    for (int i = 0; i < 20; i++)
        step(MIB);
    CHECK(tier_of(state) == OOMPH_TIER_DEVICE && is_marked(state, 32 * MIB, state));
}

static void check_unused(oomph_host_kind_t kind)
{
    start_with(kind, 64 * MIB);
    oomph_stream_t stream = new_stream();
    step(MIB);
    step(40 * MIB);
    oomph_addr_t kept = take(48 * MIB, NULL);
    CHECK(tier_of(capture(stream, 2 * MIB)) == OOMPH_TIER_DEVICE);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] > (int64_t)(16 * MIB));
    oomph_addr_t block = take(48 * MIB, NULL);
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
    give(block);
    give(kept);
    check_sound();
}

static void others_get_host_memory_that_no_capture_has_used(void)
{
    check_unused(OOMPH_HOST_AUTO);
}

static void others_get_page_locked_memory_that_no_capture_has_used(void)
{
    check_unused(OOMPH_HOST_PINNED);
}

// Host memory serves the capture in part; what it has had stays, the rest is for
// others.
static void check_partly_used(oomph_host_kind_t kind, size_t others_bytes)
{
    start_with(kind, 64 * MIB);
    oomph_stream_t stream = new_stream();
    oomph_addr_t first = take(24 * MIB, NULL), second = take(24 * MIB, NULL);
    step(MIB);
    step(24 * MIB); // falls back to the host
    oomph_addr_t block = capture(stream, 18 * MIB);
    CHECK(tier_of(block) == OOMPH_TIER_HOST);
    mark(block, 18 * MIB, 7);
    give(block); // the graph may still use it
    oomph_addr_t other = take(others_bytes, NULL);
    CHECK(tier_of(other) == OOMPH_TIER_HOST);
    mark(other, others_bytes, 8);
    oomph_addr_t more;
    CHECK(try_take(64 * MIB - others_bytes, NULL, &more) == OOMPH_ERR_NO_MEMORY);
    CHECK(is_marked(block, 18 * MIB, 7) && is_marked(other, others_bytes, 8));
    give(other);
    CHECK(oomph_pool_release(0, GRAPH) == OOMPH_OK);
    oomph_addr_t all = take(60 * MIB, NULL);
    CHECK(tier_of(all) == OOMPH_TIER_HOST);
    give(all);
    give(first);
    give(second);
    check_sound();
}

static void others_get_the_rest_of_what_a_capture_used_in_part(void)
{
    check_partly_used(OOMPH_HOST_AUTO, 44 * MIB);
}

static void others_get_the_page_locked_pieces_that_a_capture_did_not_use(void)
{
    check_partly_used(OOMPH_HOST_PINNED, 24 * MIB);
}

static void what_steps_needed_long_ago_is_forgotten(void)
{
    start();
    oomph_stream_t stream = new_stream();
    step(MIB);
    step(40 * MIB);
    oomph_addr_t state = take_idle(32 * MIB);
    for (int i = 0; i < 40; i++)
        step(4 * MIB);
    CHECK(tier_of(capture(stream, 4 * MIB)) == OOMPH_TIER_DEVICE);
    CHECK(tier_of(state) == OOMPH_TIER_DEVICE && asked == 0);
}

static void the_largest_block_of_long_ago_is_forgotten(void)
{
    oomph_stats_t stats;

    start_with(OOMPH_HOST_PINNED, 64 * MIB);
    oomph_stream_t stream = new_stream();
    step(24 * MIB);
    oomph_addr_t state = take(63 * MIB, NULL);
    for (int i = 0; i < 40; i++)
        step(2 * MIB); // falls back to the host
    CHECK(tier_of(capture(stream, 2 * MIB)) == OOMPH_TIER_HOST);
    CHECK(oomph_get_stats(0, &stats) == OOMPH_OK);
    CHECK(stats.tier_bytes[OOMPH_TIER_HOST] <= (int64_t)(16 * MIB));
    give(state);
    check_sound();
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(what_rests_leaves_for_a_capture_that_would_find_no_room),
        TEST(no_more_leaves_than_is_missing_the_first_named_first),
        TEST(a_stream_without_workspaces_will_want_them_in_the_capture),
        TEST(a_stream_that_has_had_workspaces_wants_no_more_of_them),
        TEST(where_there_is_room_nothing_moves_and_nobody_waits),
        TEST(what_is_missing_still_is_ready_on_the_host),
        TEST(small_blocks_find_it_too),
        TEST(a_stream_that_joins_the_capture_finds_it_too),
        TEST(another_thread_than_the_one_that_ends_steps_moves_nothing),
        TEST(a_mem_pool_gets_no_room),
        TEST(captures_that_go_on_do_not_move_blocks_to_and_fro),
        TEST(once_captures_are_over_what_left_returns),
        TEST(others_get_host_memory_that_no_capture_has_used),
        TEST(others_get_page_locked_memory_that_no_capture_has_used),
        TEST(others_get_the_rest_of_what_a_capture_used_in_part),
        TEST(others_get_the_page_locked_pieces_that_a_capture_did_not_use),
        TEST(what_steps_needed_long_ago_is_forgotten),
        TEST(the_largest_block_of_long_ago_is_forgotten),
    };
    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
