/* The allocator as its users see it (oomph.h), on simulated cards. */
#include "card.h"

#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE (2 * MIB)

/* ---- Giving and taking */

static void no_bytes_are_no_block(void)
{
    oomph_config_t config = test_config();
    oomph_request_t request = {.bytes = 0};
    oomph_addr_t addr = 7;

    start_card("64MiB,context=0,memory=real", &config);
    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK && addr == 0);
    CHECK(oomph_free(0, NULL) == OOMPH_OK);
    CHECK(stats_of(0).allocation[0].current == 0);
}

static void blocks_are_aligned_and_apart(void)
{
    oomph_config_t config = test_config();
    static const size_t sizes[] = {1, 511, 512, 513, 4096, MIB, MIB + 1, 3 * MIB + 77};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    oomph_addr_t addrs[COUNT];

    start_card("64MiB,context=0,memory=real", &config);
    for (size_t i = 0; i < COUNT; i++) {
        addrs[i] = take(sizes[i], NULL);
        CHECK(addrs[i] % OOMPH_ROUND_BYTES == 0);
        mark(addrs[i], sizes[i], i << 32);
    }
    for (size_t i = 0; i < COUNT; i++)
        CHECK(is_marked(addrs[i], sizes[i], i << 32));
    check_sound();
    for (size_t i = 0; i < COUNT; i++)
        give(addrs[i]);
    CHECK(stats_of(0).allocated_bytes[0].current == 0);
    check_sound();
}

static void small_and_large_blocks_never_share_a_page(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t small = take(MIB, NULL), large = take(MIB + 1, NULL);
    CHECK(small / PAGE != large / PAGE);
    CHECK(stats_of(0).allocation[OOMPH_STAT_SMALL].current == 1);
    CHECK(stats_of(0).allocation[OOMPH_STAT_LARGE].current == 1);
}

static void a_freed_block_is_given_again_without_a_driver_call(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t first = take(3 * MIB, NULL);
    give(first);
    unsigned calls = call_count();
    CHECK(take(3 * MIB, NULL) == first);
    give(first);
    CHECK(call_count() == calls);
}

static void a_foreign_address_is_refused(void)
{
    oomph_config_t config = test_config();
    static char foreign[512];
    oomph_block_info_t info;

    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t block = take(512, NULL);
    CHECK(oomph_free((oomph_addr_t)(uintptr_t)foreign, NULL) == OOMPH_ERR_INVALID);
    CHECK(oomph_free(block + 512, NULL) == OOMPH_ERR_INVALID);
    CHECK(oomph_free(UINT64_MAX, NULL) == OOMPH_ERR_INVALID);
    CHECK(oomph_lookup((oomph_addr_t)(uintptr_t)foreign, &info) == OOMPH_ERR_INVALID);
    CHECK(oomph_record_stream((oomph_addr_t)(uintptr_t)foreign, 0, NULL, true) ==
          OOMPH_OK);
    CHECK(stats_of(0).allocation[0].current == 1);
    check_sound();
}

static void a_block_cannot_be_freed_twice(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t block = take(512, NULL);
    give(block);
    CHECK(oomph_free(block, NULL) == OOMPH_ERR_INVALID);
    CHECK(stats_of(0).allocation[0].freed == 1);
    check_sound();
}

static void absurd_sizes_are_no_memory_and_change_nothing(void)
{
    oomph_config_t config = test_config();
    static const size_t sizes[] = {(size_t)1 << 63, SIZE_MAX,
                                   SIZE_MAX - 511,  ((size_t)1 << 47) + 1,
                                   (size_t)1 << 46, GIB};
    oomph_addr_t addr = 7;

    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t block = take(3 * MIB, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK(try_take(sizes[i], NULL, &addr) == OOMPH_ERR_NO_MEMORY);
        CHECK(addr == 7 && *oomph_error_detail() != '\0');
    }
    CHECK(stats_of(0).allocated_bytes[0].current == 3 * MIB);
    check_sound();
    give(block);
}

static void a_device_that_is_not_there_is_refused(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    start_card("64MiB,context=0,memory=real", &config);
    for (int device = -1; device <= OOMPH_DEVICE_MAX; device += 2) {
        oomph_request_t request = {.device = device, .bytes = 512};
        CHECK(oomph_malloc(&request, &addr) == OOMPH_ERR_INVALID);
    }
    CHECK(oomph_enable_peer(0, 1) == OOMPH_ERR_INVALID);
}

static void lookup_tells_the_block_that_contains_an_address(void)
{
    oomph_config_t config = test_config();
    oomph_block_info_t info;

    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t block = take(5 * MIB + 1, NULL);
    CHECK(oomph_lookup(block + 4 * MIB, &info) == OOMPH_OK);
    CHECK(info.addr == block && info.requested_bytes == 5 * MIB + 1);
    CHECK(info.bytes == 5 * MIB + 512 && info.state == OOMPH_BLOCK_USED);
    CHECK(info.segment_addr <= block && !info.small);
}

/* ---- Pages float */

static void free_pages_of_any_hole_serve_a_large_block(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t blocks[8];

    start_card("32MiB,context=0,memory=real", &config);
    for (int i = 0; i < 8; i++) {
        blocks[i] = take(4 * MIB, NULL);
        mark(blocks[i], 4 * MIB, (uint64_t)i << 32);
    }
    for (int i = 0; i < 8; i += 2)
        give(blocks[i]);
    oomph_addr_t large = take(16 * MIB, NULL); // four holes of 4 MiB
    mark(large, 16 * MIB, 99ull << 32);
    for (int i = 1; i < 8; i += 2)
        CHECK(is_marked(blocks[i], 4 * MIB, (uint64_t)i << 32));
    CHECK(is_marked(large, 16 * MIB, 99ull << 32));
    CHECK(stats_of(0).pages_remapped == 8);
    check_sound();
}

// The span that lacks fewest pages takes a part of a free block: the rest of that block
// is what the span lacks.
static void what_is_left_of_a_block_fills_a_hole_beside_it(void)
{
    oomph_config_t config = test_config();

    config.offload = OOMPH_OFFLOAD_OFF;
    start_card("20MiB,context=0,memory=real", &config);
    oomph_stream_t other = new_stream();
    oomph_addr_t first = take(8 * MIB, NULL), middle = take(4 * MIB, NULL);
    oomph_addr_t last = take(8 * MIB, NULL);
    CHECK(middle == first + 8 * MIB && last == middle + 4 * MIB);
    give(middle);
    oomph_addr_t held = take(4 * MIB, other); // leaves a hole in the middle
    mark(held, 4 * MIB, 7ull << 32);
    give(first);
    give(last);
    oomph_addr_t large = take(16 * MIB, NULL);
    mark(large, 16 * MIB, 99ull << 32);
    CHECK(is_marked(held, 4 * MIB, 7ull << 32));
    CHECK(is_marked(large, 16 * MIB, 99ull << 32));
    check_sound();
}

static void free_pages_of_one_stream_serve_another(void)
{
    oomph_config_t config = test_config();

    start_card("32MiB,context=0,memory=real", &config);
    oomph_stream_t other = new_stream();
    oomph_addr_t block = take(32 * MIB, NULL);
    give(block);
    oomph_addr_t moved = take(32 * MIB, other);
    CHECK(moved != block);
    CHECK(stats_of(0).pages_stolen == 16);
    check_sound();
}

static void a_block_that_waited_for_a_free_counts_as_a_retry(void)
{
    oomph_config_t config = test_config();

    start_card("32MiB,context=0", &config);
    oomph_stream_t other = new_stream();
    oomph_addr_t block = take(32 * MIB, NULL);
    CHECK(stats_of(0).retry_count == 0);
    CHECK(oomph_record_stream(block, 0, other, false) == OOMPH_OK);
    CHECK(oomph_sim_launch(other, block, 32 * MIB, 1, 1000000) == CUDA_SUCCESS);
    give(block);
    take(32 * MIB, NULL);
    CHECK(stats_of(0).retry_count == 1);
}

static oomph_addr_t unmapped_addr;
static size_t unmapped_bytes;
static oomph_stream_t unmapped_stream;

static void note_unmapping(int device, oomph_addr_t addr, size_t bytes,
                           oomph_stream_t stream)
{
    CHECK(device == 0);
    unmapped_addr = addr;
    unmapped_bytes += bytes;
    unmapped_stream = stream;
}

static void a_watcher_hears_of_pages_that_are_unmapped(void)
{
    oomph_config_t config = test_config();
    oomph_hooks_t hooks = {.unmapping = note_unmapping};

    oomph_set_hooks(&hooks);
    oomph_watch(true);
    start_card("32MiB,context=0,memory=real", &config);
    oomph_stream_t other = new_stream();
    oomph_addr_t block = take_living(32 * MIB, other);
    give(block);
    take(32 * MIB, NULL);
    CHECK(unmapped_addr == block && unmapped_bytes == 32 * MIB);
    CHECK(unmapped_stream == other);
    check_sound();
}

// A step: a short one on `side`, then one on the default stream that needs all.
static void run_two_streams(oomph_stream_t side)
{
    oomph_addr_t blocks[8];

    for (size_t i = 0; i < 4; i++)
        blocks[i] = take((8 + 2 * i) * MIB, side);
    for (size_t i = 0; i < 4; i++)
        give(blocks[i]);
    for (size_t i = 0; i < 8; i++)
        blocks[i] = take((16 - i) * MIB, NULL);
    for (size_t i = 8; i-- > 0;)
        give(blocks[i]);
    oomph_step();
}

static void streams_that_repeat_take_turns_with_no_more_pages_than_they_lack(void)
{
    oomph_config_t config = test_config();

    start_card("112MiB,context=0", &config);
    oomph_stream_t side = new_stream();
    for (int step = 0; step < 8; step++)
        run_two_streams(side);
    // 44 MiB and 100 MiB in turn, with 112 MiB: 32 MiB go there and back.
    CHECK(stats_of(0).layout_hits > 0);
    CHECK(stats_of(0).step_remapped_bytes <= (int64_t)(2 * 32 * MIB));
    check_sound();
}

static void
pages_without_a_layout_go_before_those_that_are_needed_in_the_same_step(void)
{
    oomph_config_t config = test_config();
    size_t varying = 0;

    start_card("112MiB,context=0", &config);
    oomph_stream_t side = new_stream(), third = new_stream();
    for (size_t step = 0; step < 8; step++) {
        varying = (5 + step) * MIB; // never the same, so that nothing is planned
        give(take_living(varying, third));
        run_two_streams(side);
    }
    // As above; what the third stream takes goes on to `side`, from there to the other.
    CHECK(stats_of(0).step_remapped_bytes <= (int64_t)(2 * 32 * MIB + varying));
    check_sound();
}

static void pages_move_only_when_the_work_that_used_them_has_finished(void)
{
    oomph_config_t config = test_config();

    start_card("32MiB,context=0,memory=real", &config);
    oomph_stream_t first = new_stream(), second = new_stream();
    oomph_addr_t block = take(32 * MIB, first);
    CHECK(oomph_sim_launch(first, block, 32 * MIB, 1, 1000000) == CUDA_SUCCESS);
    give(block);
    uint64_t before = oomph_sim_now_ns();
    take(32 * MIB, second);
    CHECK(oomph_sim_now_ns() >= before + 1000000); // it waited for the kernel
    CHECK(stats_of(0).rungs[OOMPH_RUNG_WAIT] == 1);
    check_sound(); // and so the simulated driver saw no unmapping under work
}

static void pages_whose_work_has_finished_move_without_waiting(void)
{
    oomph_config_t config = test_config();

    start_card("32MiB,context=0,memory=real", &config);
    oomph_stream_t busy = new_stream(), idle = new_stream(), third = new_stream();
    oomph_addr_t a = take_living(16 * MIB, busy), b = take_living(16 * MIB, idle);
    give(b);
    give(take_living(16 * MIB, third)); // a shortage: epochs are kept from now on
    oomph_step();                       // closes one
    oomph_sim_hold(busy);
    CHECK(oomph_sim_launch(busy, a, 16 * MIB, 1, 1000) == CUDA_SUCCESS);
    take_living(16 * MIB, idle);
    CHECK(sim_stats_of(0).held_waits == 0); // nobody waited for the stream that is held
    oomph_sim_release(busy);
    check_sound();
}

// Work on the stream, whose wait fails with that call of the driver.
static void check_failed_wait(bool stream_lives, const char *call)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    start_card(stream_lives ? "32MiB,context=0" : "32MiB,context=0,driver=12040",
               &config);
    oomph_stream_t stream = new_stream();
    oomph_addr_t block =
        stream_lives ? take_living(32 * MIB, stream) : take(32 * MIB, stream);
    CHECK(oomph_sim_launch(stream, block, 32 * MIB, 1, 1000000) == CUDA_SUCCESS);
    give(block);
    uint64_t before = oomph_sim_now_ns();
    fail_always(call, OOMPH_ERR_DRIVER);
    CHECK(try_take(32 * MIB, NULL, &addr) != OOMPH_OK);
    fail_always(NULL, OOMPH_OK);
    CHECK(try_take(32 * MIB, NULL, &addr) == OOMPH_OK);
    CHECK(oomph_sim_now_ns() >= before + 1000000); // it waited again
    check_sound();
}

static void work_that_could_not_be_waited_for_has_not_finished(void)
{
    check_failed_wait(true, "event_wait");
}

static void work_that_could_not_be_drained_has_not_finished(void)
{
    check_failed_wait(false, "drain");
}

static void too_few_free_pages_are_not_waited_for(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    start_card("32MiB,context=0,memory=real", &config);
    oomph_stream_t stream = new_stream();
    oomph_addr_t kept = take(20 * MIB, stream), block = take(8 * MIB, stream);
    CHECK(oomph_sim_launch(stream, block, 8 * MIB, 1, 1000000) == CUDA_SUCCESS);
    give(block);
    uint64_t before = oomph_sim_now_ns();
    CHECK(try_take(16 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(oomph_sim_now_ns() < before + 1000000);
    CHECK(stats_of(0).oom_count == 1);
    check_sound();
    give(kept);
}

static void a_failed_allocation_leaves_room_for_a_smaller_one(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    start_card("32MiB,context=0,memory=real", &config);
    oomph_addr_t kept = take(20 * MIB, NULL);
    mark(kept, 20 * MIB, 5);
    CHECK(try_take(16 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(try_take(12 * MIB, NULL, &addr) == OOMPH_OK);
    CHECK(is_marked(kept, 20 * MIB, 5));
    check_sound();
}

static void a_driver_that_has_fewer_pages_than_it_says_is_out_of_memory(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    start_card("32MiB,context=0", &config);
    give(take(4 * MIB, NULL));
    fail_always("create", OOMPH_ERR_NO_MEMORY);
    CHECK(try_take(16 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    fail_always(NULL, OOMPH_OK);
    check_sound();
}

static void what_others_took_meanwhile_comes_from_free_pages(void)
{
    oomph_config_t config = test_config();
    CUdeviceptr library;

    start_card("64MiB,context=0", &config);
    oomph_stream_t other = new_stream();
    give(take_living(32 * MIB, other)); // the driver said that 32 MiB are left
    CHECK(cuMemAlloc(&library, 28 * MIB) == CUDA_SUCCESS);
    take(24 * MIB, NULL);
    CHECK(stats_of(0).pages_remapped == 10);
    check_sound();
}

static void the_driver_is_asked_what_is_left_once_per_gibibyte(void)
{
    oomph_config_t config = test_config();

    start_card("16GiB,context=0,memory=none", &config);
    take(PAGE, NULL);
    uint64_t asked_before = oomph_sim_call_count("cuMemGetInfo");
    for (int i = 0; i < 16; i++)
        take(GIB / 4, NULL);
    uint64_t count = oomph_sim_call_count("cuMemGetInfo") - asked_before;
    CHECK(count >= 3 && count <= 4);
}

/* ---- Other streams */

static void a_block_is_reused_only_when_its_other_streams_are_done(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    oomph_stream_t other = new_stream();
    oomph_addr_t block = take(4 * MIB, NULL);
    CHECK(oomph_record_stream(block, 0, other, false) == OOMPH_OK);
    CHECK(oomph_record_stream(block, 0, other, false) == OOMPH_OK); // once is enough
    oomph_sim_hold(other);
    CHECK(oomph_sim_launch(other, block, 4 * MIB, 1, 1000) == CUDA_SUCCESS);
    give(block);
    CHECK(stats_of(0).active[0].current == 1 && stats_of(0).allocation[0].current == 0);
    for (int i = 0; i < 20; i++) {
        oomph_addr_t next = take(4 * MIB, NULL);
        CHECK(next != block);
        give(next);
    }
    oomph_sim_release(other);
    oomph_sim_advance(1000000);
    for (int i = 0; i < 20; i++)
        give(take(4 * MIB, NULL));
    CHECK(stats_of(0).active[0].current == 0);
    check_sound();
}

static void see_users(const oomph_block_info_t *block, void *context)
{
    *(bool *)context |= block->user != NULL;
}

static void a_freed_block_has_no_user_and_tells_whether_it_waits(void)
{
    oomph_config_t config = test_config();
    oomph_block_info_t freed;
    oomph_addr_t addr[2];
    int user[2];

    start_card("64MiB,context=0,memory=real", &config);
    oomph_stream_t other = new_stream();
    for (int i = 0; i < 2; i++) {
        oomph_request_t request = {.bytes = 4 * MIB, .user = &user[i]};
        CHECK(oomph_malloc(&request, &addr[i]) == OOMPH_OK);
    }
    CHECK(oomph_record_stream(addr[1], 0, other, false) == OOMPH_OK);
    oomph_sim_hold(other);
    CHECK(oomph_sim_launch(other, addr[1], 4 * MIB, 1, 1000) == CUDA_SUCCESS);
    CHECK(oomph_free(addr[0], &freed) == OOMPH_OK);
    CHECK(freed.state == OOMPH_BLOCK_FREE && freed.user == &user[0]);
    CHECK(oomph_free(addr[1], &freed) == OOMPH_OK);
    CHECK(freed.state == OOMPH_BLOCK_DEFERRED && freed.user == &user[1]);
    bool any = false;
    CHECK(oomph_walk(0, see_users, &any) == OOMPH_OK);
    CHECK(!any); // the caller may have destroyed it
    oomph_sim_release(other);
}

static void a_shortage_waits_for_deferred_frees(void)
{
    oomph_config_t config = test_config();

    start_card("32MiB,context=0,memory=real", &config);
    oomph_stream_t other = new_stream();
    oomph_addr_t block = take(32 * MIB, NULL);
    CHECK(oomph_record_stream(block, 0, other, false) == OOMPH_OK);
    CHECK(oomph_sim_launch(other, block, 32 * MIB, 1, 1000000) == CUDA_SUCCESS);
    give(block);
    CHECK(take(32 * MIB, NULL) != 0);
    CHECK(stats_of(0).rungs[OOMPH_RUNG_DEFERRED] >= 1);
    check_sound();
}

static void a_stream_that_vanished_is_drained(void)
{
    oomph_config_t config = test_config();

    start_card("32MiB,context=0,memory=real", &config);
    oomph_stream_t other = new_stream();
    oomph_addr_t block = take(32 * MIB, other);
    CHECK(oomph_sim_launch(other, block, 32 * MIB, 1, 1000000) == CUDA_SUCCESS);
    give(block);
    CHECK(cuStreamDestroy(other) == CUDA_SUCCESS);
    CHECK(take(32 * MIB, NULL) != 0);
    check_sound();
}

static void a_reused_handle_is_another_stream(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    oomph_stream_t first = new_stream();
    oomph_addr_t block = take(4 * MIB, first);
    give(block);
    CHECK(cuStreamDestroy(first) == CUDA_SUCCESS);
    oomph_stream_t second = new_stream();
    CHECK(second == first); // the driver hands the handle out again
    CHECK(take(4 * MIB, second) != block);
    check_sound();
}

static void streams_0_and_1_are_the_same(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t block = take(4 * MIB, NULL);
    give(block);
    CHECK(take(4 * MIB, (oomph_stream_t)1) == block);
}

/* ---- Limits */

static void a_device_limit_is_a_smaller_card(void)
{
    oomph_config_t config = test_config();
    size_t free_bytes, total_bytes;
    oomph_addr_t addr;

    config.device_limit_bytes = 16 * MIB;
    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t block = take(12 * MIB, NULL);
    CHECK(try_take(6 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(oomph_memory_info(0, &free_bytes, &total_bytes) == OOMPH_OK);
    CHECK(total_bytes == 16 * MIB && free_bytes == 4 * MIB);
    give(block);
    CHECK(take(16 * MIB, NULL) != 0);
    CHECK(stats_of(0).tier_peak_bytes[OOMPH_TIER_DEVICE] == 16 * MIB);
    CHECK(stats_of(0).device_limit_bytes == 16 * MIB);
    check_sound();
}

static void a_limit_beyond_the_card_is_refused(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    config.device_limit_bytes = 65 * MIB;
    start_card("64MiB,context=0,memory=real", &config);
    CHECK(try_take(512, NULL, &addr) == OOMPH_ERR_INVALID);
    CHECK(strstr(oomph_error_detail(), "device_limit") != NULL);
}

static void the_memory_fraction_limits_too(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    start_card("64MiB,context=0,memory=real", &config);
    CHECK(oomph_set_fraction(0, 0.25) == OOMPH_OK && oomph_get_fraction(0) == 0.25);
    CHECK(try_take(17 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(try_take(16 * MIB, NULL, &addr) == OOMPH_OK);
    CHECK(oomph_set_fraction(0, 1) == OOMPH_OK);
    CHECK(try_take(17 * MIB, NULL, &addr) == OOMPH_OK);
    CHECK(oomph_set_fraction(0, 1.5) == OOMPH_ERR_INVALID);
    CHECK(oomph_set_fraction(0, -1) == OOMPH_ERR_INVALID);
}

static void the_reserve_stays_free_except_for_small_blocks_and_workspaces(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    config.reserve_bytes = 16 * MIB;
    start_card("64MiB,context=0,memory=real", &config);
    take(48 * MIB, NULL);
    CHECK(oomph_forbid_offload(OOMPH_BAN_TRIAL) == OOMPH_OK); // which leaves it alone
    CHECK(try_take(2 * MIB + 512, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(try_take(MIB, NULL, &addr) == OOMPH_OK);
    oomph_request_t workspace = {.bytes = 4 * MIB, .may_use_reserve = true};
    CHECK(oomph_malloc(&workspace, &addr) == OOMPH_OK);
    workspace.bytes = 8 * MIB; // half of the reserve is not theirs
    CHECK(oomph_malloc(&workspace, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(oomph_allow_offload(OOMPH_BAN_TRIAL) == OOMPH_OK);
    CHECK(oomph_malloc(&workspace, &addr) == OOMPH_OK); // before the error, it is
    check_sound();
}

static void what_a_step_needs_of_the_reserve_stays_for_the_next(void)
{
    oomph_config_t config = test_config();

    config.reserve_bytes = 16 * MIB;
    start_card("64MiB,context=0,memory=real", &config);
    for (int i = 0; i < 3; i++) {
        give(take(60 * MIB, NULL));
        oomph_step();
        CHECK(sim_stats_of(0).used_bytes == 60 * MIB);
    }
    give(take(40 * MIB, NULL));
    oomph_step();
    CHECK(sim_stats_of(0).used_bytes == 48 * MIB);
    check_sound();
}

static void a_step_gives_the_reserve_back(void)
{
    oomph_config_t config = test_config();
    CUdeviceptr library;

    config.reserve_bytes = 16 * MIB;
    start_card("64MiB,context=0,memory=real", &config);
    new_stream(); // a current context
    give(take(48 * MIB, NULL));
    CHECK(cuMemAlloc(&library, 12 * MIB) == CUDA_SUCCESS); // a library helps itself
    oomph_step();
    CHECK(sim_stats_of(0).used_bytes == 48 * MIB);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_DEVICE] == 36 * MIB);
    check_sound();
}

static void empty_cache_returns_all_that_is_free(void)
{
    oomph_config_t config = test_config();
    size_t freed = 0;

    start_card("64MiB,context=0,memory=real", &config);
    new_stream(); // a current context
    oomph_addr_t kept = take(4 * MIB, NULL), block = take(8 * MIB, NULL);
    mark(kept, 4 * MIB, 3);
    give(take(1000, NULL));
    CHECK(oomph_sim_launch(NULL, block, 8 * MIB, 1, 1000000) == CUDA_SUCCESS);
    give(block);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed == 10 * MIB);
    CHECK(sim_stats_of(0).used_bytes == 4 * MIB);
    CHECK(is_marked(kept, 4 * MIB, 3));
    CHECK(stats_of(0).reserved_bytes[0].current == 4 * MIB);
    check_sound();
}

static void empty_cache_returns_what_other_streams_used_too(void)
{
    oomph_config_t config = test_config();
    size_t freed = 0;

    start_card("64MiB,context=0,memory=real", &config);
    oomph_stream_t other = new_stream();
    oomph_addr_t block = take(8 * MIB, NULL);
    CHECK(oomph_record_stream(block, 0, other, false) == OOMPH_OK);
    CHECK(oomph_sim_launch(other, block, 8 * MIB, 1, 1000000) == CUDA_SUCCESS);
    give(block);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed == 8 * MIB);
    check_sound();
}

/* ---- Pools */

static const oomph_pool_id_t graph = {1, 0};

static oomph_addr_t take_from(oomph_pool_id_t pool, size_t bytes)
{
    oomph_request_t request = {.bytes = bytes, .pool = pool};
    oomph_addr_t addr = 0;

    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK);
    return addr;
}

static void a_pool_in_use_keeps_its_pages(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;
    size_t freed;

    start_card("32MiB,context=0,memory=real", &config);
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    CHECK(oomph_pool_use_count(0, graph) == 1);
    oomph_addr_t block = take_from(graph, 24 * MIB);
    give(block);
    CHECK(try_take(16 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed == 0);
    CHECK(take_from(graph, 24 * MIB) == block);
    give(block);
    CHECK(oomph_pool_release(0, graph) == OOMPH_OK);
    CHECK(try_take(16 * MIB, NULL, &addr) == OOMPH_OK); // now they are everybody's
    CHECK(oomph_pool_release(0, graph) == OOMPH_ERR_INVALID);
    check_sound();
}

static oomph_stat_t reserved_for(oomph_pool_id_t pool, size_t *count)
{
    oomph_pool_stats_t rows[4];

    CHECK(oomph_get_pool_stats(0, rows, 4, count) == OOMPH_OK && *count <= 4);
    for (size_t i = 0; i < *count; i++)
        if (rows[i].pool.first == pool.first && rows[i].pool.second == pool.second)
            return rows[i].reserved_bytes[OOMPH_STAT_ALL];
    return (oomph_stat_t){0};
}

static void what_is_reserved_for_each_pool_is_reported(void)
{
    oomph_config_t config = test_config();
    oomph_pool_id_t other = {7, 7};
    size_t count, freed;

    start_card("64MiB,context=0,memory=real", &config);
    CHECK(reserved_for(graph, &count).current == 0 && count == 0);
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    CHECK(oomph_pool_retain(0, other) == OOMPH_OK);
    oomph_addr_t of_none = take(6 * MIB, NULL), a = take_from(graph, 8 * MIB);
    oomph_addr_t b = take_from(graph, 4 * MIB), of_other = take_from(other, 2 * MIB);
    give(a);
    oomph_stat_t stat = reserved_for(graph, &count);
    CHECK(count == 2);
    CHECK(stat.current == 12 * MIB && stat.peak == 12 * MIB);
    CHECK(stat.allocated == 12 * MIB && stat.freed == 0);
    CHECK(reserved_for(other, &count).current == 2 * MIB);
    CHECK(oomph_pool_release(0, graph) == OOMPH_OK);
    CHECK(oomph_empty_cache(0, graph, &freed) == OOMPH_OK && freed == 8 * MIB);
    stat = reserved_for(graph, &count);
    CHECK(stat.current == 4 * MIB && stat.peak == 12 * MIB && stat.freed == 8 * MIB);
    CHECK(oomph_reset_peak_stats(0) == OOMPH_OK);
    CHECK(oomph_reset_accumulated_stats(0) == OOMPH_OK);
    stat = reserved_for(graph, &count);
    CHECK(stat.current == 4 * MIB && stat.peak == 4 * MIB);
    CHECK(stat.allocated == 0 && stat.freed == 0);
    oomph_pool_stats_t row;
    CHECK(oomph_get_pool_stats(0, &row, 1, &count) == OOMPH_OK && count == 2);
    give(b);
    give(of_none);
    give(of_other);
    check_sound();
}

static void a_pool_may_serve_others_before_an_error(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    start_card("32MiB,context=0,memory=real", &config);
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    CHECK(oomph_pool_set_flag(0, graph, OOMPH_POOL_ON_OOM, true) == OOMPH_OK);
    give(take_from(graph, 24 * MIB));
    CHECK(try_take(16 * MIB, NULL, &addr) == OOMPH_OK);
    check_sound();
}

static void a_pool_may_forbid_splitting(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    CHECK(oomph_pool_set_flag(0, graph, OOMPH_POOL_NO_SPLIT, true) == OOMPH_OK);
    give(take_from(graph, 8 * MIB));
    oomph_addr_t block = take_from(graph, 4 * MIB);
    oomph_block_info_t info;
    CHECK(oomph_lookup(block, &info) == OOMPH_OK && info.bytes == 8 * MIB);
    check_sound();
}

static void a_block_can_be_put_back_at_its_address(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    oomph_addr_t a = take_from(graph, 4 * MIB), b = take_from(graph, 6 * MIB);
    give(a);
    give(b);
    oomph_request_t request = {.bytes = 6 * MIB, .pool = graph};
    CHECK(oomph_revive(&request, b) == OOMPH_OK);
    CHECK(oomph_revive(&request, b) == OOMPH_ERR_INVALID);
    request.bytes = 4 * MIB;
    CHECK(oomph_revive(&request, a) == OOMPH_OK);
    CHECK(oomph_revive(&request, 12345) == OOMPH_ERR_INVALID);
    give(a);
    give(b);
    check_sound();
}

static void a_block_is_not_put_back_where_pages_are_missing(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0", &config);
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    oomph_addr_t block = take_from(graph, 4 * MIB);
    give(block);
    oomph_request_t request = {.bytes = 6 * MIB, .pool = graph};
    CHECK(oomph_revive(&request, block) == OOMPH_ERR_INVALID);
    check_sound();
}

typedef struct source {
    size_t taken, given;
    bool empty;
} source_t;

static oomph_addr_t source_take(void *context, size_t bytes, oomph_stream_t stream)
{
    source_t *source = context;
    CUdeviceptr pointer = 0;

    (void)stream;
    if (source->empty || cuMemAlloc(&pointer, bytes) != CUDA_SUCCESS)
        return 0;
    source->taken++;
    return pointer;
}

static void source_give(void *context, oomph_addr_t addr)
{
    source_t *source = context;

    CHECK(cuMemFree(addr) == CUDA_SUCCESS);
    source->given++;
}

static void a_pool_may_have_memory_from_elsewhere(void)
{
    oomph_config_t config = test_config();
    source_t source = {0};
    oomph_source_t calls = {source_take, source_give, &source};
    oomph_request_t request = {.bytes = 5 * MIB, .pool = graph};
    oomph_addr_t addr;
    size_t freed;

    start_card("64MiB,context=0,memory=real", &config);
    new_stream(); // a current context
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    CHECK(oomph_pool_set_source(0, graph, &calls) == OOMPH_OK);
    oomph_addr_t block = take_from(graph, 3 * MIB);
    CHECK(source.taken == 1 && stats_of(0).foreign_bytes == (int64_t)(4 * MIB));
    mark(block, 3 * MIB, 9);
    CHECK(is_marked(block, 3 * MIB, 9));
    give(block);
    CHECK(take_from(graph, 2 * MIB) == block); // cached
    source.empty = true;
    CHECK(oomph_malloc(&request, &addr) == OOMPH_ERR_NO_MEMORY);
    check_sound();
    give(block);
    CHECK(oomph_pool_release(0, graph) == OOMPH_OK);
    CHECK(oomph_empty_cache(0, graph, &freed) == OOMPH_OK);
    CHECK(source.given == 1 && stats_of(0).foreign_bytes == 0);
    check_sound();
}

/* ---- Callbacks */

static oomph_addr_t cached; // what the embedder could free
static int asked;

static void free_cached(int device)
{
    CHECK(device == 0);
    asked++;
    if (cached != 0)
        give(cached);
    cached = 0;
}

static void the_embedder_is_asked_to_free_what_it_caches(void)
{
    oomph_config_t config = test_config();
    oomph_hooks_t hooks = {.free_memory = free_cached};
    oomph_addr_t addr;

    oomph_set_hooks(&hooks);
    start_card("32MiB,context=0,memory=real", &config);
    cached = take(20 * MIB, NULL);
    CHECK(try_take(16 * MIB, NULL, &addr) == OOMPH_OK && asked == 1);
    CHECK(stats_of(0).rungs[OOMPH_RUNG_CALLBACKS] == 1);
    check_sound();
}

static void an_embedder_that_freed_nothing_is_asked_before_each_error_all_the_same(void)
{
    oomph_config_t config = test_config();
    oomph_hooks_t hooks = {.free_memory = free_cached};
    oomph_addr_t addr;

    oomph_set_hooks(&hooks);
    start_card("32MiB,context=0,memory=real", &config);
    oomph_addr_t kept = take(20 * MIB, NULL);
    CHECK(try_take(16 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY && asked == 1);
    cached = kept;
    CHECK(try_take(16 * MIB, NULL, &addr) == OOMPH_OK && asked == 2);
}

/* ---- Garbage */

static oomph_addr_t garbage[8]; // what the embedder's collector could free
static size_t garbage_count;
static int looks, last_looks;
static bool cannot_look;
static long nap_ms; // that looking takes

static bool collect_garbage(bool last, size_t *bytes)
{
    looks++;
    last_looks += last;
    nanosleep(&(struct timespec){.tv_nsec = nap_ms * 1000000}, NULL);
    oomph_collection_begin();
    while (!cannot_look && garbage_count > 0)
        give(garbage[--garbage_count]);
    *bytes = oomph_collection_end();
    return !cannot_look;
}

static void start_with_garbage(size_t host_limit_bytes)
{
    oomph_config_t config = test_config();
    oomph_hooks_t hooks = {.free_memory = free_cached,
                           .collect_garbage = collect_garbage};

    config.host_limit_bytes = host_limit_bytes;
    oomph_set_hooks(&hooks);
    start_card("32MiB,context=0,memory=real", &config);
    garbage_count = 2;
    for (size_t i = 0; i < garbage_count; i++)
        garbage[i] = take(8 * MIB, NULL);
}

static void garbage_is_collected_before_a_block_falls_back_to_the_host(void)
{
    start_with_garbage(64 * MIB);
    oomph_addr_t kept = take(8 * MIB, NULL);
    mark(kept, 8 * MIB, 1ull << 40);
    oomph_addr_t addr = take(20 * MIB, NULL);
    mark(addr, 20 * MIB, 2ull << 40);
    CHECK(looks == 1 && last_looks == 0 && asked == 1);
    CHECK(stats_of(0).rescues == 0 && stats_of(0).garbage_bytes == 16 * MIB);
    CHECK(stats_of(0).rungs[OOMPH_RUNG_GARBAGE] == 1);
    CHECK(is_marked(kept, 8 * MIB, 1ull << 40));
    CHECK(is_marked(addr, 20 * MIB, 2ull << 40));
    check_sound();
}

static void what_others_free_is_no_garbage(void)
{
    start_with_garbage(64 * MIB);
    cached = take(8 * MIB, NULL);
    take(16 * MIB, NULL);
    CHECK(asked == 1 && looks == 0 && stats_of(0).garbage_bytes == 0);
}

static void a_collection_in_vain_is_repeated_before_errors_alone(void)
{
    oomph_addr_t addr;

    start_with_garbage(16 * MIB);
    take(16 * MIB, NULL);
    garbage_count = 0; // it can be reached after all
    nap_ms = 100;
    take(12 * MIB, NULL);
    CHECK(looks == 1 && stats_of(0).rescues == 1);
    take(3 * MIB, NULL);
    CHECK(looks == 1 && stats_of(0).rescues == 2);
    CHECK(try_take(12 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(looks == 2 && last_looks == 1);
    garbage_count = 2;
    CHECK(try_take(12 * MIB, NULL, &addr) == OOMPH_OK);
    CHECK(looks == 3 && stats_of(0).rescues == 2);
    check_sound();
}

static void before_the_error_of_an_attempt_garbage_is_collected_as_seldom(void)
{
    oomph_addr_t addr;

    start_with_garbage(0);
    garbage_count = 0;
    nap_ms = 100;
    CHECK(!oomph_set_attempt(true) && oomph_is_attempt());
    CHECK(try_take(20 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(looks == 1 && last_looks == 0);
    garbage_count = 2;
    CHECK(try_take(20 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY && looks == 1);
    CHECK(oomph_set_attempt(false) && !oomph_is_attempt());
    CHECK(try_take(20 * MIB, NULL, &addr) == OOMPH_OK);
    CHECK(looks == 2 && last_looks == 1);
    check_sound();
}

static void where_garbage_cannot_be_collected_the_error_says_so(void)
{
    oomph_addr_t addr;

    start_with_garbage(0);
    cannot_look = true;
    CHECK(try_take(20 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(strstr(oomph_error_detail(), "garbage collector could not run") != NULL);
    CHECK(last_looks == 1); // the first time was no reason to give up
    cannot_look = false;
    CHECK(try_take(20 * MIB, NULL, &addr) == OOMPH_OK);
    check_sound();
}

static void the_garbage_of_a_pool_with_a_source_of_its_own_is_collected(void)
{
    source_t source = {0};
    oomph_source_t calls = {source_take, source_give, &source};

    start_with_garbage(0);
    new_stream(); // a current context
    CHECK(oomph_pool_retain(0, graph) == OOMPH_OK);
    CHECK(oomph_pool_set_source(0, graph, &calls) == OOMPH_OK);
    garbage[garbage_count++] = take_from(graph, 4 * MIB);
    source.empty = true;
    CHECK(take_from(graph, 4 * MIB) != 0 && looks == 1);
    check_sound();
}

/* ---- Room */

static oomph_addr_t saved[8]; // what the embedder can send away, what goes first last
static size_t saved_count, asked_for;
static int sent;

static size_t make_room(int device, size_t bytes)
{
    size_t freed = 0;

    CHECK(device == 0);
    sent++;
    asked_for = bytes;
    while (freed < bytes && saved_count > 0) {
        give(saved[--saved_count]);
        freed += 8 * MIB;
    }
    return freed;
}

static void start_with_saved(size_t host_limit_bytes, bool strict)
{
    oomph_config_t config = test_config();
    oomph_hooks_t hooks = {.make_room = make_room};

    config.host_limit_bytes = host_limit_bytes;
    config.strict = strict;
    oomph_set_hooks(&hooks);
    start_card("32MiB,context=0,memory=real", &config);
    saved_count = 2;
    for (size_t i = 0; i < saved_count; i++)
        saved[i] = take(8 * MIB, NULL);
}

static void what_is_used_last_leaves_before_a_block_falls_back(void)
{
    start_with_saved(64 * MIB, false);
    oomph_addr_t kept = take(8 * MIB, NULL);
    mark(kept, 8 * MIB, 1ull << 40);
    oomph_addr_t addr = take(14 * MIB, NULL); // of which 8 MiB are free
    mark(addr, 14 * MIB, 2ull << 40);
    CHECK(sent == 1 && asked_for == 6 * MIB && saved_count == 1);
    CHECK(stats_of(0).rescues == 0 && stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 0);
    CHECK(stats_of(0).rungs[OOMPH_RUNG_ROOM] == 1);
    CHECK(is_marked(kept, 8 * MIB, 1ull << 40));
    CHECK(is_marked(addr, 14 * MIB, 2ull << 40));
    check_sound();
}

static void what_did_not_leave_falls_back(void)
{
    start_with_saved(64 * MIB, false);
    saved_count = 1; // the other is in use
    take(8 * MIB, NULL);
    take(24 * MIB, NULL);
    CHECK(sent == 2 && saved_count == 0 && stats_of(0).rescues == 1);
    take(2 * MIB, NULL);
    CHECK(stats_of(0).rungs[OOMPH_RUNG_ROOM] == 1); // nothing came of the others
    check_sound();
}

static void nothing_leaves_for_a_block_that_must_not_be_rescued(void)
{
    oomph_addr_t addr;

    start_with_saved(64 * MIB, true);
    CHECK(try_take(20 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY && sent == 0);
    check_sound();
}

static void nothing_leaves_while_offload_is_forbidden(void)
{
    oomph_addr_t addr;

    start_with_saved(64 * MIB, false);
    CHECK(oomph_forbid_offload(OOMPH_BAN_REGION) == OOMPH_OK);
    CHECK(try_take(20 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY && sent == 0);
    CHECK(oomph_allow_offload(OOMPH_BAN_REGION) == OOMPH_OK);
    CHECK(try_take(20 * MIB, NULL, &addr) == OOMPH_OK && sent == 1);
    CHECK(stats_of(0).rescues == 0);
    check_sound();
}

static void others_leave_for_a_trial_that_never_falls_back_itself(void)
{
    oomph_addr_t addr;

    start_with_saved(64 * MIB, false);
    CHECK(oomph_forbid_offload(OOMPH_BAN_TRIAL) == OOMPH_OK);
    CHECK(try_take(20 * MIB, NULL, &addr) == OOMPH_OK && sent == 1);
    CHECK(try_take(24 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(stats_of(0).rescues == 0 && stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 0);
    CHECK(oomph_allow_offload(OOMPH_BAN_TRIAL) == OOMPH_OK);
    CHECK(try_take(24 * MIB, NULL, &addr) == OOMPH_OK && stats_of(0).rescues == 1);
    check_sound();
}

/* ---- Captures */

static void a_capture_is_neither_waited_for_nor_disturbed(void)
{
    oomph_config_t config = test_config();
    CUgraph captured = NULL;
    oomph_addr_t addr;

    config.host_limit_bytes = 64 * MIB;
    start_card("32MiB,context=0,memory=real", &config);
    oomph_stream_t stream = new_stream();
    oomph_addr_t block = take(24 * MIB, stream);
    give(block);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(oomph_pool_begin(0, graph, stream, false) == OOMPH_OK);
    oomph_request_t request = {.bytes = 4 * MIB, .stream = stream, .pool = graph};
    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK); // maps pages while capturing
    CHECK(try_take(24 * MIB, NULL, &addr) ==
          OOMPH_ERR_NO_MEMORY); // neither waits nor spills
    CHECK(stats_of(0).rescues == 0);
    CHECK(cuStreamEndCapture(stream, &captured) == CUDA_SUCCESS); // still valid
    CHECK(oomph_pool_end(0, stream, false) == OOMPH_OK);
    CHECK(try_take(24 * MIB, NULL, &addr) == OOMPH_OK);
    check_sound();
}

static void a_free_deferred_in_a_capture_waits_for_its_end(void)
{
    oomph_config_t config = test_config();
    CUgraph captured = NULL;

    start_card("64MiB,context=0,memory=real", &config);
    oomph_stream_t stream = new_stream();
    oomph_addr_t block = take(4 * MIB, NULL);
    CHECK(oomph_record_stream(block, 0, stream, true) == OOMPH_OK);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    give(block);
    for (int i = 0; i < 20; i++)
        give(take(512, NULL));
    CHECK(stats_of(0).active[0].current == 1);
    CHECK(cuStreamEndCapture(stream, &captured) == CUDA_SUCCESS);
    for (int i = 0; i < 20; i++)
        give(take(512, NULL));
    CHECK(stats_of(0).active[0].current == 0);
    check_sound();
}

/* ---- Devices */

static void devices_have_memory_of_their_own(void)
{
    oomph_config_t config = test_config();
    oomph_request_t request = {.device = 1, .bytes = 24 * MIB};
    oomph_addr_t addr;

    start_card("32MiB,devices=2,context=0,memory=real", &config);
    take(24 * MIB, NULL);
    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK);
    CHECK(sim_stats_of(0).used_bytes == 24 * MIB &&
          sim_stats_of(1).used_bytes == 24 * MIB);
    CHECK(oomph_malloc(&request, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(stats_of(0).oom_count == 0 && stats_of(1).oom_count == 1);
    check_sound();
}

static void a_device_is_opened_by_its_first_use(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,devices=2,memory=real,context=8MiB", &config);
    take(512, NULL);
    CHECK(sim_stats_of(0).context_bytes == 8 * MIB &&
          sim_stats_of(1).context_bytes == 0);
}

static void a_peer_sees_what_is_mapped_before_and_after(void)
{
    oomph_config_t config = test_config();
    CUmemLocation peer = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    unsigned long long flags = 0;

    start_card("64MiB,devices=2,context=0,memory=real", &config);
    oomph_addr_t before = take(4 * MIB, NULL);
    CHECK(cuMemGetAccess(&flags, &peer, before) == CUDA_SUCCESS && flags == 0);
    CHECK(oomph_enable_peer(0, 1) == OOMPH_OK);
    oomph_addr_t after = take(24 * MIB, NULL);
    CHECK(cuMemGetAccess(&flags, &peer, before) == CUDA_SUCCESS);
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK(cuMemGetAccess(&flags, &peer, after) == CUDA_SUCCESS);
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

/* ---- Bad days */

static void settings_are_fixed_once_started(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    CHECK(oomph_configure(&config) == OOMPH_ERR_STATE);
}

static void host_memory_is_limited_until_a_device_is_open(void)
{
    oomph_config_t config = test_config();
    oomph_stats_t stats;

    start_card("64MiB,context=0,memory=real", &config);
    CHECK(oomph_limit_host(6 * MIB));
    take(2 * MIB, NULL);
    CHECK(!oomph_limit_host(8 * MIB));
    CHECK(oomph_get_stats(0, &stats) == OOMPH_OK);
    CHECK(stats.host_limit_bytes == 6 * MIB);
}

static void bad_settings_are_refused(void)
{
    oomph_config_t config = test_config();

    config.page_bytes = 3 * MIB;
    CHECK(oomph_configure(&config) == OOMPH_ERR_INVALID);
    config.page_bytes = 0;
    config.device_limit_fraction = 1.5;
    CHECK(oomph_configure(&config) == OOMPH_ERR_INVALID);
}

static void a_page_smaller_than_the_granularity_is_refused(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    config.page_bytes = MIB;
    start_card("64MiB,context=0,memory=real", &config);
    CHECK(try_take(512, NULL, &addr) == OOMPH_ERR_INVALID);
}

static void larger_pages_work_alike(void)
{
    oomph_config_t config = test_config();

    config.page_bytes = 8 * MIB;
    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t a = take(12 * MIB, NULL), b = take(12 * MIB, NULL);
    CHECK(sim_stats_of(0).used_bytes == 24 * MIB);
    give(a);
    give(b);
    CHECK(take(64 * MIB, NULL) != 0);
    check_sound();
}

static void an_old_driver_is_named(void)
{
    int device_count;

    CHECK(oomph_sim_configure("1GiB,driver=11080") == 0);
    CHECK(oomph_start(&device_count) == OOMPH_ERR_DRIVER);
    CHECK(strstr(oomph_error_detail(), "CUDA 11.8") != NULL);
}

static void a_forked_child_can_do_nothing_and_breaks_nothing(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;
    int status;

    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t block = take(4 * MIB, NULL);
    pid_t child = fork();
    if (child == 0) {
        CHECK(try_take(512, NULL, &addr) == OOMPH_ERR_STATE);
        CHECK(oomph_free(block, NULL) == OOMPH_ERR_STATE);
        oomph_step();
        oomph_stop();
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    give(block);
    check_sound();
}

static void a_driver_that_is_shutting_down_is_no_error_for_frees(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t block = take(4 * MIB, NULL);
    oomph_sim_deinit();
    give(block);
    oomph_stop();
}

static void a_broken_driver_is_not_called_out_of_memory(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    start_card("64MiB,context=0,memory=real", &config);
    take(512, NULL);
    fail_always("memory_info", OOMPH_ERR_DRIVER);
    CHECK(try_take(70 * MIB, NULL, &addr) == OOMPH_ERR_DRIVER);
    fail_always(NULL, OOMPH_OK);
    CHECK(try_take(8 * MIB, NULL, &addr) == OOMPH_OK);
    check_sound();
}

static void statistics_can_be_reset(void)
{
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    give(take(8 * MIB, NULL));
    oomph_addr_t kept = take(3 * MIB, NULL);
    CHECK(stats_of(0).allocated_bytes[0].peak == 8 * MIB);
    CHECK(oomph_reset_peak_stats(0) == OOMPH_OK);
    CHECK(stats_of(0).allocated_bytes[0].peak == 3 * MIB);
    CHECK(oomph_reset_accumulated_stats(0) == OOMPH_OK);
    CHECK(stats_of(0).allocation[0].allocated == 0);
    CHECK(stats_of(0).allocation[0].current == 1);
    give(kept);
}

typedef struct seen {
    size_t used_bytes, count;
} seen_t;

static void see(const oomph_block_info_t *block, void *context)
{
    seen_t *seen = context;

    seen->count++;
    if (block->state == OOMPH_BLOCK_USED)
        seen->used_bytes += block->bytes;
}

static void a_walk_sees_every_block(void)
{
    oomph_config_t config = test_config();
    seen_t seen = {0};

    start_card("64MiB,context=0,memory=real", &config);
    take(512, NULL);
    take(3 * MIB, new_stream());
    give(take(8 * MIB, NULL));
    CHECK(oomph_walk(0, see, &seen) == OOMPH_OK);
    CHECK(seen.used_bytes == 512 + 3 * MIB && seen.count >= 4);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(no_bytes_are_no_block),
        TEST(blocks_are_aligned_and_apart),
        TEST(small_and_large_blocks_never_share_a_page),
        TEST(a_freed_block_is_given_again_without_a_driver_call),
        TEST(a_foreign_address_is_refused),
        TEST(a_block_cannot_be_freed_twice),
        TEST(absurd_sizes_are_no_memory_and_change_nothing),
        TEST(a_device_that_is_not_there_is_refused),
        TEST(lookup_tells_the_block_that_contains_an_address),
        TEST(free_pages_of_any_hole_serve_a_large_block),
        TEST(what_is_left_of_a_block_fills_a_hole_beside_it),
        TEST(free_pages_of_one_stream_serve_another),
        TEST(a_block_that_waited_for_a_free_counts_as_a_retry),
        TEST(a_watcher_hears_of_pages_that_are_unmapped),
        TEST(streams_that_repeat_take_turns_with_no_more_pages_than_they_lack),
        TEST(pages_without_a_layout_go_before_those_that_are_needed_in_the_same_step),
        TEST(pages_move_only_when_the_work_that_used_them_has_finished),
        TEST(pages_whose_work_has_finished_move_without_waiting),
        TEST(work_that_could_not_be_waited_for_has_not_finished),
        TEST(work_that_could_not_be_drained_has_not_finished),
        TEST(too_few_free_pages_are_not_waited_for),
        TEST(a_failed_allocation_leaves_room_for_a_smaller_one),
        TEST(a_driver_that_has_fewer_pages_than_it_says_is_out_of_memory),
        TEST(what_others_took_meanwhile_comes_from_free_pages),
        TEST(the_driver_is_asked_what_is_left_once_per_gibibyte),
        TEST(a_block_is_reused_only_when_its_other_streams_are_done),
        TEST(a_freed_block_has_no_user_and_tells_whether_it_waits),
        TEST(a_shortage_waits_for_deferred_frees),
        TEST(a_stream_that_vanished_is_drained),
        TEST(a_reused_handle_is_another_stream),
        TEST(streams_0_and_1_are_the_same),
        TEST(a_device_limit_is_a_smaller_card),
        TEST(a_limit_beyond_the_card_is_refused),
        TEST(the_memory_fraction_limits_too),
        TEST(the_reserve_stays_free_except_for_small_blocks_and_workspaces),
        TEST(what_a_step_needs_of_the_reserve_stays_for_the_next),
        TEST(a_step_gives_the_reserve_back),
        TEST(empty_cache_returns_all_that_is_free),
        TEST(empty_cache_returns_what_other_streams_used_too),
        TEST(a_pool_in_use_keeps_its_pages),
        TEST(a_pool_may_serve_others_before_an_error),
        TEST(a_pool_may_forbid_splitting),
        TEST(a_block_can_be_put_back_at_its_address),
        TEST(a_block_is_not_put_back_where_pages_are_missing),
        TEST(what_is_reserved_for_each_pool_is_reported),
        TEST(a_pool_may_have_memory_from_elsewhere),
        TEST(the_embedder_is_asked_to_free_what_it_caches),
        TEST(garbage_is_collected_before_a_block_falls_back_to_the_host),
        TEST(what_others_free_is_no_garbage),
        TEST(a_collection_in_vain_is_repeated_before_errors_alone),
        TEST(before_the_error_of_an_attempt_garbage_is_collected_as_seldom),
        TEST(where_garbage_cannot_be_collected_the_error_says_so),
        TEST(the_garbage_of_a_pool_with_a_source_of_its_own_is_collected),
        TEST(what_is_used_last_leaves_before_a_block_falls_back),
        TEST(what_did_not_leave_falls_back),
        TEST(nothing_leaves_for_a_block_that_must_not_be_rescued),
        TEST(nothing_leaves_while_offload_is_forbidden),
        TEST(others_leave_for_a_trial_that_never_falls_back_itself),
        TEST(an_embedder_that_freed_nothing_is_asked_before_each_error_all_the_same),
        TEST(a_capture_is_neither_waited_for_nor_disturbed),
        TEST(a_free_deferred_in_a_capture_waits_for_its_end),
        TEST(devices_have_memory_of_their_own),
        TEST(a_device_is_opened_by_its_first_use),
        TEST(a_peer_sees_what_is_mapped_before_and_after),
        TEST(settings_are_fixed_once_started),
        TEST(host_memory_is_limited_until_a_device_is_open),
        TEST(bad_settings_are_refused),
        TEST(a_page_smaller_than_the_granularity_is_refused),
        TEST(larger_pages_work_alike),
        TEST(an_old_driver_is_named),
        TEST(a_forked_child_can_do_nothing_and_breaks_nothing),
        TEST(a_driver_that_is_shutting_down_is_no_error_for_frees),
        TEST(a_broken_driver_is_not_called_out_of_memory),
        TEST(statistics_can_be_reset),
        TEST(a_walk_sees_every_block),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
