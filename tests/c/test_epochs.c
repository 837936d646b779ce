/* What has finished on which stream (stream.h): events, waits and captures. */
#include "card.h"

#include <cuda.h>

static uint64_t recorded(void)
{
    return oomph_sim_call_count("cuCtxRecordEvent");
}

// Frees are stamped once memory was short: a stream had to give pages to another.
static void make_short(oomph_stream_t from, oomph_stream_t to, size_t bytes)
{
    give(take_living(bytes, from));
    give(take_living(bytes, to));
}

// A kernel that writes a block, for a millisecond.
static void launch(oomph_stream_t stream, oomph_addr_t block, size_t bytes)
{
    CHECK(oomph_sim_launch(stream, block, bytes, 1, 1000000) == CUDA_SUCCESS);
}

static void one_event_serves_many_frees(void)
{
    oomph_config_t config = test_config();

    start_card("128MiB,context=0", &config);
    oomph_stream_t first = new_stream(), second = new_stream();
    make_short(second, first, 128 * MIB);
    uint64_t before = recorded();
    for (int i = 0; i < 32; i++)
        give(take_living(8 * MIB, first)); // 256 MiB: four times 64
    CHECK(recorded() == before + 4);
}

static void no_more_events_wait_than_there_is_room_for(void)
{
    oomph_config_t config = test_config();

    start_card("128MiB,context=0,memory=none", &config);
    oomph_stream_t first = new_stream(), second = new_stream();
    make_short(second, first, 128 * MIB);
    oomph_addr_t block = take_living(64 * MIB, first);
    oomph_sim_hold(first);
    CHECK(oomph_sim_launch(first, block, 64 * MIB, 1, 1000) == CUDA_SUCCESS);
    uint64_t before = recorded();
    for (int i = 0; i < 2 * OOMPH_EPOCH_RING; i++)
        give(take_living(64 * MIB, first));
    CHECK(recorded() <= before + OOMPH_EPOCH_RING);
    give(block);
    oomph_sim_release(first);
    take_living(128 * MIB, second);
    check_sound();
}

static void as_many_events_as_there_is_room_for_do_not_hide_the_last_frees(void)
{
    oomph_config_t config = test_config();

    start_card("128MiB,context=0,memory=none", &config);
    oomph_stream_t first = new_stream(), second = new_stream();
    make_short(second, first, 128 * MIB);
    for (int i = 0; i < 2 * OOMPH_EPOCH_RING; i++)
        give(take_living(128 * MIB, first));
    int64_t waits = stats_of(0).rungs[OOMPH_RUNG_WAIT];
    take_living(128 * MIB, second);
    CHECK(stats_of(0).rungs[OOMPH_RUNG_WAIT] == waits);
    check_sound();
}

static void what_was_freed_before_later_work_does_not_wait_for_it(void)
{
    oomph_config_t config = test_config();

    start_card("160MiB,context=0", &config);
    oomph_stream_t first = new_stream(), second = new_stream();
    make_short(second, first, 160 * MIB);
    oomph_addr_t later = take_living(16 * MIB, first);
    give(take_living(64 * MIB, first)); // closes an epoch
    oomph_sim_hold(first);
    CHECK(oomph_sim_launch(first, later, 16 * MIB, 1, 1000) == CUDA_SUCCESS);
    take_living(64 * MIB, second);
    CHECK(sim_stats_of(0).held_waits == 0);
    oomph_sim_release(first);
    check_sound();
}

static void what_was_freed_last_moves_without_waiting_if_its_work_has_finished(void)
{
    oomph_config_t config = test_config();

    start_card("32MiB,context=0", &config);
    oomph_stream_t first = new_stream(), second = new_stream();
    make_short(second, first, 32 * MIB);
    int64_t waits = stats_of(0).rungs[OOMPH_RUNG_WAIT];
    take_living(32 * MIB, second);
    CHECK(stats_of(0).rungs[OOMPH_RUNG_WAIT] == waits);
    CHECK(stats_of(0).pages_stolen == 2 * 16);
}

static void an_event_that_was_not_recorded_is_used_for_the_next(void)
{
    oomph_config_t config = test_config();

    start_card("128MiB,context=0", &config);
    oomph_stream_t first = new_stream(), second = new_stream();
    make_short(second, first, 128 * MIB);
    uint64_t created = oomph_sim_call_count("cuEventCreate");
    fail_always("event_record_all", OOMPH_ERR_DRIVER);
    for (int i = 0; i < 8; i++)
        give(take_living(64 * MIB, first));
    CHECK(oomph_sim_call_count("cuEventCreate") <= created + 1);
    fail_always(NULL, OOMPH_OK);
    take_living(128 * MIB, second);
    check_sound();
}

static void only_a_drain_counts_as_a_synchronisation(void)
{
    oomph_config_t config = test_config();

    start_card("32MiB,context=0", &config);
    oomph_stream_t first = new_stream(), second = new_stream();
    oomph_addr_t block = take_living(32 * MIB, first);
    launch(first, block, 32 * MIB);
    give(block);
    take_living(32 * MIB, second);
    CHECK(stats_of(0).rungs[OOMPH_RUNG_WAIT] == 1 && stats_of(0).sync_count == 0);
    size_t freed;
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(stats_of(0).sync_count == 1);
}

static void a_block_recorded_on_its_own_stream_is_free_at_once(void)
{
    oomph_config_t config = test_config();
    oomph_block_info_t freed;

    start_card("32MiB,context=0", &config);
    oomph_stream_t stream = new_stream();
    oomph_addr_t block = take_living(4 * MIB, stream);
    CHECK(oomph_record_stream(block, 0, stream, true) == OOMPH_OK);
    CHECK(oomph_free(block, &freed) == OOMPH_OK && freed.state == OOMPH_BLOCK_FREE);
}

// Between the begin and the end of a wait, another thread may look what has passed.
static void an_event_that_a_thread_waits_for_is_left_to_it(void)
{
    oomph_config_t config = test_config();
    oomph_stream_state_t *state;
    oomph_wait_t wait;

    start_card("32MiB,context=0", &config);
    oomph_stream_t stream = new_stream();
    oomph_addr_t block = take_living(4 * MIB, stream);
    oomph_streams_t *streams = &oomph_device_peek(0)->streams;
    CHECK(oomph_stream_get(streams, 0, stream, true, &state) == OOMPH_OK);
    oomph_clock_t *clock = &state->clock;
    CHECK(oomph_clock_wait_begin(streams, clock, &wait));
    oomph_sim_hold(stream);
    CHECK(oomph_sim_launch(stream, block, 4 * MIB, 1, 1000) == CUDA_SUCCESS);
    oomph_clock_close(streams, clock, true);
    CHECK(!oomph_clock_poll(streams, clock));
    oomph_clock_wait_end(streams, &wait, oomph_clock_wait(streams, &wait));
    CHECK(clock->passed == 1 && clock->count == 1); // the second is still held
    oomph_sim_release(stream);
}

/* ---- Captures */

// What was freed before is waited for, what is freed meanwhile moves afterwards.
static void no_epoch_is_closed_while_a_stream_captures(void)
{
    oomph_config_t config = test_config();
    oomph_pool_id_t pool = {1, 0};
    CUgraph captured = NULL;
    oomph_addr_t addr;

    config.offload = OOMPH_OFFLOAD_OFF; // or else room is made, which waits
    start_card("64MiB,context=0", &config);
    oomph_stream_t capturing = new_stream(), busy = new_stream(), third = new_stream();
    make_short(busy, third, 64 * MIB);
    oomph_addr_t first = take_living(24 * MIB, busy);
    oomph_addr_t second = take_living(40 * MIB, busy);
    launch(busy, first, 24 * MIB);
    give(first);
    CHECK(oomph_pool_begin(0, pool, capturing, true) == OOMPH_OK);
    CHECK(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL) ==
          CUDA_SUCCESS);
    int64_t waits = stats_of(0).rungs[OOMPH_RUNG_WAIT];
    take_living(24 * MIB, third);
    CHECK(stats_of(0).rungs[OOMPH_RUNG_WAIT] == waits + 1);
    launch(busy, second, 40 * MIB);
    give(second);
    CHECK(try_take(40 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(cuStreamEndCapture(capturing, &captured) == CUDA_SUCCESS); // still valid
    CHECK(oomph_pool_end(0, capturing, true) == OOMPH_OK);
    take(40 * MIB, NULL);
    check_sound();
}

// PyTorch does not say that a capture is over which failed.
static void check_failed_capture(bool stream_lives)
{
    oomph_config_t config = test_config();
    CUgraph captured = NULL;
    oomph_addr_t addr;
    size_t freed;

    config.offload = OOMPH_OFFLOAD_OFF; // or else room is made, which waits
    start_card("64MiB,context=0", &config);
    oomph_stream_t capturing = new_stream(), busy = new_stream();
    give(take_living(64 * MIB, busy));
    CHECK(oomph_pool_begin(0, (oomph_pool_id_t){1, 0}, capturing, stream_lives) ==
          OOMPH_OK);
    CHECK(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL) ==
          CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(try_take(32 * MIB, capturing, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(cuStreamEndCapture(capturing, &captured) ==
          CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (!stream_lives)
        CHECK(try_take(512, capturing, &addr) != OOMPH_ERR_INVALID); // it is seen again
    take(32 * MIB, NULL);
    int64_t syncs = stats_of(0).sync_count;
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed >= 30 * MIB && stats_of(0).sync_count == syncs + 1);
    check_sound();
}

static void a_capture_that_failed_is_over(void)
{
    check_failed_capture(true);
}

static void a_capture_that_failed_is_over_on_a_stream_that_may_vanish(void)
{
    check_failed_capture(false);
}

static void *drain_in_another_thread(void *freed)
{
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, freed) == OOMPH_OK);
    return NULL;
}

// Between the word that a capture is to begin and its beginning.
static void other_threads_wait_for_nothing_while_one_is_about_to_capture(void)
{
    oomph_config_t config = test_config();
    pthread_t thread;
    size_t freed;

    start_card("64MiB,context=0", &config);
    oomph_stream_t stream = new_stream();
    give(take_living(8 * MIB, stream));
    CHECK(oomph_pool_begin(0, (oomph_pool_id_t){1, 0}, stream, true) == OOMPH_OK);
    CHECK(pthread_create(&thread, NULL, drain_in_another_thread, &freed) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(freed == 0 && stats_of(0).sync_count == 0);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed == 8 * MIB); // this thread knows that it does not capture
    check_sound();
}

static void *take_in_another_thread(void *bytes)
{
    take_living(*(size_t *)bytes, NULL);
    return NULL;
}

// PyTorch does not say that a capture has failed; its thread went on to allocate.
static void other_threads_get_host_memory_after_a_capture_that_failed(void)
{
    oomph_config_t config = test_config();
    size_t bytes = 40 * MIB;
    pthread_t thread;

    config.offload = OOMPH_OFFLOAD_ON_OOM;
    config.host_limit_bytes = 128 * MIB;
    start_card("64MiB,context=0", &config);
    oomph_stream_t stream = new_stream();
    take_living(40 * MIB, NULL);
    CHECK(oomph_pool_begin(0, (oomph_pool_id_t){1, 0}, stream, true) == OOMPH_OK);
    take_living(2 * MIB, stream);
    CHECK(pthread_create(&thread, NULL, take_in_another_thread, &bytes) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(stats_of(0).rescues == 1);
    check_sound();
}

// Another stream captures, of which oomph has not heard yet.
static void nothing_is_drained_while_a_pool_is_captured_to(void)
{
    oomph_config_t config = test_config();
    oomph_pool_id_t pool = {1, 0};
    CUgraph captured = NULL;
    size_t freed;

    start_card("64MiB,context=0", &config);
    oomph_stream_t known = new_stream(), unknown = new_stream();
    give(take_living(8 * MIB, known));
    CHECK(oomph_pool_begin(0, pool, unknown, false) == OOMPH_OK);
    CHECK(cuStreamBeginCapture(unknown, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(cuStreamEndCapture(unknown, &captured) == CUDA_SUCCESS);
    CHECK(stats_of(0).sync_count == 0);
    check_sound();
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(one_event_serves_many_frees),
        TEST(no_more_events_wait_than_there_is_room_for),
        TEST(as_many_events_as_there_is_room_for_do_not_hide_the_last_frees),
        TEST(what_was_freed_before_later_work_does_not_wait_for_it),
        TEST(what_was_freed_last_moves_without_waiting_if_its_work_has_finished),
        TEST(an_event_that_was_not_recorded_is_used_for_the_next),
        TEST(only_a_drain_counts_as_a_synchronisation),
        TEST(a_block_recorded_on_its_own_stream_is_free_at_once),
        TEST(an_event_that_a_thread_waits_for_is_left_to_it),
        TEST(no_epoch_is_closed_while_a_stream_captures),
        TEST(a_capture_that_failed_is_over),
        TEST(a_capture_that_failed_is_over_on_a_stream_that_may_vanish),
        TEST(other_threads_wait_for_nothing_while_one_is_about_to_capture),
        TEST(other_threads_get_host_memory_after_a_capture_that_failed),
        TEST(nothing_is_drained_while_a_pool_is_captured_to),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
