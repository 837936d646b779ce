/* Pages move only when all work of the device that may use them has finished: a program
 * uses memory of one stream on others without a word, as long as it waits there before
 * it takes that memory again (stream.h).
 */
#include "card.h"

#include <cuda.h>

#define NEW_DRIVER "64MiB,context=0"              // has cuCtxRecordEvent
#define OLD_DRIVER "64MiB,context=0,driver=12040" // has not

static void launch(oomph_stream_t stream, oomph_addr_t block, size_t bytes)
{
    CHECK(oomph_sim_launch(stream, block, bytes, 1, 1000000) == CUDA_SUCCESS);
}

static void finish(void)
{
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    check_sound();
}

/* ---- Another stream uses a block that was freed */

// The default stream does, as FSDP2's optimizer uses what reduce-scatter made.
static void check_fork_join(const char *card, oomph_stream_t reader, bool reader_known,
                            bool side_lives)
{
    oomph_config_t config = test_config();

    start_card(card, &config);
    oomph_stream_t side = new_stream();
    if (reader != NULL)
        reader = new_stream();
    if (reader_known)
        take_living(512, reader);
    oomph_addr_t block =
        side_lives ? take_living(48 * MIB, side) : take(48 * MIB, side);
    order_streams(side, reader);
    oomph_sim_hold(reader);
    launch(reader, block, 48 * MIB);
    give(block);
    take_living(48 * MIB, NULL); // waits for the reader, which releases it
    CHECK(sim_stats_of(0).held_waits == 1);
    order_streams(reader, side);
    finish();
}

static void the_default_stream_may_still_use_it(void)
{
    check_fork_join(NEW_DRIVER, NULL, false, true);
}

static void a_stream_that_was_never_heard_of_may_still_use_it(void)
{
    check_fork_join(NEW_DRIVER, (oomph_stream_t)4, false, true);
}

static void so_it_is_with_a_pool_whose_stream_may_be_gone(void)
{
    check_fork_join(NEW_DRIVER, (oomph_stream_t)4, false, false);
}

static void with_an_old_driver_the_default_stream_may(void)
{
    check_fork_join(OLD_DRIVER, NULL, false, true);
}

static void with_an_old_driver_a_stream_that_is_known_may(void)
{
    check_fork_join(OLD_DRIVER, (oomph_stream_t)4, true, true);
}

static void with_an_old_driver_a_stream_that_may_be_gone_makes_all_wait(void)
{
    check_fork_join(OLD_DRIVER, (oomph_stream_t)4, false, false);
}

// That waits for them: what blocks is what no event can stand for by itself.
static void with_an_old_driver_blocking_streams_need_not_be_known(void)
{
    oomph_config_t config = test_config();
    CUstream blocking;

    start_card(OLD_DRIVER, &config);
    oomph_stream_t side = new_stream();
    CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
    oomph_addr_t block = take_living(48 * MIB, side);
    oomph_sim_hold(blocking);
    launch(blocking, block, 48 * MIB);
    give(block);
    take_living(48 * MIB, NULL);
    CHECK(sim_stats_of(0).held_waits == 1);
    finish();
}

static void its_own_stream_takes_it_again_at_once(void)
{
    oomph_config_t config = test_config();

    start_card(NEW_DRIVER, &config);
    oomph_stream_t side = new_stream();
    oomph_addr_t block = take_living(48 * MIB, side);
    oomph_sim_hold(NULL);
    launch(NULL, block, 48 * MIB);
    give(block);
    order_streams(NULL, side); // the program's own business
    CHECK(take_living(48 * MIB, side) == block);
    CHECK(sim_stats_of(0).held_waits == 0);
    finish();
}

static void host_pages_wait_too(void)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 48 * MIB;
    start_card("16MiB,context=0", &config);
    oomph_stream_t side = new_stream();
    oomph_addr_t block = take_living(48 * MIB, side);
    oomph_sim_hold(NULL);
    launch(NULL, block, 48 * MIB);
    give(block);
    take_living(48 * MIB, NULL);
    CHECK(sim_stats_of(0).held_waits == 1);
    finish();
}

/* ---- What is given back to the driver */

static void emptying_the_cache_waits_for_all_streams(void)
{
    oomph_config_t config = test_config();
    size_t freed;

    start_card(NEW_DRIVER, &config);
    oomph_stream_t side = new_stream();
    oomph_addr_t block = take_living(48 * MIB, side);
    oomph_sim_hold(NULL);
    launch(NULL, block, 48 * MIB);
    give(block);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed == 48 * MIB && sim_stats_of(0).held_waits == 1);
    finish();
}

static void a_step_that_ends_leaves_what_is_in_use(void)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 48 * MIB;
    start_card("16MiB,context=0", &config);
    oomph_stream_t side = new_stream();
    oomph_addr_t block = take_living(48 * MIB, side);
    oomph_sim_hold(NULL);
    launch(NULL, block, 48 * MIB);
    give(block);
    size_t host_bytes = sim_stats_of(0).host_bytes;
    CHECK(host_bytes >= 32 * MIB);
    for (int i = 0; i < 3; i++)
        oomph_step();
    CHECK(sim_stats_of(0).host_bytes == host_bytes);
    oomph_sim_release(NULL);
    finish();
    oomph_step();
    CHECK(sim_stats_of(0).host_bytes == 0);
    check_sound();
}

/* ---- Graphs */

static void a_graph_that_is_dropped_may_still_run(void)
{
    oomph_config_t config = test_config();
    oomph_pool_id_t graph = {1, 0};
    oomph_request_t request = {.bytes = 48 * MIB, .pool = graph};
    oomph_addr_t block;

    start_card(NEW_DRIVER, &config);
    request.stream = new_stream();
    CHECK(oomph_pool_begin(0, graph, request.stream, true) == OOMPH_OK);
    CHECK(oomph_malloc(&request, &block) == OOMPH_OK);
    give(block);
    CHECK(oomph_pool_end(0, request.stream, true) == OOMPH_OK);
    give(take_living(64 * MIB - 48 * MIB, NULL)); // what was freed then has passed
    oomph_step();
    oomph_sim_hold(NULL);
    launch(NULL, block, 48 * MIB); // a replay
    CHECK(oomph_pool_release(0, graph) == OOMPH_OK);
    take_living(64 * MIB, NULL);
    CHECK(sim_stats_of(0).held_waits == 1);
    finish();
}

/* ---- Another device's streams */

static CUstream stream_of(int device)
{
    CUcontext context;
    CUstream stream;

    CHECK(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    return stream;
}

// A block of device 0 that a kernel of device 1 uses, freed.
static oomph_addr_t lend(oomph_stream_t stream, bool stream_lives)
{
    CHECK(oomph_enable_peer(0, 1) == OOMPH_OK);
    oomph_addr_t block = take_living(48 * MIB, NULL);
    oomph_sim_hold(stream);
    launch(stream, block, 48 * MIB);
    CHECK(oomph_record_stream(block, 1, stream, stream_lives) == OOMPH_OK);
    give(block);
    CHECK(stats_of(0).active_bytes[0].current == (int64_t)(48 * MIB));
    return block;
}

static void check_peer(bool stream_lives)
{
    oomph_config_t config = test_config();
    size_t freed;

    start_card("64MiB,devices=2,context=0", &config);
    oomph_stream_t stream = stream_of(1);
    oomph_addr_t block = lend(stream, stream_lives);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed == 0);
    take_living(64 * MIB, NULL); // waits for device 1
    CHECK(sim_stats_of(0).held_waits == 1);
    CHECK(oomph_record_stream(block, 2, stream, true) == OOMPH_ERR_INVALID);
    finish();
}

static void a_stream_of_another_device_is_waited_for(void)
{
    check_peer(true);
}

static void so_is_one_that_may_be_gone(void)
{
    check_peer(false);
}

static void a_block_is_free_once_the_other_device_has_done_with_it(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,devices=2,context=0", &config);
    oomph_stream_t stream = stream_of(1);
    for (int i = 0; i < 100; i++) {
        oomph_addr_t block = lend(stream, true);
        oomph_sim_release(stream);
        oomph_sim_advance(2000000);
        for (int k = 0; k < 16; k++)
            give(take_living(512, NULL));
        CHECK(stats_of(0).active_bytes[0].current == 0);
        CHECK(take_living(48 * MIB, NULL) == block);
        give(block);
    }
    finish();
}

// The default streams of two devices have one handle.
static void default_streams_of_two_devices_are_told_apart(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,devices=2,context=0", &config);
    CHECK(oomph_enable_peer(0, 1) == OOMPH_OK);
    oomph_addr_t block = take_living(8 * MIB, NULL);
    CHECK(oomph_record_stream(block, 0, NULL, true) == OOMPH_OK);
    CHECK(oomph_record_stream(block, 1, NULL, true) == OOMPH_OK);
    oomph_block_info_t freed;
    CHECK(oomph_free(block, &freed) == OOMPH_OK);
    CHECK(freed.state == OOMPH_BLOCK_DEFERRED);
    check_sound();
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(the_default_stream_may_still_use_it),
        TEST(a_stream_that_was_never_heard_of_may_still_use_it),
        TEST(so_it_is_with_a_pool_whose_stream_may_be_gone),
        TEST(with_an_old_driver_the_default_stream_may),
        TEST(with_an_old_driver_a_stream_that_is_known_may),
        TEST(with_an_old_driver_a_stream_that_may_be_gone_makes_all_wait),
        TEST(with_an_old_driver_blocking_streams_need_not_be_known),
        TEST(its_own_stream_takes_it_again_at_once),
        TEST(host_pages_wait_too),
        TEST(emptying_the_cache_waits_for_all_streams),
        TEST(a_step_that_ends_leaves_what_is_in_use),
        TEST(a_graph_that_is_dropped_may_still_run),
        TEST(a_stream_of_another_device_is_waited_for),
        TEST(so_is_one_that_may_be_gone),
        TEST(a_block_is_free_once_the_other_device_has_done_with_it),
        TEST(default_streams_of_two_devices_are_told_apart),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
