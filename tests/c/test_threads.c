/* Many threads at once: on streams of their own, on one, freeing each other's blocks,
 * short of memory. Built under the thread sanitizer, too. */
#include "card.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { THREADS = 4, TURNS = 1000, LIVE = 24, SHARED = 64 };

static oomph_stream_t streams[THREADS];
static _Atomic(oomph_addr_t) shared[SHARED]; // blocks that any thread may free

typedef struct job {
    int number;
    bool own_stream;
    size_t size_max;
    bool exchange; // hand blocks to other threads
    bool moves;    // move what is not handed to others there and back
    unsigned failed;
} job_t;

static void free_slot(_Atomic(oomph_addr_t) *entry, oomph_addr_t replacement)
{
    oomph_addr_t old = atomic_exchange(entry, replacement);

    if (old != 0)
        give(old);
}

// Moves the blocks of this thread, which no other uses meanwhile.
static void move_some(const oomph_addr_t *addr, oomph_tier_t tier)
{
    oomph_move_t moves[LIVE];
    size_t count = 0, moved_bytes;

    for (int i = 0; i < LIVE; i++)
        if (addr[i] != 0)
            moves[count++].addr = addr[i];
    if (oomph_device_peek(0) != NULL)
        CHECK(oomph_move(0, tier, moves, count, &moved_bytes) == OOMPH_OK);
}

static void *work(void *argument)
{
    job_t *job = argument;
    rng_t rng = {(uint64_t)job->number * 7919 + 1};
    oomph_addr_t addr[LIVE] = {0};
    size_t bytes[LIVE] = {0};
    oomph_stream_t stream = streams[job->own_stream ? job->number : 0];

    for (int turn = 0; turn < TURNS; turn++) {
        if (job->moves && turn % 100 == 0)
            move_some(addr, rng_below(&rng, 2));
        uint32_t i = rng_below(&rng, LIVE);
        if (addr[i] != 0) {
            CHECK(is_marked(addr[i], bytes[i], addr[i]));
            if (job->exchange && rng_below(&rng, 2) == 0)
                free_slot(&shared[rng_below(&rng, SHARED)], addr[i]);
            else
                give(addr[i]);
            addr[i] = 0;
            continue;
        }
        bytes[i] = 8 + rng_below(&rng, (uint32_t)job->size_max);
        if (try_take(bytes[i], stream, &addr[i]) != OOMPH_OK) {
            job->failed++;
            addr[i] = 0;
            continue;
        }
        mark(addr[i], bytes[i], addr[i]);
        if (turn % 500 == 0)
            oomph_step();
    }
    for (int i = 0; i < LIVE; i++)
        if (addr[i] != 0)
            give(addr[i]);
    return NULL;
}

static void run_threads(const char *card, size_t host_limit_bytes, job_t job)
{
    oomph_config_t config = test_config();
    pthread_t threads[THREADS];
    job_t jobs[THREADS];

    config.host_limit_bytes = host_limit_bytes;
    config.host_ahead_bytes = host_limit_bytes / 8;
    config.promote = false; // what returns at the end of a step is in use by others
    start_card(card, &config);
    for (int i = 0; i < THREADS; i++)
        streams[i] = new_stream();
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = job;
        jobs[i].number = i;
        CHECK(pthread_create(&threads[i], NULL, work, &jobs[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < SHARED; i++)
        free_slot(&shared[i], 0);
    oomph_step();
    CHECK(stats_of(0).allocated_bytes[0].current == 0);
    check_sound();
    oomph_stop();
}

static void on_streams_of_their_own(void)
{
    run_threads("1GiB,context=0,memory=real", 0,
                (job_t){.own_stream = true, .size_max = 2 * MIB});
}

static void on_one_stream(void)
{
    run_threads("1GiB,context=0,memory=real", 0, (job_t){.size_max = 2 * MIB});
}

static void freeing_blocks_of_each_other(void)
{
    run_threads("1GiB,context=0,memory=real", 0,
                (job_t){.own_stream = true, .size_max = 64 << 10, .exchange = true});
}

static void short_of_memory(void)
{
    run_threads("96MiB,context=0,memory=real", 0,
                (job_t){.own_stream = true, .size_max = 4 * MIB, .exchange = true});
}

static void spilling(void)
{
    run_threads("64MiB,context=0,memory=real", 512 * MIB,
                (job_t){.own_stream = true, .size_max = 4 * MIB});
}

static void moving_while_others_allocate(void)
{
    run_threads("96MiB,context=0,memory=real", 512 * MIB,
                (job_t){.own_stream = true, .size_max = 8 * MIB, .moves = true});
    CHECK(stats_of(0).evicted_bytes > 0 && stats_of(0).promoted_bytes > 0);
}

// While one thread waits for the GPU, others allocate, and one that must wait, too,
// takes the first one's result.
static void *take_large(void *argument)
{
    oomph_addr_t addr = 0;

    (void)argument;
    CHECK(try_take(24 * MIB, streams[1], &addr) == OOMPH_OK);
    return NULL;
}

static void *take_small(void *argument)
{
    (void)argument;
    for (int i = 0; i < 200; i++)
        give(take(1000, streams[2]));
    return NULL;
}

static void waiting_without_the_lock(void)
{
    oomph_config_t config = test_config();
    pthread_t threads[3];

    start_card("64MiB,context=0,memory=real", &config);
    for (int i = 0; i < THREADS; i++)
        streams[i] = new_stream();
    give(take(1000, streams[2]));
    oomph_addr_t block = take(60 * MIB, streams[0]);
    CHECK(oomph_sim_launch(streams[0], block, 60 * MIB, 1, 1000000) == CUDA_SUCCESS);
    give(block);
    CHECK(pthread_create(&threads[0], NULL, take_large, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, take_large, NULL) == 0);
    CHECK(pthread_create(&threads[2], NULL, take_small, NULL) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    check_sound();
}

static atomic_int waiting;

// Waits, for two seconds at most, until another thread has to wait as well.
static void *wait_for_company(void)
{
    atomic_fetch_add(&waiting, 1);
    for (int i = 0; i < 2000 && atomic_load(&waiting) < 2; i++)
        usleep(1000);
    return NULL;
}

static void stop_waiting(void *state)
{
    (void)state;
}

static void one_that_must_wait_too_takes_the_result_of_the_first(void)
{
    oomph_config_t config = test_config();
    oomph_hooks_t hooks = {.before_wait = wait_for_company, .after_wait = stop_waiting};
    pthread_t threads[2];

    oomph_set_hooks(&hooks);
    start_card("64MiB,context=0", &config);
    for (int i = 0; i < 2; i++)
        streams[i] = new_stream();
    oomph_addr_t block = take_living(60 * MIB, streams[0]);
    CHECK(oomph_sim_launch(streams[0], block, 60 * MIB, 1, 1000000) == 0);
    give(block);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, take_large, NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(atomic_load(&waiting) == 2);
    check_sound();
}

/* ---- Frees that find the lock taken */

// As if a thread were stopped between taking its place in the queue and writing it.
static uint32_t take_place(oomph_device_t *device)
{
    return atomic_fetch_add(&device->queue.head, 1);
}

static void write_place(oomph_device_t *device, uint32_t place, oomph_addr_t addr)
{
    atomic_store(&device->queue.addr[place % OOMPH_FREE_QUEUE], addr);
}

// Frees a block while the lock is taken.
static void give_to_queue(oomph_device_t *device, oomph_addr_t addr)
{
    oomph_lock_take(&device->lock);
    give(addr);
    oomph_lock_give(&device->lock);
}

static void a_stopped_thread_keeps_no_memory_of_others(void)
{
    oomph_config_t config = test_config();
    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t of_the_stopped = take(2 * MIB, NULL);
    oomph_addr_t addr = take(60 * MIB, NULL);
    oomph_device_t *device = oomph_device_peek(0);

    uint32_t place = take_place(device);
    give_to_queue(device, addr);
    addr = take(60 * MIB, NULL); // there is no other memory for it
    write_place(device, place, of_the_stopped);
    CHECK(stats_of(0).allocated_bytes[0].current == (int64_t)(60 * MIB));
    give(addr);
    check_sound();
}

static void *give_block(void *addr)
{
    give((oomph_addr_t)(uintptr_t)addr);
    return NULL;
}

static void a_stopped_thread_loses_nothing_though_the_queue_is_full(void)
{
    static oomph_addr_t addr[OOMPH_FREE_QUEUE + 1];
    oomph_config_t config = test_config();
    pthread_t thread;

    start_card("64MiB,context=0,memory=real", &config);
    for (int i = 0; i <= OOMPH_FREE_QUEUE; i++)
        addr[i] = take(512, NULL);
    oomph_device_t *device = oomph_device_peek(0);
    uint32_t place = take_place(device);
    oomph_lock_take(&device->lock);
    for (int i = 1; i < OOMPH_FREE_QUEUE; i++)
        give(addr[i]);
    // The next place is the one that the stopped thread has yet to write.
    void *last = (void *)(uintptr_t)addr[OOMPH_FREE_QUEUE];
    CHECK(pthread_create(&thread, NULL, give_block, last) == 0);
    usleep(20000);
    oomph_lock_give(&device->lock);
    CHECK(pthread_join(thread, NULL) == 0);
    write_place(device, place, addr[0]);
    CHECK(stats_of(0).allocation[0].current == 0);
    for (int i = 0; i < 2 * OOMPH_FREE_QUEUE; i++)
        give_to_queue(device, take(512, NULL));
    CHECK(stats_of(0).allocation[0].current == 0);
    check_sound();
}

// A driver whose answer comes late: meanwhile another thread frees a block.
static oomph_driver_t late_driver;
static const oomph_driver_t *prompt_driver;
static oomph_addr_t freed_meanwhile;

static oomph_status_t late_memory_info(int device, size_t *free_bytes, size_t *total)
{
    pthread_t thread;

    if (freed_meanwhile != 0) {
        void *addr = (void *)(uintptr_t)freed_meanwhile;
        CHECK(pthread_create(&thread, NULL, give_block, addr) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        freed_meanwhile = 0;
    }
    return prompt_driver->memory_info(device, free_bytes, total);
}

static void what_is_freed_while_the_ladder_is_climbed_keeps_a_block_off_the_host(void)
{
    oomph_config_t config = test_config();
    config.host_limit_bytes = 256 * MIB;
    start_card("64MiB,context=0,memory=real", &config);
    prompt_driver = oomph_process.driver;
    late_driver = *prompt_driver;
    late_driver.memory_info = late_memory_info;
    oomph_process.driver = &late_driver;
    oomph_addr_t first = take(60 * MIB, NULL);
    oomph_addr_t on_host = take(60 * MIB, NULL);
    CHECK(stats_of(0).rescues == 1);

    freed_meanwhile = first;
    oomph_addr_t third = take(60 * MIB, NULL);
    CHECK(freed_meanwhile == 0);
    CHECK(stats_of(0).rescues == 1);
    give(on_host);
    give(third);
    check_sound();
}

/* ---- Host memory that takes long to make */

enum { SLOW_US = 50000 }; // longer than a busy machine keeps a thread waiting

static atomic_bool made;

static void *take_on_host(void *unused)
{
    (void)unused;
    give(take(64 * MIB, streams[0]));
    atomic_store(&made, true);
    return NULL;
}

// Others allocate, free and ask while a thread of `slow` work gets host memory.
static void others_go_on(oomph_host_kind_t kind, void *(*slow)(void *))
{
    oomph_config_t config = test_config();
    pthread_t thread;

    config.host_kind = kind;
    config.host_limit_bytes = 256 * MIB;
    start_card("66MiB,context=0,memory=real", &config);
    for (int i = 0; i < THREADS; i++)
        streams[i] = new_stream();
    oomph_host_kind_t found;
    CHECK(oomph_probe_host(0, &found) == OOMPH_OK && found == kind);
    give(take(1000, streams[1]));
    oomph_addr_t full = take(64 * MIB, streams[1]);
    oomph_sim_slow(kind == OOMPH_HOST_PINNED ? "cuMemHostAlloc" : "cuMemCreate",
                   kind == OOMPH_HOST_PINNED ? 30 * SLOW_US : SLOW_US);
    CHECK(pthread_create(&thread, NULL, slow, (void *)(uintptr_t)full) == 0);
    usleep(3 * SLOW_US);
    for (int i = 0; i < 100; i++)
        give(take(1000, streams[1]));
    CHECK(stats_of(0).allocation[0].current == 1);
    CHECK(!atomic_load(&made));
    CHECK(pthread_join(thread, NULL) == 0);
    give(full);
    check_sound();
}

static void others_go_on_while_host_pages_are_made(void)
{
    others_go_on(OOMPH_HOST_NUMA, take_on_host);
}

static void others_go_on_while_a_pinned_block_is_made(void)
{
    others_go_on(OOMPH_HOST_PINNED, take_on_host);
}

static void *move_to_host(void *addr)
{
    oomph_move_t move = {.addr = (oomph_addr_t)(uintptr_t)addr};
    size_t moved_bytes;

    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == OOMPH_OK);
    CHECK(moved_bytes == 64 * MIB);
    atomic_store(&made, true);
    return NULL;
}

static void others_go_on_while_pages_for_a_move_are_made(void)
{
    others_go_on(OOMPH_HOST_NUMA, move_to_host);
}

static void *take_and_keep(void *addr)
{
    *(oomph_addr_t *)addr = take(64 * MIB, streams[0]);
    return NULL;
}

static void two_that_make_host_pages_at_once_both_get_theirs(void)
{
    oomph_config_t config = test_config();
    pthread_t threads[2];
    oomph_addr_t addr[2];

    config.host_limit_bytes = 128 * MIB; // what is made ahead counts, too
    config.host_ahead_bytes = 32 * MIB;
    start_card("64MiB,context=0,memory=real", &config);
    streams[0] = new_stream();
    oomph_addr_t full = take(62 * MIB, streams[0]);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, take_and_keep, &addr[i]) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(addr[0] != addr[1]);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == (int64_t)(128 * MIB));
    give(full);
    give(addr[0]);
    give(addr[1]);
    check_sound();
    oomph_stop();
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(on_streams_of_their_own),
        TEST(on_one_stream),
        TEST(freeing_blocks_of_each_other),
        TEST(short_of_memory),
        TEST(spilling),
        TEST(moving_while_others_allocate),
        TEST(waiting_without_the_lock),
        TEST(one_that_must_wait_too_takes_the_result_of_the_first),
        TEST(a_stopped_thread_keeps_no_memory_of_others),
        TEST(a_stopped_thread_loses_nothing_though_the_queue_is_full),
        TEST(others_go_on_while_host_pages_are_made),
        TEST(others_go_on_while_a_pinned_block_is_made),
        TEST(others_go_on_while_pages_for_a_move_are_made),
        TEST(two_that_make_host_pages_at_once_both_get_theirs),
        TEST(what_is_freed_while_the_ladder_is_climbed_keeps_a_block_off_the_host),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
