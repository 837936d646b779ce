/* Host memory that fails when it is needed: what is said, and what is had later. */
#include "card.h"

#include <cuda.h>

static oomph_config_t host_config(void)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 64 * MIB;
    return config;
}

// A full card, on which the next block must fall back to the host.
static void fill_card(void)
{
    oomph_config_t config = host_config();

    start_card("16MiB,context=0,memory=real", &config);
    take_living(16 * MIB, NULL);
}

/* ---- What the error says */

static void expect_reason(const char *member, oomph_status_t status, const char *reason)
{
    oomph_addr_t addr;

    fill_card();
    give(take_living(4 * MIB, NULL)); // what works has been found
    fail_always(member, status);
    CHECK(try_take(8 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    if (strstr(oomph_error_detail(), reason) == NULL)
        fprintf(stderr, "%s\n", oomph_error_detail());
    CHECK(strstr(oomph_error_detail(), reason) != NULL);
    fail_always(NULL, OOMPH_OK);
    give(take_living(8 * MIB, NULL));
    check_sound();
}

static void the_error_names_the_call_that_failed_at_host_pages(void)
{
    expect_reason("map", OOMPH_ERR_DRIVER, "map was made to fail");
}

static void host_pages_that_the_driver_has_not_are_no_failure(void)
{
    expect_reason("create", OOMPH_ERR_NO_MEMORY,
                  "the driver gives no more host memory");
}

static void the_error_names_the_question_that_failed(void)
{
    expect_reason("stream_captures", OOMPH_ERR_DRIVER,
                  "stream_captures was made to fail");
}

/* ---- What is had later */

static void host_memory_that_failed_is_tried_again(void)
{
    oomph_addr_t addr;

    fill_card();
    oomph_sim_fail("cuMemCreate", 0, CUDA_ERROR_OUT_OF_MEMORY);
    oomph_sim_fail("cuMemHostAlloc", 0, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(try_take(8 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(stats_of(0).host_kind == OOMPH_HOST_OFF);
    oomph_sim_clear_failures();
    take_living(8 * MIB, NULL);
    CHECK(stats_of(0).rescues == 1);
    CHECK(stats_of(0).host_kind == OOMPH_HOST_NUMA);
    check_sound();
}

static oomph_outcome_t evict(oomph_addr_t addr, oomph_status_t expected)
{
    oomph_move_t move = {.addr = addr};
    size_t moved_bytes;

    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == expected);
    return move.outcome;
}

static void pages_that_the_driver_did_not_make_do_not_count_for_the_limit(void)
{
    oomph_config_t config = host_config();

    start_card("128MiB,context=0,memory=real", &config);
    oomph_addr_t first = take_living(4 * MIB, NULL);
    oomph_addr_t all = take_living(60 * MIB, NULL);
    CHECK(evict(first, OOMPH_OK) == OOMPH_OUTCOME_THERE);
    fail_always("create", OOMPH_ERR_NO_MEMORY);
    evict(all, OOMPH_ERR_NO_MEMORY);
    fail_always(NULL, OOMPH_OK);
    CHECK(evict(all, OOMPH_OK) == OOMPH_OUTCOME_THERE);
    check_sound();
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(the_error_names_the_call_that_failed_at_host_pages),
        TEST(host_pages_that_the_driver_has_not_are_no_failure),
        TEST(the_error_names_the_question_that_failed),
        TEST(host_memory_that_failed_is_tried_again),
        TEST(pages_that_the_driver_did_not_make_do_not_count_for_the_limit),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
