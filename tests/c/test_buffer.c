/* Buffers on the host, and what a planner hears of. */
#include "card.h"

#include <cuda.h>

static void start(const char *card)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 64 * MIB;
    start_card(card, &config);
}

static oomph_addr_t take_buffer(size_t bytes, oomph_stream_t stream)
{
    oomph_addr_t addr = 0;

    CHECK(oomph_buffer(0, bytes, stream, &addr) == OOMPH_OK);
    return addr;
}

static oomph_usage_t usage(void)
{
    oomph_usage_t found;

    CHECK(oomph_read_usage(0, &found) == OOMPH_OK);
    return found;
}

static void contents_go_out_and_come_back(void)
{
    start("32MiB,context=0,memory=real");
    oomph_stream_t stream = new_stream();
    oomph_addr_t a = take(8 * MIB, stream);
    mark(a, 8 * MIB, 1ull << 40);
    oomph_addr_t buffer = take_buffer(8 * MIB, stream);
    CHECK(oomph_copy(0, buffer, a, 8 * MIB, stream) == OOMPH_OK);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    give(a);
    oomph_addr_t b = take(32 * MIB, stream);
    CHECK(oomph_copy(0, b, buffer, 8 * MIB, stream) == OOMPH_OK);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(is_marked(b, 8 * MIB, 1ull << 40));
    give(buffer);
    check_sound();
}

static void count_buffers(const oomph_block_info_t *info, void *count)
{
    *(int *)count += info->state == OOMPH_BLOCK_USED && info->tier == OOMPH_TIER_HOST;
}

static void a_buffer_is_no_allocation_of_the_programs(void)
{
    int count = 0;

    start("32MiB,context=0,memory=real");
    give(take(2 * MIB, NULL));
    oomph_stats_t before = stats_of(0);
    oomph_addr_t buffer = take_buffer(5 * MIB + 1, NULL);
    oomph_stats_t after = stats_of(0);
    CHECK(after.buffer_bytes == 6 * MIB && after.rescues == 0);
    CHECK(after.allocation[0].allocated == before.allocation[0].allocated);
    CHECK(after.allocated_bytes[0].peak == before.allocated_bytes[0].peak);
    CHECK(after.active_bytes[0].current == 0 && after.host_block_bytes == 0);
    CHECK(oomph_walk(0, count_buffers, &count) == OOMPH_OK && count == 0);
    check_sound();
    give(buffer);
    CHECK(stats_of(0).buffer_bytes == 0);
    check_sound();
}

static void a_buffer_of_an_earlier_step_is_reused_in_turn(void)
{
    start("64MiB,context=0,memory=real");
    oomph_stream_t out = new_stream(), back = new_stream();
    oomph_addr_t first = take(8 * MIB, out), second = take(8 * MIB, out);
    oomph_addr_t to = take(8 * MIB, back), buffer = take_buffer(8 * MIB, out);
    mark(first, 8 * MIB, 1ull << 40);
    mark(second, 8 * MIB, 2ull << 40);
    CHECK(oomph_record_stream(buffer, 0, back, true) == OOMPH_OK);
    CHECK(oomph_copy(0, buffer, first, 8 * MIB, out) == OOMPH_OK);
    CHECK(cuStreamSynchronize(out) == CUDA_SUCCESS);
    oomph_sim_hold(back);
    CHECK(oomph_copy(0, to, buffer, 8 * MIB, back) == OOMPH_OK);
    give(buffer);
    oomph_addr_t another = take_buffer(8 * MIB, out);
    CHECK(another != buffer); // within a step nothing waits
    oomph_step();
    int64_t host_bytes = stats_of(0).tier_bytes[OOMPH_TIER_HOST];
    CHECK(take_buffer(8 * MIB, out) == buffer);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == host_bytes);
    CHECK(sim_stats_of(0).held_waits == 0);
    CHECK(oomph_copy(0, buffer, second, 8 * MIB, out) == OOMPH_OK);
    CHECK(cuStreamQuery(out) == CUDA_ERROR_NOT_READY); // it waits for its turn
    oomph_sim_release(back);
    CHECK(cuStreamSynchronize(out) == CUDA_SUCCESS);
    CHECK(is_marked(to, 8 * MIB, 1ull << 40));
    CHECK(is_marked(buffer, 8 * MIB, 2ull << 40));
    give(another);
    check_sound();
}

// Memory that an earlier step freed is waited for before more is made; what this step
// freed is not, as the device would have nothing to do meanwhile.
static void a_buffer_takes_what_an_earlier_step_freed(void)
{
    start("32MiB,context=0,memory=real");
    oomph_stream_t out = new_stream(), other = new_stream();
    oomph_addr_t full = take(32 * MIB, other), fallen = take(8 * MIB, other);
    CHECK(stats_of(0).rescues == 1);
    int64_t host_bytes = stats_of(0).tier_bytes[OOMPH_TIER_HOST];
    oomph_sim_hold(other);
    CHECK(oomph_sim_launch(other, fallen, 8 * MIB, 1, 1000) == 0);
    give(fallen);
    oomph_step();
    oomph_addr_t buffer = take_buffer(8 * MIB, out);
    CHECK(sim_stats_of(0).held_waits == 1);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == host_bytes);
    fallen = take(8 * MIB, other);
    host_bytes = stats_of(0).tier_bytes[OOMPH_TIER_HOST];
    oomph_sim_hold(other);
    CHECK(oomph_sim_launch(other, fallen, 8 * MIB, 1, 1000) == 0);
    give(fallen);
    give(take_buffer(8 * MIB, out));
    CHECK(sim_stats_of(0).held_waits == 1);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == host_bytes + (int64_t)(8 * MIB));
    oomph_sim_release(other);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    give(buffer);
    give(full);
    check_sound();
}

static void pages_that_a_copy_fills_stay_although_memory_was_never_short(void)
{
    start("32MiB,context=0,memory=real");
    oomph_stream_t out = new_stream();
    oomph_addr_t a = take(8 * MIB, out), buffer = take_buffer(8 * MIB, out);
    oomph_sim_hold(out);
    CHECK(oomph_copy(0, buffer, a, 8 * MIB, out) == OOMPH_OK);
    give(buffer);
    take_buffer(16 * MIB, out);
    oomph_sim_release(out);
    CHECK(cuStreamSynchronize(out) == CUDA_SUCCESS);
    check_sound();
}

static void without_host_memory_there_is_no_buffer(void)
{
    oomph_addr_t addr = 7;

    start("32MiB,context=0,memory=real");
    take_buffer(60 * MIB, NULL);
    CHECK(oomph_buffer(0, 8 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY && addr == 7);
    CHECK(strstr(oomph_error_detail(), "host_limit is 64.00 MiB") != NULL);
    CHECK(oomph_buffer(0, 0, NULL, &addr) == OOMPH_ERR_INVALID);
    CHECK(oomph_buffer(9, MIB, NULL, &addr) == OOMPH_ERR_INVALID);
    check_sound();
}

static void the_host_pages_of_buffers_outlast_a_step(void)
{
    start("32MiB,context=0,memory=real");
    take(32 * MIB, NULL);
    give(take(2 * MIB, NULL)); // a rescue: memory is short
    oomph_step();
    give(take_buffer(16 * MIB, NULL));
    oomph_step();
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] >= (int64_t)(16 * MIB));
    oomph_step(); // one without
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 0);
    check_sound();
}

// A step that has so much on the host at once; gives what is held there after it.
static int64_t held_after(size_t bytes)
{
    give(take_buffer(bytes, NULL));
    oomph_step();
    return stats_of(0).tier_bytes[OOMPH_TIER_HOST];
}

static void host_memory_that_steps_do_without_goes_back(void)
{
    start("32MiB,context=0,memory=real");
    take(32 * MIB, NULL);
    give(take(2 * MIB, NULL)); // a rescue: memory is short
    oomph_step();
    CHECK(held_after(48 * MIB) >= (int64_t)(48 * MIB));
    for (int i = 0; i < 4; i++)
        CHECK(held_after(16 * MIB) == 16 * MIB);
    check_sound();
}

static void what_steps_need_by_turns_is_soon_kept(void)
{
    int64_t made = 0;

    start("32MiB,context=0,memory=real");
    take(32 * MIB, NULL);
    give(take(2 * MIB, NULL));
    oomph_step();
    for (int i = 0; i < 64; i++) {
        int64_t before = stats_of(0).tier_bytes[OOMPH_TIER_HOST];
        oomph_addr_t buffer = take_buffer(i % 5 == 0 ? 48 * MIB : 16 * MIB, NULL);
        made += stats_of(0).tier_bytes[OOMPH_TIER_HOST] > before;
        give(buffer);
        oomph_step();
    }
    CHECK(made <= 4); // and not each of the 13 times
    check_sound();
}

static void the_usage_has_the_highest_since_it_was_read(void)
{
    start("32MiB,context=0,memory=real");
    oomph_addr_t a = take(4 * MIB, NULL);
    give(take(20 * MIB, NULL));
    oomph_usage_t first = usage();
    CHECK(first.now == 4 * MIB && first.high == 24 * MIB);
    CHECK(first.device_bytes == 32 * MIB && first.host_high == 0);
    give(take(2 * MIB, NULL));
    CHECK(usage().high == 6 * MIB);
    CHECK(stats_of(0).allocated_bytes[0].peak == 24 * MIB); // the program's own figure
    take(28 * MIB, NULL);
    give(take(6 * MIB, NULL)); // on the host
    oomph_usage_t last = usage();
    CHECK(last.high == 38 * MIB && last.host_high == 6 * MIB && last.host == 0);
    CHECK(usage().host_high == 0);
    CHECK(oomph_reset_peak_stats(0) == OOMPH_OK);
    CHECK(stats_of(0).allocated_bytes[0].peak == 32 * MIB);
    give(a);
}

static void the_usage_has_the_highest_on_the_device_alone(void)
{
    start("32MiB,context=0,memory=real");
    oomph_addr_t a = take(28 * MIB, NULL);
    oomph_addr_t b = take(6 * MIB, NULL); // on the host
    give(a);
    give(take(20 * MIB, NULL));
    oomph_usage_t first = usage();
    CHECK(first.high == 34 * MIB && first.device_high == 28 * MIB);
    CHECK(usage().device_high == 0 && usage().high == 6 * MIB);
    give(b);
    give(take(4 * MIB, NULL));
    CHECK(usage().device_high == 4 * MIB);
}

static void a_peak_that_the_program_resets_is_in_the_usage(void)
{
    start("32MiB,context=0,memory=real");
    give(take(20 * MIB, NULL));
    CHECK(oomph_reset_peak_stats(0) == OOMPH_OK);
    give(take(8 * MIB, NULL));
    CHECK(stats_of(0).allocated_bytes[0].peak == 8 * MIB);
    CHECK(usage().high == 20 * MIB);
    CHECK(usage().high == 0);
    CHECK(stats_of(0).allocated_bytes[0].peak == 8 * MIB);
}

static void the_usage_is_true_of_blocks_that_moved(void)
{
    size_t moved_bytes;

    start("32MiB,context=0,memory=real");
    oomph_move_t move = {.addr = take(16 * MIB, NULL)};
    usage();
    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == OOMPH_OK);
    oomph_usage_t out = usage();
    CHECK(out.now == 16 * MIB && out.host == 16 * MIB && out.host_high == 16 * MIB);
    CHECK(oomph_move(0, OOMPH_TIER_DEVICE, &move, 1, &moved_bytes) == OOMPH_OK);
    oomph_usage_t back = usage();
    CHECK(back.now == 16 * MIB && back.high == 16 * MIB && back.host == 0);
    CHECK(back.host_high == 16 * MIB && usage().host_high == 0);
    check_sound();
}

static void a_buffer_stays_on_the_host(void)
{
    size_t moved_bytes = 7;

    start("32MiB,context=0,memory=real");
    oomph_move_t move = {.addr = take_buffer(8 * MIB, NULL)};
    CHECK(oomph_move(0, OOMPH_TIER_DEVICE, &move, 1, &moved_bytes) == OOMPH_OK);
    CHECK(move.outcome == OOMPH_OUTCOME_UNKNOWN && moved_bytes == 0);
    CHECK(oomph_pin(move.addr, true) == OOMPH_ERR_INVALID);
    for (int step = 0; step < 4; step++)
        oomph_step();
    CHECK(stats_of(0).buffer_bytes == 8 * MIB && stats_of(0).promoted_bytes == 0);
    CHECK(stats_of(0).swap_drains == 0);
    check_sound();
}

// A step in which a first block's pages are in use by a copy when a second is wanted.
static void run_step(oomph_stream_t other, size_t first_bytes, size_t second_bytes)
{
    oomph_addr_t first = take(first_bytes, NULL);

    CHECK(oomph_record_stream(first, 0, other, true) == OOMPH_OK);
    oomph_sim_hold(other);
    CHECK(oomph_sim_launch(other, first, MIB, 0, 1000) == 0);
    give(first);
    oomph_addr_t second = take(second_bytes, NULL);
    oomph_sim_release(other);
    give(second);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    oomph_step();
}

// A step in which a block of `bytes` falls back to the host.
static void fall_short(size_t bytes)
{
    oomph_addr_t full = take(16 * MIB, NULL), fallen = take(bytes, NULL);

    give(full);
    give(fallen);
    oomph_step();
    CHECK(stats_of(0).rescues == 1);
}

static void what_is_predicted_does_not_wait_in_vain(void)
{
    start("16MiB,context=0,memory=real");
    oomph_stream_t other = new_stream();
    fall_short(14 * MIB);
    oomph_addr_t kept = take(4 * MIB, NULL);
    CHECK(oomph_predict_host(0, 4 * MIB, 4 * MIB) == OOMPH_OK);
    run_step(other, 12 * MIB, 14 * MIB);
    CHECK(stats_of(0).rescues == 1 && stats_of(0).predicted_count == 1);
    CHECK(stats_of(0).predicted_bytes == 14 * MIB);
    CHECK(sim_stats_of(0).held_waits == 0);
    run_step(other, 12 * MIB, 14 * MIB);
    CHECK(stats_of(0).predicted_count == 2);
    CHECK(oomph_predict_host(0, 0, 0) == OOMPH_OK);
    run_step(other, 12 * MIB, 14 * MIB); // waits for the copy, and in vain
    CHECK(stats_of(0).predicted_count == 2 && stats_of(0).rescues == 2);
    CHECK(sim_stats_of(0).held_waits == 1);
    give(kept);
    check_sound();
}

static void what_is_predicted_waits_for_what_makes_room(void)
{
    start("16MiB,context=0,memory=real");
    oomph_stream_t other = new_stream();
    fall_short(8 * MIB);
    CHECK(oomph_predict_host(0, 4 * MIB, 4 * MIB) == OOMPH_OK);
    run_step(other, 12 * MIB, 8 * MIB);
    CHECK(stats_of(0).predicted_count == 0 && stats_of(0).rescues == 1);
    CHECK(sim_stats_of(0).held_waits == 1);
    check_sound();
}

static void what_fits_after_all_stays_on_the_device(void)
{
    start("16MiB,context=0,memory=real");
    oomph_addr_t full = take(16 * MIB, NULL), fallen = take(8 * MIB, NULL);
    oomph_block_info_t info;
    give(full);
    give(fallen);
    oomph_step();
    CHECK(oomph_predict_host(0, 4 * MIB, 4 * MIB) == OOMPH_OK);
    CHECK(oomph_lookup(take(8 * MIB, NULL), &info) == OOMPH_OK);
    CHECK(info.tier == OOMPH_TIER_DEVICE && stats_of(0).predicted_count == 0);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(contents_go_out_and_come_back),
        TEST(a_buffer_is_no_allocation_of_the_programs),
        TEST(a_buffer_of_an_earlier_step_is_reused_in_turn),
        TEST(a_buffer_takes_what_an_earlier_step_freed),
        TEST(pages_that_a_copy_fills_stay_although_memory_was_never_short),
        TEST(without_host_memory_there_is_no_buffer),
        TEST(the_host_pages_of_buffers_outlast_a_step),
        TEST(host_memory_that_steps_do_without_goes_back),
        TEST(what_steps_need_by_turns_is_soon_kept),
        TEST(the_usage_has_the_highest_since_it_was_read),
        TEST(the_usage_has_the_highest_on_the_device_alone),
        TEST(a_peak_that_the_program_resets_is_in_the_usage),
        TEST(the_usage_is_true_of_blocks_that_moved),
        TEST(a_buffer_stays_on_the_host),
        TEST(what_is_predicted_does_not_wait_in_vain),
        TEST(what_is_predicted_waits_for_what_makes_room),
        TEST(what_fits_after_all_stays_on_the_device),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
