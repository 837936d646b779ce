/* Blocks that move while other threads launch work that uses them: all known streams
 * are held meanwhile, and where that is not to be had nothing moves.
 */
#include "card.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define CARD "64MiB,context=0,memory=real"

enum { NEVER_REACHED = 100 }; // how a child exits

static oomph_config_t gated_config(void)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 64 * MIB;
    config.window = OOMPH_WINDOW_GATED;
    return config;
}

static void start(const char *card)
{
    oomph_config_t config = gated_config();

    start_card(card, &config);
    give(take(MIB, NULL)); // so that there is a context
}

static oomph_tier_t tier_of(oomph_addr_t addr)
{
    oomph_block_info_t info;

    CHECK(oomph_lookup(addr, &info) == OOMPH_OK);
    return info.tier;
}

static oomph_tier_t other(oomph_tier_t tier)
{
    return tier == OOMPH_TIER_HOST ? OOMPH_TIER_DEVICE : OOMPH_TIER_HOST;
}

static oomph_status_t try_move(oomph_addr_t addr, oomph_tier_t tier)
{
    oomph_move_t move = {.addr = addr};
    size_t moved_bytes = 0;

    return oomph_move(0, tier, &move, 1, &moved_bytes);
}

static void move_there(oomph_addr_t addr, oomph_tier_t tier)
{
    oomph_status_t status = try_move(addr, tier);

    if (status != OOMPH_OK)
        fprintf(stderr, "%s\n", oomph_error_detail());
    CHECK(status == OOMPH_OK && tier_of(addr) == tier);
}

// A stream that oomph knows and that is never destroyed.
static oomph_stream_t living_stream(unsigned flags)
{
    CUstream stream;

    CHECK(cuStreamCreate(&stream, flags) == CUDA_SUCCESS);
    CHECK(oomph_know_stream(0, stream, true) == OOMPH_OK);
    return stream;
}

static void use_context(void)
{
    CUcontext context;

    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

/* ---- Others launch meanwhile */

#if defined(__SANITIZE_THREAD__)
enum { SWAPS = 100 }; // each takes a hundred times as long
#else
enum { SWAPS = 1000 };
#endif
enum { STREAMS = 4, BLOCK_BYTES = 5 << 20, SLOTS = 3 };

static oomph_stream_t streams[STREAMS];
static oomph_addr_t block;
static atomic_bool stops;
static uint64_t launched[STREAMS];

static int count_up(void *argument)
{
    for (size_t i = 0; i < SLOTS; i++)
        ++*(uint64_t *)((char *)argument + i * (BLOCK_BYTES / SLOTS & ~7u));
    return 0;
}

static void drop(void *argument)
{
    (void)argument;
}

// Adds one to the stream's words in the block, which lie in several pages.
static void launch(size_t i)
{
    oomph_addr_t addr = block + i * 4096;
    oomph_sim_range_t ranges[SLOTS];

    for (size_t k = 0; k < SLOTS; k++)
        ranges[k] =
            (oomph_sim_range_t){addr + k * (BLOCK_BYTES / SLOTS & ~7u), 8, true};
    oomph_sim_compute_t what = {"count_up", ranges, SLOTS,
                                count_up,   drop,   (void *)(uintptr_t)addr};
    CHECK(oomph_sim_compute(&what, streams[i]) == CUDA_SUCCESS);
    launched[i]++;
}

static void *launch_all(void *unused)
{
    use_context();
    for (unsigned turn = 0; !atomic_load(&stops); turn++) {
        for (size_t i = 0; i < STREAMS; i++)
            launch(i);
        if (turn % 16 == 0)
            CHECK(cuStreamSynchronize(streams[turn / 16 % STREAMS]) == CUDA_SUCCESS);
    }
    return unused;
}

static void check_counts(void)
{
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    for (size_t i = 0; i < STREAMS; i++)
        for (size_t k = 0; k < SLOTS; k++) {
            oomph_addr_t addr = block + i * 4096 + k * (BLOCK_BYTES / SLOTS & ~7u);
            CHECK(*(uint64_t *)(uintptr_t)addr == launched[i]);
        }
}

static void a_block_moves_a_thousand_times_while_another_thread_works_on_it(void)
{
    pthread_t thread;
    int moved = 0;

    start(CARD);
    use_context();
    streams[1] = living_stream(CU_STREAM_DEFAULT);
    streams[2] = living_stream(CU_STREAM_NON_BLOCKING);
    streams[3] = living_stream(CU_STREAM_NON_BLOCKING);
    block = take(BLOCK_BYTES, NULL);
    memset((void *)(uintptr_t)block, 0, BLOCK_BYTES);
    CHECK(pthread_create(&thread, NULL, launch_all, NULL) == 0);
    for (int i = 0; i < SWAPS; i++) {
        oomph_tier_t from = tier_of(block);
        oomph_status_t status = try_move(block, other(from));
        CHECK(status == OOMPH_OK || status == OOMPH_ERR_STATE);
        CHECK(tier_of(block) == (status == OOMPH_OK ? other(from) : from));
        moved += status == OOMPH_OK;
    }
    atomic_store(&stops, true);
    CHECK(pthread_join(thread, NULL) == 0);
    check_counts();
    check_sound();
    oomph_stats_t stats = stats_of(0);
    printf("%d of %d swaps had a window, %lld missed theirs\n", moved, SWAPS,
           (long long)stats.windows_missed);
    CHECK(moved > 0 && stats.windows == moved);
    CHECK(stats.windows_missed == SWAPS - moved);
}

// The window is closed from the copies until all is mapped, and another stream's work
// comes in each of the calls between.
static const oomph_driver_t *real;
static oomph_stream_t busy;

static void launch_on_busy(void)
{
    CHECK(oomph_sim_launch(busy, block, 4096, 0, 1000) == CUDA_SUCCESS);
}

static oomph_status_t unmap_busily(oomph_addr_t addr, size_t bytes)
{
    launch_on_busy();
    oomph_status_t status = real->unmap(addr, bytes);
    launch_on_busy();
    return status;
}

static oomph_status_t map_busily(oomph_addr_t addr, size_t bytes, oomph_handle_t handle)
{
    launch_on_busy();
    return real->map(addr, bytes, handle);
}

// The table of the driver's calls from now on, a copy that may be changed.
static oomph_driver_t *own_driver(void)
{
    static oomph_driver_t changed;
    oomph_device_t *device = oomph_device_peek(0);

    real = device->pages.driver;
    changed = *real;
    device->pages.driver = device->streams.driver = &changed;
    return &changed;
}

static void work_queued_in_the_window_waits_for_its_end(void)
{
    start(CARD);
    use_context();
    block = take(8 * MIB, NULL);
    mark(block, 8 * MIB, 1);
    busy = living_stream(CU_STREAM_NON_BLOCKING);
    oomph_driver_t *driver = own_driver();
    driver->unmap = unmap_busily;
    driver->map = map_busily;
    // What comes before the gate closes is missed or waited for, in any case done.
    while (try_move(block, OOMPH_TIER_HOST) != OOMPH_OK)
        continue;
    CHECK(cuStreamSynchronize(busy) == CUDA_SUCCESS);
    CHECK(tier_of(block) == OOMPH_TIER_HOST && is_marked(block, 8 * MIB, 1));
    check_sound();
}

static oomph_status_t map_too_late(oomph_addr_t addr, size_t bytes,
                                   oomph_handle_t handle)
{
    oomph_gate_t *gate = &oomph_device_peek(0)->gate;

    if (addr == block && gate->state == OOMPH_GATE_KEPT) {
        oomph_gate_open(gate);
        launch_on_busy();
    }
    return real->map(addr, bytes, handle);
}

static void a_gate_that_opens_before_all_is_mapped_is_named(void)
{
    start(CARD);
    use_context();
    block = take(8 * MIB, NULL);
    busy = living_stream(CU_STREAM_NON_BLOCKING);
    own_driver()->map = map_too_late;
    try_move(block, OOMPH_TIER_HOST);
    CHECK(oomph_sim_misuse(0) != NULL);
    CHECK(strstr(oomph_sim_misuse(0), "which is not mapped") != NULL);
}

/* ---- What takes too long */

static void (*after_drain)(void);

static void *before_wait(void)
{
    return NULL;
}

static void after_wait(void *state)
{
    void (*run)(void) = after_drain;

    (void)state;
    after_drain = NULL;
    if (run != NULL)
        run();
}

// Something happens between the wait for the device and the gate; then the move fails
// and says why. Gives the block, which is as it was.
static oomph_addr_t miss(void (*between)(void), const char *why)
{
    oomph_hooks_t hooks = {.before_wait = before_wait, .after_wait = after_wait};

    start(CARD);
    use_context();
    oomph_set_hooks(&hooks);
    busy = living_stream(CU_STREAM_NON_BLOCKING);
    block = take(8 * MIB, NULL);
    mark(block, 8 * MIB, 1);
    move_there(block, OOMPH_TIER_HOST);
    size_t host_bytes = sim_stats_of(0).host_bytes;
    after_drain = between;
    CHECK(try_move(block, OOMPH_TIER_DEVICE) == OOMPH_ERR_STATE);
    if (strstr(oomph_error_detail(), why) == NULL)
        fprintf(stderr, "%s\n", oomph_error_detail());
    CHECK(strstr(oomph_error_detail(), why) != NULL);
    CHECK(tier_of(block) == OOMPH_TIER_HOST && is_marked(block, 8 * MIB, 1));
    CHECK(sim_stats_of(0).host_bytes == host_bytes);
    CHECK(stats_of(0).windows == 1 && stats_of(0).windows_missed == 1);
    return block;
}

// All works as before, and the next window opens.
static void go_on(oomph_addr_t addr)
{
    launch_on_busy();
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    move_there(addr, OOMPH_TIER_DEVICE);
    CHECK(is_marked(addr, 8 * MIB, 1));
    check_sound();
    CHECK(stats_of(0).windows == 2 && stats_of(0).window_ns > 0);
}

static void hold_back(void)
{
    oomph_sim_hold(busy);
    launch_on_busy();
}

static void a_stream_that_is_held_back_past_the_deadline_moves_nothing(void)
{
    oomph_addr_t addr = miss(hold_back, "work that others queued went on for 20 ms");
    oomph_sim_release(busy);
    go_on(addr);
    CHECK(sim_stats_of(0).held_waits == 0);
}

static uint32_t *value;

static void wait_for_value(void)
{
    void *word;

    CHECK(cuMemHostAlloc(&word, 64, 0) == CUDA_SUCCESS);
    value = word;
    *value = 0;
    CHECK(cuStreamWaitValue32(busy, (CUdeviceptr)(uintptr_t)value, 1,
                              CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
}

static void a_stream_that_waits_for_a_value_past_the_deadline_moves_nothing(void)
{
    oomph_addr_t addr = miss(wait_for_value, "work that others queued");
    __atomic_store_n(value, 1, __ATOMIC_RELEASE);
    go_on(addr);
}

static void hold_default_stream(void)
{
    oomph_sim_hold(NULL);
    CHECK(oomph_sim_launch(NULL, block, 4096, 0, 1000) == CUDA_SUCCESS);
}

static void a_default_stream_that_is_held_back_moves_nothing(void)
{
    oomph_addr_t addr = miss(hold_default_stream, "work that others queued");
    oomph_sim_release(NULL);
    go_on(addr);
}

static void hold_copies(void)
{
    oomph_sim_hold(oomph_device_peek(0)->gate.copier);
}

static void copies_that_do_not_end_behind_the_gate_move_nothing(void)
{
    oomph_addr_t addr = miss(hold_copies, "the copies were not done after 508 ms");
    CHECK(sim_stats_of(0).held_waits ==
          1); // once the gate was open they were waited for
    go_on(addr);
}

// As a call of a driver whose lock is taken by one that waits for a held stream.
static void wait_for_open_gate(void)
{
    const oomph_gate_t *gate = &oomph_device_peek(0)->gate;
    _Atomic(uint32_t) *flag = (_Atomic(uint32_t) *)(uintptr_t)gate->flags;

    while (atomic_load(flag) != gate->turn)
        usleep(1000);
}

static oomph_status_t copy_once_open(int device, oomph_addr_t to, oomph_addr_t from,
                                     size_t bytes, oomph_stream_t stream)
{
    wait_for_open_gate();
    return real->copy(device, to, from, bytes, stream);
}

static oomph_status_t unmap_once_open(oomph_addr_t addr, size_t bytes)
{
    wait_for_open_gate();
    return real->unmap(addr, bytes);
}

static void make_copies_stuck(void)
{
    own_driver()->copy = copy_once_open;
}

static void make_unmapping_stuck(void)
{
    own_driver()->unmap = unmap_once_open;
}

static void a_copy_that_cannot_be_queued_while_streams_are_held_moves_nothing(void)
{
    oomph_addr_t addr =
        miss(make_copies_stuck, "a call did not return for more than 500 ms");
    oomph_device_peek(0)->streams.driver = real;
    go_on(addr);
}

static void where_unmapping_waits_for_held_streams_nothing_moves(void)
{
    oomph_addr_t addr =
        miss(make_unmapping_stuck, "a call did not return for more than 500 ms");
    oomph_device_peek(0)->pages.driver = real;
    go_on(addr);
}

/* ---- Calls that fail */

static unsigned call_now;
static bool fails_on;

// One call fails, or all from one on. Afterwards streams go on, whatever has become of
// the block; and what did not move moves.
static void move_with_failures(void)
{
    start("20MiB,context=0,memory=real,tick=100us"); // copies take a few calls
    use_context();
    busy = living_stream(CU_STREAM_NON_BLOCKING);
    block = take(5 * MIB, NULL);
    mark(block, 5 * MIB, 1);
    unsigned before = call_count();
    if (fails_on)
        fail_from_call(call_now, OOMPH_ERR_DRIVER);
    else
        fail_call(call_now, OOMPH_ERR_DRIVER);
    oomph_status_t status = try_move(block, OOMPH_TIER_HOST);
    bool reached = call_count() - before >= call_now;
    bool is_lost = strstr(oomph_error_detail(), "are lost") != NULL;
    fail_call(0, OOMPH_OK);
    CHECK(reached || status == OOMPH_OK);
    CHECK(!is_lost || fails_on);
    CHECK(oomph_sim_launch(busy, 0, 0, 0, 1000) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(busy) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(NULL) == CUDA_SUCCESS);
    check_sound();
    if (!is_lost) {
        CHECK(is_marked(block, 5 * MIB, 1));
        if (!fails_on)
            CHECK(status == OOMPH_OK || tier_of(block) == OOMPH_TIER_DEVICE);
        move_there(block, other(tier_of(block)));
        CHECK(is_marked(block, 5 * MIB, 1));
    }
    check_sound();
    exit(reached ? 0 : NEVER_REACHED);
}

static void fail_in_turn(void)
{
    int code = 0;

    for (call_now = 1; code != NEVER_REACHED; call_now++) {
        code = in_child(move_with_failures);
        if (code != 0 && code != NEVER_REACHED)
            fprintf(stderr, "call %u\n", call_now);
        CHECK(code == 0 || code == NEVER_REACHED);
    }
    CHECK(call_now > 20);
}

static void whichever_call_fails_all_is_as_before(void)
{
    fail_in_turn();
}

static void whenever_the_driver_breaks_the_gate_is_open(void)
{
    fails_on = true;
    fail_in_turn();
}

/* ---- Where there is no window */

static void expect_none(oomph_addr_t addr, const char *why)
{
    int64_t drains = stats_of(0).swap_drains;

    CHECK(try_move(addr, OOMPH_TIER_HOST) == OOMPH_ERR_STATE);
    if (strstr(oomph_error_detail(), why) == NULL)
        fprintf(stderr, "%s\n", oomph_error_detail());
    CHECK(strstr(oomph_error_detail(), why) != NULL);
    CHECK(tier_of(addr) == OOMPH_TIER_DEVICE);
    CHECK(stats_of(0).swap_drains == drains && stats_of(0).windows_missed == 0);
}

static void there_is_none_while_a_stream_captures(void)
{
    CUgraph graph;

    start(CARD);
    use_context();
    oomph_stream_t stream = living_stream(CU_STREAM_NON_BLOCKING);
    oomph_addr_t addr = take(8 * MIB, NULL);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    expect_none(addr, "captures");
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    move_there(addr, OOMPH_TIER_HOST);
}

static void there_is_none_where_a_stream_may_be_destroyed(void)
{
    start(CARD);
    use_context();
    oomph_addr_t addr = take(8 * MIB, NULL);
    CHECK(oomph_know_stream(0, new_stream(), false) == OOMPH_OK);
    expect_none(addr, "a stream that it may destroy");
}

static void there_is_none_with_several_devices(void)
{
    oomph_request_t request = {.device = 1, .bytes = MIB};
    oomph_addr_t there;

    start("64MiB,devices=2,context=0,memory=real");
    oomph_addr_t addr = take(8 * MIB, NULL);
    CHECK(oomph_malloc(&request, &there) == OOMPH_OK);
    expect_none(addr, "several devices");
}

static void there_is_none_where_a_peer_may_use_the_memory(void)
{
    start("64MiB,devices=2,context=0,memory=real");
    oomph_addr_t addr = take(8 * MIB, NULL);
    CHECK(oomph_enable_peer(0, 1) == OOMPH_OK);
    expect_none(addr, "several devices");
}

static void there_is_none_with_a_communicator(void)
{
    start(CARD);
    oomph_addr_t addr = take(8 * MIB, NULL);
    oomph_note_communicator(true);
    expect_none(addr, "may wait for other processes");
    oomph_note_communicator(false);
    move_there(addr, OOMPH_TIER_HOST);
}

static void there_is_none_under_mps(void)
{
    start(CARD);
    oomph_addr_t addr = take(8 * MIB, NULL);
    oomph_device_peek(0)->shared = true; // as the driver says there
    expect_none(addr, "MPS");
}

static void there_is_none_where_somebody_watches_what_is_mapped(void)
{
    start(CARD);
    oomph_addr_t addr = take(8 * MIB, NULL);
    oomph_watch(true);
    expect_none(addr, "somebody watches");
}

static void no_stream_is_held_by_default(void)
{
    oomph_config_t config = gated_config();

    config.window = oomph_config_default().window;
    start_card(CARD, &config);
    oomph_addr_t addr = take(8 * MIB, NULL);
    move_there(addr, OOMPH_TIER_HOST);
    CHECK(oomph_sim_call_count("cuStreamBatchMemOp") == 0);
    CHECK(stats_of(0).windows == 0 && stats_of(0).window_ns == 0);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(a_block_moves_a_thousand_times_while_another_thread_works_on_it),
        TEST(work_queued_in_the_window_waits_for_its_end),
        TEST(a_gate_that_opens_before_all_is_mapped_is_named),
        TEST(a_stream_that_is_held_back_past_the_deadline_moves_nothing),
        TEST(a_stream_that_waits_for_a_value_past_the_deadline_moves_nothing),
        TEST(a_default_stream_that_is_held_back_moves_nothing),
        TEST(copies_that_do_not_end_behind_the_gate_move_nothing),
        TEST(a_copy_that_cannot_be_queued_while_streams_are_held_moves_nothing),
        TEST(where_unmapping_waits_for_held_streams_nothing_moves),
        TEST(whichever_call_fails_all_is_as_before),
        TEST(whenever_the_driver_breaks_the_gate_is_open),
        TEST(there_is_none_while_a_stream_captures),
        TEST(there_is_none_where_a_stream_may_be_destroyed),
        TEST(there_is_none_with_several_devices),
        TEST(there_is_none_where_a_peer_may_use_the_memory),
        TEST(there_is_none_with_a_communicator),
        TEST(there_is_none_under_mps),
        TEST(there_is_none_where_somebody_watches_what_is_mapped),
        TEST(no_stream_is_held_by_default),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
