/* Use after free is caught: what `guard` unmaps, waits for and fills, and what it
 * leaves alone. */
#include "card.h"

#include <cuda.h>
#include <unistd.h>

#define PAGE (2 * MIB)

static const oomph_pool_id_t everything = {0, 0}, graph = {1, 0};

static void start_guarded(const char *card, unsigned guard)
{
    oomph_config_t config = test_config();

    config.guard = guard;
    config.host_limit_bytes = 64 * MIB;
    start_card(card, &config);
}

static void launch(oomph_stream_t stream, oomph_addr_t addr, int write)
{
    CHECK(oomph_sim_launch(stream, addr, 512, write, 1000000) == CUDA_SUCCESS);
}

static void finish(void)
{
    oomph_sim_advance(1000000000);
}

static oomph_addr_t in_use[64];
static size_t in_use_count;

static void note_used(const oomph_block_info_t *block, void *context)
{
    (void)context;
    if (block->state == OOMPH_BLOCK_USED && in_use_count < 64)
        in_use[in_use_count++] = block->addr;
}

// Frees what a test left and checks that all is as it was.
static void end(void)
{
    size_t freed;

    CHECK(oomph_walk(0, note_used, NULL) == OOMPH_OK);
    for (size_t i = 0; i < in_use_count; i++)
        give(in_use[i]);
    finish();
    CHECK(oomph_empty_cache(0, everything, &freed) == OOMPH_OK);
    check_sound();
    CHECK(stats_of(0).active[0].current == 0);
}

// The same where a fault has broken the context.
_Noreturn static void end_broken(void)
{
    CHECK(oomph_sim_misuse(0) != NULL);
    CHECK(oomph_check(0) == OOMPH_OK);
    _exit(0);
}

static size_t unmapped(oomph_unmapped_t *rows, size_t room)
{
    size_t count;

    CHECK(oomph_unmapped(0, rows, room, &count) == OOMPH_OK);
    return count;
}

// The address that the simulated driver names is of the block unmapped last.
static void check_caught(oomph_addr_t addr, size_t bytes)
{
    oomph_unmapped_t last;
    char text[32];

    snprintf(text, sizeof text, "%#llx", (unsigned long long)addr);
    CHECK(oomph_sim_misuse(0) != NULL && strstr(oomph_sim_misuse(0), text) != NULL);
    CHECK(strstr(oomph_sim_misuse(0), "is not mapped") != NULL);
    CHECK(unmapped(&last, 1) >= 1);
    CHECK(last.addr == addr && last.requested_bytes == bytes);
}

/* ---- What is caught */

static void use_later(unsigned guard)
{
    start_guarded("64MiB,context=0", guard);
    oomph_stream_t first = new_stream(), second = new_stream();
    oomph_addr_t addr = take_living(3000, first);
    launch(first, addr, 1);
    give(addr);
    finish();
    take_living(512, first);
    launch(second, addr, 0);
    finish();
    if (guard == OOMPH_GUARD_OFF)
        end();
    else
        check_caught(addr, 3000);
}

static void a_kernel_of_a_later_time_is_caught(void)
{
    use_later(OOMPH_GUARD_UNMAP);
    end_broken();
}

static void without_guard_it_is_not(void)
{
    use_later(OOMPH_GUARD_OFF);
}

static void use_at_once(unsigned guard)
{
    start_guarded("64MiB,context=0", guard);
    oomph_stream_t stream = new_stream();
    oomph_addr_t addr = take_living(3 * MIB, stream);
    launch(stream, addr, 1);
    give(addr);
    launch(stream, addr, 0);
    finish();
}

static void a_kernel_of_the_same_stream_runs_before_the_pages_go(void)
{
    use_at_once(OOMPH_GUARD_UNMAP);
    end();
}

static void with_sync_it_is_caught(void)
{
    use_at_once(OOMPH_GUARD_SYNC);
    CHECK(strstr(oomph_sim_misuse(0), "is not mapped") != NULL);
    end_broken();
}

// A block freed while another stream still uses it.
static void use_on_side(unsigned guard, bool record)
{
    start_guarded("64MiB,context=0", guard);
    oomph_stream_t main_stream = new_stream(), side = new_stream();
    oomph_addr_t addr = take_living(3 * MIB, main_stream);
    launch(side, addr, 1);
    if (record)
        CHECK(oomph_record_stream(addr, 0, side, true) == OOMPH_OK);
    give(addr);
    give(take_living(512, main_stream));
    finish();
}

static void a_stream_that_was_not_recorded_is_caught(void)
{
    use_on_side(OOMPH_GUARD_UNMAP, false);
    end_broken();
}

static void with_sync_it_is_caught_too(void)
{
    use_on_side(OOMPH_GUARD_SYNC, false);
    end_broken();
}

static void a_stream_that_was_recorded_is_waited_for(void)
{
    use_on_side(OOMPH_GUARD_UNMAP, true);
    CHECK(stats_of(0).guard_blocks >= 1);
    end();
}

static void with_sync_the_free_waits_for_it(void)
{
    use_on_side(OOMPH_GUARD_SYNC, true);
    CHECK(stats_of(0).guard_blocks == 2);
    end();
}

/* ---- Addresses and pages */

static int by_address(const void *left, const void *right)
{
    const oomph_addr_t *a = left, *b = right;

    return (*a > *b) - (*a < *b);
}

static void an_address_never_comes_again_and_pages_do(void)
{
    enum { CYCLES = 10000, LIVE = 4 };
    static oomph_addr_t seen[CYCLES];
    oomph_addr_t live[LIVE] = {0};
    rng_t rng = rng_seeded(__func__);

    start_guarded("64MiB,context=0,memory=none", OOMPH_GUARD_UNMAP);
    for (size_t i = 0; i < CYCLES; i++) {
        give(live[i % LIVE]);
        seen[i] = take(1 + rng_below(&rng, 5 * MIB), NULL);
        live[i % LIVE] = seen[i];
        CHECK(seen[i] % PAGE == 0);
    }
    CHECK(sim_stats_of(0).peak_used_bytes <= 64 * MIB);
    CHECK(stats_of(0).guard_blocks >= CYCLES - 2 * LIVE);
    CHECK(stats_of(0).rescues == 0);
    qsort(seen, CYCLES, sizeof seen[0], by_address);
    for (size_t i = 1; i < CYCLES; i++)
        CHECK(seen[i] != seen[i - 1]);
    end();
}

static void blocks_share_no_page_and_the_loss_is_reported(void)
{
    start_guarded("64MiB,context=0", OOMPH_GUARD_UNMAP);
    oomph_addr_t small = take(100, NULL), other = take(3 * MIB, NULL);
    CHECK(small / PAGE != other / PAGE && other % PAGE == 0);
    CHECK(stats_of(0).guard_rounding_bytes == (int64_t)(PAGE - 512 + MIB));
    give(other);
    CHECK(stats_of(0).guard_rounding_bytes == (int64_t)(PAGE - 512));
    CHECK(stats_of(0).guard_space_bytes == (int64_t)(4 * MIB));
    end();
}

// A segment of this card has 512 pages.
static void the_oldest_address_space_is_used_again_where_none_is_left(void)
{
    start_guarded("64MiB,context=0", OOMPH_GUARD_UNMAP);
    oomph_addr_t first = take(1, NULL), addr = 0;
    give(first);
    fail_always("reserve", OOMPH_ERR_NO_MEMORY);
    for (int i = 1; i < 512; i++) {
        addr = take(1, NULL);
        CHECK(addr != first);
        give(addr);
    }
    CHECK(stats_of(0).guard_reused_bytes == 0);
    CHECK(take(1, NULL) == first);
    CHECK(stats_of(0).guard_reused_bytes == (int64_t)GIB);
    CHECK(stats_of(0).guard_space_bytes == 0);
    end();
}

static void address_space_that_a_block_lies_in_is_not_used_again(void)
{
    oomph_addr_t addr;

    start_guarded("64MiB,context=0", OOMPH_GUARD_UNMAP);
    take(1, NULL);
    fail_always("reserve", OOMPH_ERR_NO_MEMORY);
    for (int i = 1; i < 512; i++)
        give(take(1, NULL));
    CHECK(try_take(1, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(strstr(oomph_error_detail(), "address space") != NULL);
    end();
}

static void no_more_than_a_quarter_of_the_address_space_is_kept(void)
{
    oomph_config_t config = test_config();

    config.guard = OOMPH_GUARD_UNMAP;
    config.page_bytes = GIB;
    start_card("2TiB,context=0,memory=none", &config);
    // Under ThreadSanitizer there is less address space, and hardly 1 TiB in one piece.
    for (int i = 0; i < 160; i++)
        give(take(256 * GIB, NULL));
    CHECK(stats_of(0).guard_space_bytes <= (int64_t)(35 * 1024 * GIB));
    CHECK(stats_of(0).guard_reused_bytes > 0);
    end();
}

static void a_block_that_was_not_unmapped_is_tried_again(void)
{
    start_guarded("64MiB,context=0", OOMPH_GUARD_UNMAP);
    oomph_addr_t addr = take(512, NULL);
    fail_always("unmap", OOMPH_ERR_DRIVER);
    give(addr);
    CHECK(stats_of(0).guard_blocks == 0 && stats_of(0).active[0].current == 1);
    fail_always(NULL, OOMPH_OK);
    give(take(512, NULL));
    CHECK(stats_of(0).guard_blocks == 2 && stats_of(0).active[0].current == 0);
    end();
}

static void a_stream_that_is_gone_is_not_used(void)
{
    size_t freed;

    start_guarded("64MiB,context=0", OOMPH_GUARD_UNMAP | OOMPH_GUARD_FILL);
    oomph_stream_t stream = new_stream();
    oomph_addr_t addr = take(512, stream);
    CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
    give(addr);
    CHECK(stats_of(0).guard_blocks == 0);
    CHECK(oomph_empty_cache(0, everything, &freed) == OOMPH_OK);
    CHECK(stats_of(0).guard_blocks == 1);
    end();
}

static void full_cards_wait_for_what_was_freed(void)
{
    start_guarded("16MiB,context=0", OOMPH_GUARD_UNMAP);
    oomph_stream_t stream = new_stream();
    for (int i = 0; i < 100; i++) {
        oomph_addr_t addr = take_living(10 * MIB, stream);
        launch(stream, addr, 1);
        give(addr);
    }
    CHECK(stats_of(0).rescues == 0);
    end();
}

static void what_falls_back_to_the_host_is_guarded_too(void)
{
    start_guarded("16MiB,context=0,memory=real", OOMPH_GUARD_UNMAP);
    oomph_addr_t device = take(16 * MIB, NULL), host = take(16 * MIB, NULL);
    oomph_unmapped_t last;
    CHECK(stats_of(0).rescues == 1);
    mark(host, 16 * MIB, 7);
    give(host);
    CHECK(unmapped(&last, 1) == 1);
    CHECK(last.addr == host && last.tier == OOMPH_TIER_HOST);
    oomph_addr_t again = take(16 * MIB, NULL);
    CHECK(again != host && stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 16 * MIB);
    give(again);
    give(device);
    end();
}

/* ---- What is reported */

static oomph_site_t here;

static oomph_site_t call_site(bool in_backward)
{
    return in_backward ? 0 : here;
}

static void the_lines_that_took_and_freed_a_block_are_told_newest_first(void)
{
    oomph_hooks_t hooks = {.call_site = call_site};
    oomph_unmapped_t rows[2];

    start_guarded("64MiB,context=0", OOMPH_GUARD_UNMAP);
    oomph_set_hooks(&hooks);
    oomph_request_t request = {.bytes = 700, .site = oomph_site("a.py", "f", 1)};
    oomph_addr_t addr;
    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK);
    here = oomph_site("a.py", "g", 2);
    give(addr);
    here = 0;
    give(take(5 * MIB, NULL));
    CHECK(unmapped(rows, 2) == 2);
    CHECK(rows[0].requested_bytes == 5 * MIB && rows[0].taken_at == 0);
    CHECK(rows[1].addr == addr && rows[1].bytes == PAGE);
    CHECK(rows[1].requested_bytes == 700 && rows[1].tier == OOMPH_TIER_DEVICE);
    CHECK(rows[1].taken_at == oomph_site("a.py", "f", 1));
    CHECK(rows[1].freed_at == oomph_site("a.py", "g", 2));
    CHECK(rows[1].freed_ns <= rows[1].unmapped_ns);
    CHECK(rows[1].unmapped_ns <= rows[0].freed_ns);
}

static void it_is_told_after_the_device_has_failed(void)
{
    use_later(OOMPH_GUARD_UNMAP);
    fail_from_call(1, OOMPH_ERR_DRIVER);
    unsigned calls = call_count();
    oomph_unmapped_t last;
    CHECK(unmapped(&last, 1) >= 1 && call_count() == calls);
    end_broken();
}

static void the_latest_are_kept(void)
{
    static oomph_unmapped_t rows[OOMPH_UNMAPPED_KEPT + 1];
    oomph_addr_t addr = 0;

    start_guarded("64MiB,context=0,memory=none", OOMPH_GUARD_UNMAP);
    for (int i = 0; i < OOMPH_UNMAPPED_KEPT + 10; i++) {
        addr = take(512, NULL);
        give(addr);
    }
    CHECK(unmapped(rows, OOMPH_UNMAPPED_KEPT + 1) == OOMPH_UNMAPPED_KEPT);
    CHECK(rows[0].addr == addr);
    for (int i = 1; i < OOMPH_UNMAPPED_KEPT; i++)
        CHECK(rows[i].unmapped_ns <= rows[i - 1].unmapped_ns && rows[i].addr != 0);
}

static unsigned reported;
static oomph_addr_t reported_addr;

static void hear_unmapping(int device, oomph_addr_t addr, size_t bytes,
                           oomph_stream_t stream)
{
    (void)device, (void)stream;
    CHECK(bytes == 4 * MIB && is_marked(addr, bytes, 3)); // not unmapped yet
    CHECK(oomph_check(0) == OOMPH_OK);
    reported++;
    reported_addr = addr;
}

static void watchers_hear_of_it_before(void)
{
    oomph_hooks_t hooks = {.unmapping = hear_unmapping};

    start_guarded("64MiB,context=0,memory=real", OOMPH_GUARD_UNMAP);
    oomph_set_hooks(&hooks);
    oomph_watch(true);
    oomph_addr_t addr = take(4 * MIB, NULL);
    mark(addr, 4 * MIB, 3);
    give(addr);
    CHECK(reported == 1 && reported_addr == addr);
    end();
}

/* ---- Filling */

static bool is_filled(oomph_addr_t addr, size_t bytes)
{
    const unsigned char *byte = (const unsigned char *)(uintptr_t)addr;

    for (size_t i = 0; i < bytes; i++)
        if (byte[i] != 0xFF)
            return false;
    return true;
}

static void new_and_freed_blocks_are_filled(void)
{
    static const size_t sizes[] = {512, 3000, 3 * MIB};

    start_guarded("64MiB,context=0,memory=real", OOMPH_GUARD_FILL);
    for (size_t i = 0; i < 3; i++)
        for (int turn = 0; turn < 2; turn++) {
            oomph_addr_t addr = take(sizes[i], NULL);
            finish();
            CHECK(is_filled(addr, sizes[i]));
            mark(addr, sizes[i], 1);
            give(addr);
            finish();
            CHECK(is_filled(addr, sizes[i]));
        }
    end();
}

static void a_freed_block_is_filled_behind_the_work_of_its_streams(void)
{
    start_guarded("64MiB,context=0,memory=real", OOMPH_GUARD_FILL);
    oomph_stream_t stream = new_stream(), side = new_stream();
    oomph_addr_t addr = take_living(512, stream), shared = take_living(512, stream);
    finish();
    launch(stream, addr, 1);
    launch(side, shared, 1);
    CHECK(oomph_record_stream(shared, 0, side, true) == OOMPH_OK);
    give(addr);
    give(shared);
    finish();
    CHECK(is_filled(addr, 512) && !is_filled(shared, 512));
    for (int i = 0; i < 8; i++) // so that deferred frees are looked at
        take_living(512, stream);
    finish();
    CHECK(is_filled(shared, 512));
    end();
}

// Frees of so many bytes end an epoch at once: not before they are filled.
static void pages_move_only_when_they_have_been_filled(void)
{
    start_guarded("128MiB,context=0,tick=0", OOMPH_GUARD_FILL);
    oomph_stream_t first = new_stream(), second = new_stream();
    for (int turn = 0; turn < 3; turn++) {
        give(take_living(128 * MIB, first));
        give(take_living(100 * MIB, second));
    }
    CHECK(stats_of(0).pages_stolen > 0);
    end();
}

static void with_unmap_new_blocks_are_filled(void)
{
    start_guarded("4MiB,context=0,memory=real", OOMPH_GUARD_UNMAP | OOMPH_GUARD_FILL);
    for (int turn = 0; turn < 3; turn++) {
        oomph_addr_t addr = take(4 * MIB, NULL);
        finish();
        CHECK(is_filled(addr, 4 * MIB));
        mark(addr, 4 * MIB, 1);
        give(addr);
    }
    end();
}

/* ---- What is left alone */

static void pools_of_graphs_are_left_alone(void)
{
    oomph_request_t request = {.bytes = 512, .pool = graph, .stream_lives = true};
    oomph_addr_t addr, other;

    start_guarded("64MiB,context=0,memory=real", OOMPH_GUARD_SYNC | OOMPH_GUARD_FILL);
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK);
    CHECK(oomph_malloc(&request, &other) == OOMPH_OK);
    CHECK(addr / PAGE == other / PAGE);
    mark(addr, 512, 5);
    give(addr);
    finish();
    CHECK(is_marked(addr, 512, 5));
    CHECK(oomph_malloc(&request, &other) == OOMPH_OK && other == addr);
    CHECK(stats_of(0).guard_blocks == 0);
    end();
}

static void nothing_waits_or_fills_while_a_stream_captures(void)
{
    CUgraph made;

    start_guarded("64MiB,context=0", OOMPH_GUARD_SYNC | OOMPH_GUARD_FILL);
    oomph_stream_t stream = new_stream();
    oomph_addr_t addr = take_living(512, stream);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(oomph_pool_begin(0, graph, stream, true) == OOMPH_OK);
    oomph_addr_t meanwhile = take_living(512, stream);
    give(addr);
    give(meanwhile);
    CHECK(stats_of(0).guard_blocks == 0);
    CHECK(cuStreamEndCapture(stream, &made) == CUDA_SUCCESS);
    CHECK(oomph_pool_end(0, stream, true) == OOMPH_OK);
    size_t node_count = 1;
    CHECK(cuGraphGetNodes(made, NULL, &node_count) == CUDA_SUCCESS);
    CHECK(node_count == 0);
    give(take_living(512, stream));
    CHECK(stats_of(0).guard_blocks == 3);
    end();
}

/* ---- Threads */

enum { THREADS = 4, TURNS = 300 };

static void *churn(void *argument)
{
    oomph_stream_t stream = argument;

    for (int i = 0; i < TURNS; i++) {
        oomph_addr_t small = take_living(700, stream);
        oomph_addr_t large = take_living(3 * MIB, stream);
        CHECK(oomph_record_stream(large, 0, NULL, true) == OOMPH_OK);
        give(large);
        give(small);
    }
    return NULL;
}

static void run_threads(unsigned guard)
{
    pthread_t threads[THREADS];

    start_guarded("64MiB,context=0,memory=none", guard);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, churn, new_stream()) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    end();
}

static void threads_free_at_once(void)
{
    run_threads(OOMPH_GUARD_UNMAP | OOMPH_GUARD_FILL);
}

static void threads_wait_for_each_other(void)
{
    run_threads(OOMPH_GUARD_SYNC);
}

/* ---- Failures */

static unsigned failing, guard_now;

// What can be had must be sound; the rest is an error.
static void run_failing(void)
{
    oomph_addr_t addr[6] = {0};

    start_guarded("16MiB,context=0", guard_now);
    oomph_stream_t stream = new_stream(), side = new_stream();
    give(take_living(512, stream));
    fail_call(failing, OOMPH_ERR_DRIVER);
    for (int i = 0; i < 12; i++) {
        oomph_addr_t *place = &addr[i % 6];
        oomph_request_t request = {.bytes = i % 2 == 0 ? 3 * MIB : 700,
                                   .stream = i % 3 == 0 ? side : stream,
                                   .stream_lives = true};
        if (*place != 0)
            give(*place);
        *place = 0;
        if (oomph_malloc(&request, place) != OOMPH_OK)
            CHECK(*oomph_error_detail() != '\0');
        else
            oomph_record_stream(*place, 0, side, true);
    }
    for (int i = 0; i < 6; i++)
        if (addr[i] != 0)
            give(addr[i]);
    bool happened = failed_member() != NULL;
    fail_call(0, OOMPH_OK);
    finish();
    give(take_living(512, stream));
    size_t freed;
    CHECK(oomph_empty_cache(0, everything, &freed) == OOMPH_OK);
    check_sound();
    CHECK(stats_of(0).active_bytes[0].current == 0);
    CHECK(sim_stats_of(0).used_bytes == 0 || guard_now == OOMPH_GUARD_FILL);
    exit(happened ? 0 : 77);
}

static void any_driver_call_may_fail(void)
{
    static const unsigned guards[] = {OOMPH_GUARD_UNMAP, OOMPH_GUARD_SYNC,
                                      OOMPH_GUARD_FILL,
                                      OOMPH_GUARD_SYNC | OOMPH_GUARD_FILL};

    for (size_t i = 0; i < 4; i++) {
        int code = 0;
        guard_now = guards[i];
        for (failing = 1; code == 0; failing++)
            code = in_child(run_failing);
        if (code != 77)
            fprintf(stderr, "guard %u, call %u: %d\n", guard_now, failing - 1, code);
        CHECK(code == 77 && failing > 30);
    }
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(a_kernel_of_a_later_time_is_caught),
        TEST(without_guard_it_is_not),
        TEST(a_kernel_of_the_same_stream_runs_before_the_pages_go),
        TEST(with_sync_it_is_caught),
        TEST(a_stream_that_was_not_recorded_is_caught),
        TEST(with_sync_it_is_caught_too),
        TEST(a_stream_that_was_recorded_is_waited_for),
        TEST(with_sync_the_free_waits_for_it),
        TEST(an_address_never_comes_again_and_pages_do),
        TEST(blocks_share_no_page_and_the_loss_is_reported),
        TEST(the_oldest_address_space_is_used_again_where_none_is_left),
        TEST(address_space_that_a_block_lies_in_is_not_used_again),
        TEST(no_more_than_a_quarter_of_the_address_space_is_kept),
        TEST(a_block_that_was_not_unmapped_is_tried_again),
        TEST(a_stream_that_is_gone_is_not_used),
        TEST(full_cards_wait_for_what_was_freed),
        TEST(what_falls_back_to_the_host_is_guarded_too),
        TEST(the_lines_that_took_and_freed_a_block_are_told_newest_first),
        TEST(it_is_told_after_the_device_has_failed),
        TEST(the_latest_are_kept),
        TEST(watchers_hear_of_it_before),
        TEST(new_and_freed_blocks_are_filled),
        TEST(a_freed_block_is_filled_behind_the_work_of_its_streams),
        TEST(pages_move_only_when_they_have_been_filled),
        TEST(with_unmap_new_blocks_are_filled),
        TEST(pools_of_graphs_are_left_alone),
        TEST(nothing_waits_or_fills_while_a_stream_captures),
        TEST(threads_free_at_once),
        TEST(threads_wait_for_each_other),
        TEST(any_driver_call_may_fail),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
