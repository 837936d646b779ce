/* What a stream has freed is its own again at once, at another address (alias.h). */
#include "card.h"

#include <cuda.h>

static oomph_stream_t own, other;
static oomph_addr_t blocks[4]; // of 8 MiB, one after another: the whole card

// Frees the first and the third block while work of their stream still uses them.
static void free_two_in_use(const oomph_config_t *config)
{
    start_card("32MiB,context=0,memory=real", config);
    own = new_stream();
    other = new_stream();
    give(take_living(8 * MIB, other)); // frees are stamped: a stream gave to another
    give(take_living(32 * MIB, own));
    for (int i = 0; i < 4; i++)
        blocks[i] = take_living(8 * MIB, own);
    oomph_sim_hold(own);
    CHECK(oomph_sim_launch(own, blocks[0], 8 * MIB, 1, 1000) == CUDA_SUCCESS);
    CHECK(oomph_sim_launch(own, blocks[2], 8 * MIB, 1, 1000) == CUDA_SUCCESS);
    give(blocks[0]);
    give(blocks[2]);
}

static size_t aliased_pages(void)
{
    const oomph_aliases_t *aliases = &oomph_device_peek(0)->aliases;
    size_t count = 0;

    for (size_t i = 0; i < aliases->count; i++)
        count += aliases->list[i].run.count;
    return count;
}

// What is freed, and asked for again, so that the old addresses are looked at.
static void look_again(void)
{
    give(take_living(16 * MIB, own));
    give(take_living(16 * MIB, other));
}

static void it_waits_for_nothing(void)
{
    oomph_config_t config = test_config();

    free_two_in_use(&config);
    int64_t waits = stats_of(0).rungs[OOMPH_RUNG_WAIT];
    oomph_addr_t wide = take_living(16 * MIB, own);
    CHECK(stats_of(0).rungs[OOMPH_RUNG_WAIT] == waits);
    CHECK(sim_stats_of(0).held_waits == 0);
    CHECK(aliased_pages() > 0);
    CHECK(oomph_sim_launch(own, wide, 16 * MIB, 0, 1000) == CUDA_SUCCESS);
    oomph_sim_release(own);
    CHECK(cuStreamSynchronize(own) == CUDA_SUCCESS); // nothing faults
    mark(wide, 16 * MIB, wide);
    give(wide);
    look_again();
    CHECK(aliased_pages() == 0);
    check_sound();
}

static void what_is_written_after_is_what_stays(void)
{
    oomph_config_t config = test_config();

    free_two_in_use(&config);
    mark(blocks[1], 8 * MIB, 1);
    mark(blocks[3], 8 * MIB, 3);
    oomph_addr_t wide = take_living(16 * MIB, own);
    CUresult result = cuMemsetD8Async(wide, 0x11, 16 * MIB, own); // in order
    CHECK(result == CUDA_SUCCESS);
    oomph_sim_release(own);
    CHECK(cuStreamSynchronize(own) == CUDA_SUCCESS);
    for (size_t i = 0; i < 16 * MIB; i++)
        CHECK(((const uint8_t *)wide)[i] == 0x11);
    CHECK(is_marked(blocks[1], 8 * MIB, 1) && is_marked(blocks[3], 8 * MIB, 3));
    check_sound();
}

static void pages_may_move_on_before_the_first_use_has_finished(void)
{
    oomph_config_t config = test_config();

    free_two_in_use(&config);
    for (int i = 0; i < 8; i++) {
        oomph_addr_t wide = take_living(16 * MIB, own);
        CHECK(oomph_sim_launch(own, wide, 16 * MIB, 1, 1000) == CUDA_SUCCESS);
        give(wide);
        oomph_addr_t halves[2] = {take_living(6 * MIB, own), take_living(6 * MIB, own)};
        for (int k = 0; k < 2; k++) {
            CHECK(oomph_sim_launch(own, halves[k], 6 * MIB, 1, 1000) == CUDA_SUCCESS);
            give(halves[k]);
        }
    }
    CHECK(sim_stats_of(0).held_waits == 0);
    check_sound();
    oomph_sim_release(own);
    CHECK(cuStreamSynchronize(own) == CUDA_SUCCESS);
    look_again();
    CHECK(aliased_pages() == 0);
    check_sound();
}

static void another_stream_waits(void)
{
    oomph_config_t config = test_config();

    free_two_in_use(&config);
    take_living(16 * MIB, other);
    CHECK(sim_stats_of(0).held_waits > 0);
    CHECK(aliased_pages() == 0);
    check_sound();
}

// Work of another stream on pages that have moved on, which their own stream waits for
// before it uses them again: nobody told the allocator.
static void a_use_on_another_stream_is_still_safe(void)
{
    oomph_config_t config = test_config();

    free_two_in_use(&config);
    oomph_sim_hold(other);
    order_streams(own, other);
    CHECK(oomph_sim_launch(other, blocks[0], 8 * MIB, 1, 1000) == CUDA_SUCCESS);
    order_streams(other, own);
    oomph_addr_t wide = take_living(16 * MIB, own);
    CHECK(aliased_pages() > 0);
    CHECK(cuMemsetD8Async(wide, 0x11, 16 * MIB, own) == CUDA_SUCCESS);
    oomph_sim_release(own);
    oomph_step();
    CHECK(aliased_pages() > 0); // the other stream names the old address
    oomph_sim_release(other);
    CHECK(cuStreamSynchronize(own) == CUDA_SUCCESS);
    for (size_t i = 0; i < 16 * MIB; i++)
        CHECK(((const uint8_t *)wide)[i] == 0x11);
    oomph_step();
    CHECK(aliased_pages() == 0);
    check_sound();
}

static void nothing_is_aliased_with_guard(void)
{
    oomph_config_t config = test_config();

    config.guard = OOMPH_GUARD_FILL;
    free_two_in_use(&config);
    take_living(16 * MIB, own);
    CHECK(sim_stats_of(0).held_waits > 0);
    CHECK(aliased_pages() == 0);
    check_sound();
}

static void nothing_is_aliased_while_somebody_watches(void)
{
    oomph_config_t config = test_config();

    free_two_in_use(&config);
    oomph_watch(true);
    take_living(16 * MIB, own);
    CHECK(sim_stats_of(0).held_waits > 0);
    CHECK(aliased_pages() == 0);
    oomph_watch(false);
    check_sound();
}

static void what_a_graph_holds_is_not_aliased(void)
{
    oomph_config_t config = test_config();
    oomph_pool_id_t pool = {1, 0};
    oomph_request_t request = {.bytes = 16 * MIB, .pool = pool, .stream_lives = true};
    oomph_addr_t wide;

    free_two_in_use(&config);
    request.stream = own;
    CHECK(oomph_pool_begin(0, pool, own, false) == OOMPH_OK);
    CHECK(oomph_malloc(&request, &wide) == OOMPH_OK);
    CHECK(aliased_pages() == 0);
    CHECK(sim_stats_of(0).held_waits > 0);
    oomph_pool_end(0, own, false);
    check_sound();
}

static void a_segment_with_old_addresses_is_not_given_back(void)
{
    oomph_config_t config = test_config();
    size_t freed;

    free_two_in_use(&config);
    oomph_addr_t wide = take_living(16 * MIB, own);
    give(wide);
    give(blocks[1]);
    give(blocks[3]);
    oomph_step();
    check_sound();
    oomph_sim_release(own);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed == 32 * MIB);
    CHECK(aliased_pages() == 0);
    CHECK(sim_stats_of(0).handle_count == 0);
    check_sound();
}

/* ---- Failures */

static unsigned failing_now;

static void one_call_fails(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t wide;

    free_two_in_use(&config);
    mark(blocks[1], 8 * MIB, 1);
    mark(blocks[3], 8 * MIB, 3);
    unsigned before = call_count();
    fail_from_call(failing_now, OOMPH_ERR_DRIVER);
    bool failed = try_take(16 * MIB, own, &wide) != OOMPH_OK;
    bool reached = call_count() - before >= failing_now;
    fail_call(0, OOMPH_OK);
    check_sound();
    CHECK(failed || cuMemsetD8Async(wide, 0x11, 16 * MIB, own) == CUDA_SUCCESS);
    oomph_sim_release(own);
    CHECK(cuStreamSynchronize(own) == CUDA_SUCCESS);
    CHECK(is_marked(blocks[1], 8 * MIB, 1) && is_marked(blocks[3], 8 * MIB, 3));
    if (!failed)
        give(wide);
    look_again();
    CHECK(aliased_pages() == 0);
    check_sound();
    exit(reached ? 0 : 3);
}

static void whatever_fails_nothing_is_lost(void)
{
    int ended = 0;

    for (failing_now = 1; ended == 0; failing_now++)
        ended = in_child(one_call_fails);
    CHECK(ended == 3);
    CHECK(failing_now > 8);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(it_waits_for_nothing),
        TEST(what_is_written_after_is_what_stays),
        TEST(pages_may_move_on_before_the_first_use_has_finished),
        TEST(another_stream_waits),
        TEST(a_use_on_another_stream_is_still_safe),
        TEST(nothing_is_aliased_with_guard),
        TEST(nothing_is_aliased_while_somebody_watches),
        TEST(what_a_graph_holds_is_not_aliased),
        TEST(a_segment_with_old_addresses_is_not_given_back),
        TEST(whatever_fails_nothing_is_lost),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
