/* What is given back to the driver, and what the end of a step does. */
#include "card.h"

#include <cuda.h>

static const oomph_pool_id_t everything = {0, 0}, graph = {1, 0};

static size_t empty_cache(oomph_pool_id_t pool)
{
    size_t freed = 0;

    CHECK(oomph_empty_cache(0, pool, &freed) == OOMPH_OK);
    return freed;
}

static oomph_addr_t take_from(oomph_pool_id_t pool, size_t bytes)
{
    oomph_request_t request = {.bytes = bytes, .pool = pool};
    oomph_addr_t addr = 0;

    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK);
    return addr;
}

static void pinned_memory_is_returned_once_its_work_has_finished(void)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 16 * MIB;
    config.host_kind = OOMPH_HOST_PINNED;
    start_card("16MiB,context=0,memory=real", &config);
    oomph_stream_t stream = new_stream();
    take_living(16 * MIB, stream);
    oomph_addr_t host = take_living(8 * MIB, stream);
    oomph_step();
    oomph_sim_hold(stream);
    CHECK(oomph_sim_launch(stream, host, 8 * MIB, 1, 1000) == CUDA_SUCCESS);
    give(host);
    oomph_step();
    CHECK(sim_stats_of(0).pinned_bytes == 8 * MIB && sim_stats_of(0).held_waits == 0);
    oomph_sim_release(stream);
    oomph_sim_advance(1000000);
    oomph_step();
    CHECK(sim_stats_of(0).pinned_bytes == 0);
    check_sound();
}

static unsigned given;

static oomph_addr_t source_take(void *context, size_t bytes, oomph_stream_t stream)
{
    CUdeviceptr pointer = 0;

    (void)context, (void)stream;
    return cuMemAlloc(&pointer, bytes) == CUDA_SUCCESS ? pointer : 0;
}

static void source_give(void *context, oomph_addr_t addr)
{
    (void)context;
    CHECK(cuMemFree(addr) == CUDA_SUCCESS);
    given++;
}

static void a_pool_in_use_keeps_the_memory_of_its_source(void)
{
    oomph_config_t config = test_config();
    oomph_source_t source = {source_take, source_give, NULL};

    start_card("64MiB,context=0", &config);
    new_stream(); // a current context
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    CHECK(oomph_pool_set_source(0, graph, &source) == OOMPH_OK);
    give(take_from(graph, 4 * MIB));
    CHECK(empty_cache(everything) == 0 && given == 0);
    CHECK(oomph_pool_release(0, graph) == OOMPH_OK);
    CHECK(empty_cache(everything) == 4 * MIB && given == 1);
}

static void address_space_that_was_not_taken_back_is_still_known(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0", &config);
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    give(take_from(graph, 4 * MIB));
    CHECK(oomph_pool_release(0, graph) == OOMPH_OK);
    fail_always("unreserve", OOMPH_ERR_DRIVER);
    CHECK(empty_cache(everything) == 4 * MIB);
    fail_always(NULL, OOMPH_OK);
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    give(take_from(graph, 4 * MIB)); // its address is found
    check_sound();
}

/* ---- Steps */

static void run_step(oomph_stream_t stream)
{
    oomph_addr_t first = take_living(20 * MIB, stream);
    oomph_addr_t second = take_living(12 * MIB, stream);
    give(first);
    give(second);
    oomph_step();
}

static void emptying_the_cache_is_no_shortage(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0", &config);
    give(take(8 * MIB, NULL));
    CHECK(empty_cache(everything) == 8 * MIB);
    for (int step = 0; step < 4; step++)
        run_step(NULL);
    CHECK(stats_of(0).layout_bytes == 0 && stats_of(0).layout_hits == 0);
}

// Its pages go from one stream to another.
static void make_short(oomph_stream_t from, oomph_stream_t to)
{
    give(take_living(64 * MIB, from));
    give(take_living(64 * MIB, to));
}

static void frees_record_no_events_once_some_steps_had_enough(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0", &config);
    oomph_stream_t first = new_stream(), second = new_stream();
    make_short(second, first);
    give(take_living(64 * MIB, first));
    for (int step = 0; step < 6; step++)
        oomph_step();
    uint64_t recorded = oomph_sim_call_count("cuEventRecord");
    for (int i = 0; i < 4; i++)
        give(take_living(64 * MIB, first));
    CHECK(oomph_sim_call_count("cuEventRecord") == recorded);
}

static oomph_stream_t start_planned_steps(const oomph_config_t *config)
{
    start_card("64MiB,context=0", config);
    oomph_stream_t first = new_stream(), second = new_stream();
    make_short(second, first);
    for (int step = 0; step < 4; step++) {
        oomph_addr_t more = take_living(24 * MIB, first);
        run_step(first);
        give(more);
    }
    CHECK(stats_of(0).layout_hits > 0);
    return first;
}

static void what_no_layout_has_finds_room_among_planned_places(void)
{
    oomph_config_t config = test_config();

    oomph_stream_t stream = start_planned_steps(&config);
    int64_t moved = stats_of(0).pages_remapped;
    take_living(22 * MIB, stream);
    CHECK(stats_of(0).pages_remapped == moved);
}

static oomph_stream_t meanwhile_stream;
static size_t meanwhile_bytes;

static void take_meanwhile(int device, oomph_addr_t addr, size_t bytes,
                           oomph_stream_t stream)
{
    size_t wanted = meanwhile_bytes;

    (void)device, (void)addr, (void)bytes, (void)stream;
    meanwhile_bytes = 0;
    if (wanted > 0)
        take_living(wanted, meanwhile_stream);
}

static void a_planned_place_may_be_taken_while_pages_move_there(void)
{
    oomph_config_t config = test_config();
    oomph_hooks_t hooks = {.unmapping = take_meanwhile};

    oomph_set_hooks(&hooks);
    oomph_watch(true);
    start_card("64MiB,context=0", &config);
    meanwhile_stream = new_stream();
    make_short(new_stream(), meanwhile_stream);
    for (int step = 0; step < 2; step++)
        run_step(meanwhile_stream);
    meanwhile_bytes = 20 * MIB;
    run_step(meanwhile_stream); // the layout is made
    CHECK(meanwhile_bytes == 0 && stats_of(0).layout_hits == 1);
    check_sound();
}

static bool is_planned(oomph_addr_t addr, oomph_stream_t stream)
{
    oomph_stream_state_t *state;
    oomph_block_info_t block;

    CHECK(oomph_stream_get(&oomph_device_peek(0)->streams, 0, stream, true, &state) ==
          OOMPH_OK);
    const oomph_pool_t *pool = state->pools[false];
    CHECK(oomph_lookup(addr, &block) == OOMPH_OK);
    return pool->arena.segments != NULL &&
           pool->arena.segments->base == block.segment_addr;
}

// Whether both blocks of a step got their planned places.
static bool run_large_step(oomph_stream_t stream)
{
    oomph_addr_t first = take_living(28 * MIB, stream);
    oomph_addr_t second = take_living(24 * MIB, stream);
    bool planned = is_planned(first, stream) && is_planned(second, stream);

    give(first);
    give(second);
    oomph_step();
    return planned;
}

static void a_layout_is_made_anew_where_a_block_stays_in_its_way(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0", &config);
    oomph_stream_t first = new_stream(), second = new_stream();
    make_short(second, first);
    give(take_living(12 * MIB, second));
    for (int step = 0; step < 3; step++)
        run_large_step(first);
    CHECK(run_large_step(first));
    CHECK(is_planned(take_living(10 * MIB, first), first)); // it stays
    CHECK(!run_large_step(first));
    for (int step = 0; step < 3; step++)
        run_large_step(first);
    CHECK(run_large_step(first));
    check_sound();
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(pinned_memory_is_returned_once_its_work_has_finished),
        TEST(a_pool_in_use_keeps_the_memory_of_its_source),
        TEST(address_space_that_was_not_taken_back_is_still_known),
        TEST(emptying_the_cache_is_no_shortage),
        TEST(frees_record_no_events_once_some_steps_had_enough),
        TEST(what_no_layout_has_finds_room_among_planned_places),
        TEST(a_planned_place_may_be_taken_while_pages_move_there),
        TEST(a_layout_is_made_anew_where_a_block_stays_in_its_way),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
