/* What settings and regions allow of offloading, and the rescues of past steps. */
#include "card.h"

#include <cuda.h>
#include <pthread.h>

// A card of 16 MiB with host memory enough, filled but for the bytes left.
static void start_full_card(oomph_offload_t offload, bool strict, size_t left_bytes)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 64 * MIB;
    config.offload = offload;
    config.strict = strict;
    start_card("16MiB,context=0", &config);
    take(16 * MIB - left_bytes, NULL);
}

// Whether a block of 8 MiB cannot be had, and the error says why.
static bool fails_for(const char *reason)
{
    oomph_addr_t addr;

    return try_take(8 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY &&
           strstr(oomph_error_detail(), reason) != NULL;
}

/* ---- Settings */

static void always_goes_on_at_the_moment_of_failure_as_on_oom_does(void)
{
    start_full_card(OOMPH_OFFLOAD_ALWAYS, false, 0);
    take(8 * MIB, NULL);
    CHECK(stats_of(0).rescues == 1);
    check_sound();
}

static void strict_makes_an_error_of_a_rescue_and_says_what_was_missing(void)
{
    start_full_card(OOMPH_OFFLOAD_ON_OOM, true, 2 * MIB);
    CHECK(fails_for("the device is 6.00 MiB short, and strict:yes does not allow"));
    CHECK(stats_of(0).rescues == 0 && stats_of(0).rungs[OOMPH_RUNG_HOST] == 0);
    CHECK(stats_of(0).oom_count == 1 && sim_stats_of(0).host_bytes == 0);
    check_sound();
}

static void strict_leaves_alone_what_fits(void)
{
    start_full_card(OOMPH_OFFLOAD_ON_OOM, true, 8 * MIB);
    take(8 * MIB, NULL);
    CHECK(stats_of(0).oom_count == 0);
}

static void strict_is_not_blamed_where_no_rescue_was_possible(void)
{
    oomph_config_t config = test_config();

    config.strict = true;
    config.host_limit_bytes = 4 * MIB;
    start_card("16MiB,context=0", &config);
    take(16 * MIB, NULL);
    CHECK(fails_for("host_limit is 4.00 MiB"));
}

/* ---- Regions */

static void nothing_falls_back_to_the_host_while_offload_is_forbidden(void)
{
    start_full_card(OOMPH_OFFLOAD_ON_OOM, false, 0);
    oomph_forbid_offload(OOMPH_BAN_REGION);
    CHECK(oomph_offload_is_forbidden());
    CHECK(fails_for("nothing is offloaded within oomph.no_offload()"));
    CHECK(oomph_allow_offload(OOMPH_BAN_REGION) == OOMPH_OK &&
          !oomph_offload_is_forbidden());
    take(8 * MIB, NULL);
    CHECK(stats_of(0).rescues == 1);
    check_sound();
}

static void host_memory_that_rests_is_not_used_while_offload_is_forbidden(void)
{
    start_full_card(OOMPH_OFFLOAD_ON_OOM, false, 0);
    give(take(8 * MIB, NULL));
    oomph_forbid_offload(OOMPH_BAN_REGION);
    CHECK(fails_for("nothing is offloaded"));
}

static void regions_nest(void)
{
    start_full_card(OOMPH_OFFLOAD_ON_OOM, false, 0);
    oomph_forbid_offload(OOMPH_BAN_REGION);
    oomph_forbid_offload(OOMPH_BAN_REGION);
    CHECK(oomph_allow_offload(OOMPH_BAN_REGION) == OOMPH_OK);
    CHECK(fails_for("nothing is offloaded"));
    CHECK(oomph_allow_offload(OOMPH_BAN_REGION) == OOMPH_OK);
    take(8 * MIB, NULL);
}

static void a_batch_finder_forbids_offload_as_a_region_does(void)
{
    start_full_card(OOMPH_OFFLOAD_ON_OOM, false, 0);
    CHECK(oomph_forbid_offload(OOMPH_BAN_BATCH_FINDER) == OOMPH_OK);
    oomph_forbid_offload(OOMPH_BAN_REGION);
    CHECK(fails_for("a batch finder is running"));
    CHECK(oomph_allow_offload(OOMPH_BAN_BATCH_FINDER) == OOMPH_OK);
    CHECK(!oomph_offload_is_forbidden_by(OOMPH_BAN_BATCH_FINDER));
    CHECK(oomph_allow_offload(OOMPH_BAN_BATCH_FINDER) == OOMPH_ERR_INVALID);
    CHECK(fails_for("nothing is offloaded"));
    CHECK(oomph_allow_offload(OOMPH_BAN_REGION) == OOMPH_OK);
    take(8 * MIB, NULL);
    CHECK(stats_of(0).rescues == 1);
    CHECK(oomph_forbid_offload(OOMPH_BANS) == OOMPH_ERR_INVALID);
    CHECK(oomph_allow_offload(OOMPH_BANS) == OOMPH_ERR_INVALID);
}

static void the_end_of_a_region_that_was_not_begun_is_an_error(void)
{
    CHECK(oomph_allow_offload(OOMPH_BAN_REGION) == OOMPH_ERR_INVALID);
    oomph_forbid_offload(OOMPH_BAN_REGION);
    CHECK(oomph_offload_is_forbidden());
}

static void *come_and_go(void *unused)
{
    for (int i = 0; i < 20000; i++) {
        oomph_forbid_offload(OOMPH_BAN_REGION);
        CHECK(oomph_offload_is_forbidden());
        CHECK(oomph_allow_offload(OOMPH_BAN_REGION) == OOMPH_OK);
    }
    return unused;
}

static void threads_come_and_go_through_regions(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, come_and_go, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(!oomph_offload_is_forbidden());
}

/* ---- Steps */

static void the_rescues_of_the_last_hundred_steps_are_kept(void)
{
    start_full_card(OOMPH_OFFLOAD_ON_OOM, false, 0);
    for (int step = 0; step < OOMPH_STEPS_KEPT + 3; step++) {
        for (int rescue = 0; rescue < step % 7; rescue++)
            give(take(4 * MIB, NULL));
        oomph_step();
    }
    oomph_stats_t stats = stats_of(0);
    CHECK(stats.step_count == OOMPH_STEPS_KEPT + 3);
    for (int step = 3; step < OOMPH_STEPS_KEPT + 3; step++)
        CHECK(stats.rescues_of[step % OOMPH_STEPS_KEPT] == step % 7);
}

/* ---- Drivers */

static void a_driver_is_found_without_initialising_it(void)
{
    int device_count;

    CHECK(oomph_sim_configure("16MiB,context=0,driver=12000") == 0);
    CHECK(oomph_find_driver() == OOMPH_OK);
    CHECK(cuDeviceGetCount(&device_count) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(oomph_start(&device_count) == OOMPH_OK && device_count == 1);
}

static void too_old_a_driver_is_reported(void)
{
    CHECK(oomph_sim_configure("16MiB,context=0,driver=11080") == 0);
    CHECK(oomph_find_driver() == OOMPH_ERR_DRIVER);
    CHECK(strstr(oomph_error_detail(), "for CUDA 11.8; oomph needs") != NULL);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(always_goes_on_at_the_moment_of_failure_as_on_oom_does),
        TEST(strict_makes_an_error_of_a_rescue_and_says_what_was_missing),
        TEST(strict_leaves_alone_what_fits),
        TEST(strict_is_not_blamed_where_no_rescue_was_possible),
        TEST(nothing_falls_back_to_the_host_while_offload_is_forbidden),
        TEST(host_memory_that_rests_is_not_used_while_offload_is_forbidden),
        TEST(regions_nest),
        TEST(a_batch_finder_forbids_offload_as_a_region_does),
        TEST(the_end_of_a_region_that_was_not_begun_is_an_error),
        TEST(threads_come_and_go_through_regions),
        TEST(the_rescues_of_the_last_hundred_steps_are_kept),
        TEST(a_driver_is_found_without_initialising_it),
        TEST(too_old_a_driver_is_reported),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
