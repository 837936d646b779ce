/* Blocks that fall back to the host, on cards too small for them. */
#include "card.h"

#include <unistd.h>

static oomph_config_t host_config(size_t limit_bytes)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = limit_bytes;
    return config;
}

static oomph_block_info_t info_of(oomph_addr_t addr)
{
    oomph_block_info_t info;

    CHECK(oomph_lookup(addr, &info) == OOMPH_OK);
    return info;
}

static void a_block_that_finds_no_page_falls_back_to_the_host(void)
{
    oomph_config_t config = host_config(64 * MIB);

    start_card("16MiB,context=0,memory=real", &config);
    oomph_addr_t device = take(12 * MIB, NULL);
    oomph_addr_t host = take(9 * MIB + 512, NULL);
    CHECK(info_of(device).tier == OOMPH_TIER_DEVICE);
    CHECK(info_of(host).tier == OOMPH_TIER_HOST);
    CHECK(stats_of(0).rescues == 1);
    CHECK(stats_of(0).rescued_bytes == 9 * MIB + 512);
    CHECK(stats_of(0).host_block_bytes == 9 * MIB + 512);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 10 * MIB);
    CHECK(stats_of(0).host_kind == OOMPH_HOST_NUMA);
    check_sound();
}

static void its_contents_are_kept_and_work_like_any_other(void)
{
    oomph_config_t config = host_config(64 * MIB);

    start_card("16MiB,context=0,memory=real", &config);
    oomph_stream_t stream = new_stream();
    oomph_addr_t device = take(12 * MIB, stream), host = take(8 * MIB, stream);
    mark(device, 12 * MIB, 1ull << 40);
    mark(host, 8 * MIB, 2ull << 40);
    CHECK(oomph_sim_launch(stream, host, 8 * MIB, 0, 1000) == 0); // a kernel reads it
    oomph_addr_t more = take(5 * MIB, stream);
    mark(more, 5 * MIB, 3ull << 40);
    CHECK(is_marked(device, 12 * MIB, 1ull << 40));
    CHECK(is_marked(host, 8 * MIB, 2ull << 40));
    CHECK(is_marked(more, 5 * MIB, 3ull << 40));
    give(host);
    give(more);
    CHECK(is_marked(device, 12 * MIB, 1ull << 40));
    CHECK(stats_of(0).host_block_bytes == 0);
    check_sound();
}

static void device_pages_are_used_up_first(void)
{
    oomph_config_t config = host_config(64 * MIB);

    start_card("16MiB,context=0,memory=real", &config);
    oomph_stream_t stream = new_stream();
    give(take(16 * MIB, stream)); // free, but of another stream
    oomph_addr_t block = take(16 * MIB, NULL);
    CHECK(info_of(block).tier == OOMPH_TIER_DEVICE && stats_of(0).rescues == 0);
}

static void a_freed_host_block_serves_the_next_rescue_at_once(void)
{
    oomph_config_t config = host_config(64 * MIB);

    start_card("16MiB,context=0,memory=real", &config);
    take(16 * MIB, NULL);
    oomph_addr_t host = take(8 * MIB, NULL);
    give(host);
    CHECK(take(8 * MIB, NULL) == host);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 8 * MIB);
    CHECK(stats_of(0).rescues == 2);
    check_sound();
}

static void host_pages_of_one_hole_serve_another(void)
{
    oomph_config_t config = host_config(16 * MIB);

    start_card("16MiB,context=0,memory=real", &config);
    oomph_stream_t stream = new_stream();
    take(16 * MIB, NULL);
    oomph_addr_t host = take(16 * MIB, NULL);
    CHECK(oomph_sim_launch(stream, host, 16 * MIB, 1, 1000000) == 0);
    give(host);
    CHECK(info_of(take(12 * MIB, stream)).tier == OOMPH_TIER_HOST);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 16 * MIB);
}

// The hole that is chosen becomes one with those beside it when pages are moved away
// from between them.
static void a_hole_that_grows_while_pages_are_found_for_it_is_filled(void)
{
    oomph_config_t config = host_config(256 * MIB);
    size_t bytes;

    start_card("16MiB,context=0,memory=real", &config);
    take(16 * MIB, NULL);
    oomph_addr_t far = take(9 * MIB / 2, NULL);
    take(3 * MIB / 2, NULL); // shares a page with it
    oomph_stream_t stream = new_stream();
    take_living(2 * MIB, stream);
    oomph_addr_t before = take_living(8 * MIB, stream);
    oomph_addr_t between = take_living(4 * MIB, stream);
    oomph_addr_t chosen = take_living(10 * MIB, stream);
    take_living(2 * MIB, stream);
    give(before);
    give(chosen);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &bytes) == OOMPH_OK);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 14 * MIB);
    give(between);
    give(far);
    for (int i = 0; i < 2; i++) { // looks what has finished
        CHECK(oomph_largest_free(0, &bytes) == OOMPH_OK);
        oomph_sim_advance(1000000);
    }
    mark(take_living(10 * MIB, stream), 10 * MIB, 1ull << 40);
    check_sound();
}

static void small_blocks_fall_back_to_the_host_once_the_headroom_is_used(void)
{
    oomph_config_t config = host_config(64 * MIB);

    config.reserve_bytes = 8 * MIB;
    start_card("16MiB,context=0,memory=real", &config);
    oomph_addr_t large = take(8 * MIB, NULL);
    for (int i = 0; i < 4; i++)
        CHECK(info_of(take(MIB, NULL)).tier == OOMPH_TIER_DEVICE);
    oomph_addr_t addr = take(512, NULL);
    CHECK(info_of(addr).tier == OOMPH_TIER_HOST);
    CHECK(info_of(take(512, NULL)).tier == OOMPH_TIER_HOST);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 2 * MIB);
    give(large);
    give(addr);
    CHECK(info_of(take(512, NULL)).tier == OOMPH_TIER_DEVICE);
    check_sound();
}

// They are known by their size alone, which tensors may have as well.
static void workspaces_fall_back_to_the_host_once_the_headroom_is_used(void)
{
    oomph_config_t config = host_config(64 * MIB);
    oomph_request_t workspace = {.bytes = 8 * MIB, .may_use_reserve = true};
    oomph_addr_t addr;

    config.reserve_bytes = 16 * MIB;
    start_card("48MiB,context=0,memory=real", &config);
    take(32 * MIB, NULL);
    CHECK(oomph_malloc(&workspace, &addr) == OOMPH_OK);
    CHECK(info_of(addr).tier == OOMPH_TIER_DEVICE);
    CHECK(oomph_malloc(&workspace, &addr) == OOMPH_OK);
    CHECK(info_of(addr).tier == OOMPH_TIER_HOST);
    check_sound();
}

static void a_host_limit_of_0_means_none(void)
{
    oomph_config_t config = host_config(0);
    oomph_addr_t addr;

    start_card("16MiB,context=0,memory=real", &config);
    take(16 * MIB, NULL);
    CHECK(try_take(8 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(stats_of(0).rescues == 0 && sim_stats_of(0).host_bytes == 0);
}

// Fills a card of 16 MiB, and looks for parts of the error.
static void check_error(const char *card, const oomph_config_t *config,
                        const char *reason)
{
    oomph_addr_t addr;

    start_card(card, config);
    while (try_take(8 * MIB, NULL, &addr) == OOMPH_OK)
        ;
    CHECK(strstr(oomph_error_detail(), "for 8.00 MiB") != NULL);
    CHECK(strstr(oomph_error_detail(), "16.00 MiB of 16.00 MiB in use, 0 bytes free") !=
          NULL);
    CHECK(strstr(oomph_error_detail(), reason) != NULL);
}

static void the_error_says_that_the_host_limit_is_reached(void)
{
    oomph_config_t config = host_config(20 * MIB);

    check_error("16MiB,context=0", &config,
                "host memory in use: 16.00 MiB, host_limit is 20.00 MiB");
}

static void the_error_says_that_the_machine_has_no_more(void)
{
    oomph_config_t config = host_config(20 * MIB);

    check_error("16MiB,context=0,host=12MiB", &config, "the driver gives no more");
}

static void the_error_says_that_no_host_memory_works(void)
{
    oomph_config_t config = host_config(20 * MIB);

    config.host_kind = OOMPH_HOST_OFF;
    check_error("16MiB,context=0", &config, "host_pages is off");
}

static void the_error_says_that_none_is_allowed(void)
{
    oomph_config_t config = host_config(0);

    check_error("16MiB,context=0", &config, "host_limit is 0");
}

static void the_error_says_that_offload_is_off(void)
{
    oomph_config_t config = host_config(20 * MIB);

    config.offload = OOMPH_OFFLOAD_OFF;
    check_error("16MiB,context=0", &config, "offload is off");
}

static void offload_can_be_switched_off(void)
{
    oomph_config_t config = host_config(64 * MIB);
    oomph_addr_t addr;

    config.offload = OOMPH_OFFLOAD_OFF;
    start_card("16MiB,context=0,memory=real", &config);
    take(16 * MIB, NULL);
    CHECK(try_take(8 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
}

static void blocks_of_mem_pools_never_fall_back_to_the_host(void)
{
    oomph_config_t config = host_config(64 * MIB);
    oomph_request_t request = {.bytes = 8 * MIB, .pool = {1, 0}};
    oomph_addr_t addr;

    start_card("16MiB,context=0", &config);
    CHECK(oomph_pool_retain(0, request.pool) == OOMPH_OK);
    take(16 * MIB, NULL);
    CHECK(oomph_malloc(&request, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(strstr(oomph_error_detail(), "MemPools get no host memory") != NULL);
}

static void a_block_of_a_graphs_pool_may_be_while_nothing_captures(void)
{
    oomph_config_t config = host_config(64 * MIB);
    oomph_request_t request = {.bytes = 8 * MIB, .pool = {1, 0}};
    oomph_block_info_t info;
    oomph_addr_t addr;

    start_card("16MiB,context=0", &config);
    take(16 * MIB, NULL);
    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK);
    CHECK(oomph_lookup(addr, &info) == OOMPH_OK && info.tier == OOMPH_TIER_HOST);
}

// Steps that repeat, on a card that a shortage has been seen on.
static oomph_addr_t planned[2];

static void run_step(void)
{
    planned[0] = take(12 * MIB, NULL);
    planned[1] = take(10 * MIB, NULL);
    give(planned[0]);
    give(planned[1]);
    oomph_step();
}

static void a_planned_block_that_finds_no_page_falls_back_to_the_host(void)
{
    oomph_config_t config = host_config(64 * MIB);

    start_card("32MiB,context=0", &config);
    oomph_stream_t other = new_stream();
    give(take(32 * MIB, other));
    for (int step = 0; step < 4; step++)
        run_step();
    CHECK(stats_of(0).layout_hits > 0 && stats_of(0).rescues == 0);
    take(20 * MIB, other);
    run_step();
    CHECK(stats_of(0).step_rescues == 1);
    check_sound();
}

static int asked;

static void free_nothing(int device)
{
    (void)device;
    asked++;
}

static void an_embedder_that_freed_nothing_is_not_asked_at_each_rescue(void)
{
    oomph_config_t config = host_config(64 * MIB);
    oomph_hooks_t hooks = {.free_memory = free_nothing};

    oomph_set_hooks(&hooks);
    start_card("16MiB,context=0", &config);
    take(16 * MIB, NULL);
    for (int i = 0; i < 3; i++)
        take(4 * MIB, NULL);
    CHECK(stats_of(0).rescues == 3 && asked == 1);
}

static void the_host_limit_holds_for_all_devices_together(void)
{
    oomph_config_t config = host_config(12 * MIB);
    oomph_addr_t addr;

    start_card("16MiB,devices=2,context=0,memory=real", &config);
    oomph_request_t second = {.device = 1, .bytes = 16 * MIB};
    take(16 * MIB, NULL);
    CHECK(oomph_malloc(&second, &addr) == OOMPH_OK);
    take(8 * MIB, NULL);
    second.bytes = 6 * MIB;
    CHECK(oomph_malloc(&second, &addr) == OOMPH_ERR_NO_MEMORY);
    second.bytes = 4 * MIB;
    CHECK(oomph_malloc(&second, &addr) == OOMPH_OK);
    CHECK(try_take(2 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    check_sound();
}

static void the_machine_may_have_less_than_the_limit(void)
{
    oomph_config_t config = host_config(GIB);
    oomph_addr_t addr;

    start_card("16MiB,host=12MiB,context=0,memory=real", &config);
    take(16 * MIB, NULL);
    CHECK(try_take(16 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(try_take(8 * MIB, NULL, &addr) == OOMPH_OK);
    check_sound();
}

/* ---- Which kind works */

static void expect_kind(const char *card, oomph_host_kind_t wanted,
                        oomph_host_kind_t expected)
{
    oomph_config_t config = host_config(64 * MIB);
    oomph_addr_t addr;

    config.host_kind = wanted;
    start_card(card, &config);
    take(16 * MIB, NULL);
    bool works = expected != OOMPH_HOST_OFF;
    CHECK(try_take(8 * MIB, NULL, &addr) == (works ? OOMPH_OK : OOMPH_ERR_NO_MEMORY));
    CHECK(stats_of(0).host_kind == expected);
    if (works) {
        CHECK(info_of(addr).tier == OOMPH_TIER_HOST);
        mark(addr, 8 * MIB, 7);
        CHECK(is_marked(addr, 8 * MIB, 7));
        CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 8 * MIB);
        give(addr);
    }
    check_sound();
}

static void host_pages_come_second(void)
{
    expect_kind("16MiB,context=0,memory=real,host-pages=host", OOMPH_HOST_AUTO,
                OOMPH_HOST_PLAIN);
}

static void pinned_blocks_come_third(void)
{
    expect_kind("16MiB,context=0,memory=real,host-pages=none", OOMPH_HOST_AUTO,
                OOMPH_HOST_PINNED);
}

static void a_kind_can_be_insisted_on(void)
{
    expect_kind("16MiB,context=0,memory=real", OOMPH_HOST_PINNED, OOMPH_HOST_PINNED);
}

static void a_kind_that_does_not_work_is_no_host_memory(void)
{
    expect_kind("16MiB,context=0,memory=real,host-pages=none", OOMPH_HOST_NUMA,
                OOMPH_HOST_OFF);
}

static void trying_host_memory_leaves_nothing_behind(void)
{
    oomph_config_t config = host_config(64 * MIB);
    oomph_host_kind_t kind;

    start_card("16MiB,context=0", &config);
    CHECK(oomph_probe_host(0, &kind) == OOMPH_OK && kind == OOMPH_HOST_NUMA);
    oomph_sim_stats_t left = sim_stats_of(0);
    CHECK(left.handle_count + left.mapping_count + left.reservation_count == 0);
}

static void pinned_memory_that_nothing_uses_is_returned(void)
{
    oomph_config_t config = host_config(16 * MIB);
    size_t freed;

    config.host_kind = OOMPH_HOST_PINNED;
    start_card("16MiB,context=0,memory=real", &config);
    take(16 * MIB, NULL);
    oomph_addr_t host = take(16 * MIB, NULL);
    CHECK(sim_stats_of(0).pinned_bytes == 16 * MIB);
    give(host);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed == 16 * MIB && sim_stats_of(0).pinned_bytes == 0);
    CHECK(take(10 * MIB, NULL) != 0); // the budget has it back
    check_sound();
}

static void a_pinned_block_that_fails_leaves_the_limit_as_it_was(void)
{
    oomph_config_t config = host_config(16 * MIB);
    oomph_addr_t addr;

    config.host_kind = OOMPH_HOST_PINNED;
    start_card("16MiB,context=0,memory=real", &config);
    take(16 * MIB, NULL);
    take(4 * MIB, NULL);
    fail_always("pinned_alloc", OOMPH_ERR_NO_MEMORY);
    CHECK(try_take(12 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    fail_always(NULL, OOMPH_OK);
    CHECK(try_take(12 * MIB, NULL, &addr) == OOMPH_OK);
    check_sound();
}

static void the_link_is_measured(void)
{
    oomph_config_t config = host_config(64 * MIB);

    config.device_limit_bytes = 16 * MIB;
    start_card("64MiB,context=0,memory=real,link=25GB/s", &config);
    take(16 * MIB, NULL);
    take(8 * MIB, NULL);
    double gb_per_s = (double)stats_of(0).link_to_device_bytes_per_s / 1e9;
    CHECK(gb_per_s > 20 && gb_per_s < 26);
    gb_per_s = (double)stats_of(0).link_to_host_bytes_per_s / 1e9;
    CHECK(gb_per_s > 20 && gb_per_s < 26);
}

static void a_full_card_leaves_the_link_unmeasured(void)
{
    oomph_config_t config = host_config(64 * MIB);

    start_card("16MiB,context=0,memory=real", &config);
    take(16 * MIB, NULL);
    take(8 * MIB, NULL);
    CHECK(stats_of(0).link_to_device_bytes_per_s == 0);
    check_sound();
}

/* ---- Pages made ahead, and given back */

static void host_pages_are_made_ahead(void)
{
    oomph_config_t config = host_config(64 * MIB);

    config.host_ahead_bytes = 8 * MIB;
    start_card("16MiB,context=0,memory=real", &config);
    take(16 * MIB, NULL);
    take(4 * MIB, NULL);
    for (int i = 0; i < 1000 && sim_stats_of(0).host_bytes < 12 * MIB; i++)
        usleep(1000);
    CHECK(sim_stats_of(0).host_bytes == 12 * MIB);
    uint64_t created = oomph_sim_call_count("cuMemCreate");
    take(8 * MIB, NULL);
    CHECK(oomph_sim_call_count("cuMemCreate") <= created + 4); // none for this block
    oomph_stop();
    check_sound();
}

static void pages_made_ahead_count_against_the_limit(void)
{
    oomph_config_t config = host_config(10 * MIB);

    config.host_ahead_bytes = 64 * MIB;
    start_card("16MiB,context=0,memory=real", &config);
    take(16 * MIB, NULL);
    take(4 * MIB, NULL);
    usleep(50000);
    CHECK(sim_stats_of(0).host_bytes <= 10 * MIB);
    CHECK(take(6 * MIB, NULL) != 0); // what was made ahead serves it
    oomph_stop();
    check_sound();
}

static void what_was_made_ahead_may_be_had_after_the_stop(void)
{
    oomph_config_t config = host_config(16 * MIB);

    config.host_ahead_bytes = 8 * MIB;
    start_card("16MiB,context=0", &config);
    take(16 * MIB, NULL);
    take(4 * MIB, NULL);
    for (int i = 0; i < 1000 && sim_stats_of(0).host_bytes < 12 * MIB; i++)
        usleep(1000);
    oomph_stop();
    CHECK(sim_stats_of(0).host_bytes == 4 * MIB);
    take(12 * MIB, NULL);
}

static void pages_that_the_driver_refuses_are_not_tried_over_and_over(void)
{
    oomph_config_t config = host_config(GIB);

    config.host_ahead_bytes = 64 * MIB;
    start_card("16MiB,host=12MiB,context=0", &config);
    take(16 * MIB, NULL);
    take(4 * MIB, NULL);
    usleep(50000);
    uint64_t tried = oomph_sim_call_count("cuMemCreate");
    usleep(50000);
    CHECK(sim_stats_of(0).host_bytes == 12 * MIB);
    CHECK(oomph_sim_call_count("cuMemCreate") == tried);
    oomph_stop();
}

static void a_step_without_rescue_returns_host_pages(void)
{
    oomph_config_t config = host_config(64 * MIB);

    start_card("16MiB,context=0,memory=real", &config);
    oomph_addr_t device = take(16 * MIB, NULL), host = take(8 * MIB, NULL);
    oomph_step();
    give(host);
    give(device);
    for (int step = 0; step < 3; step++)
        oomph_step();
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 0);
    CHECK(sim_stats_of(0).host_bytes == 0);
    CHECK(stats_of(0).step_rescues == 0 && stats_of(0).rescues == 1);
    check_sound();
}

static int rescues_reported, first_reported;

static void report(int device, size_t bytes, int64_t nth)
{
    CHECK(device == 0 && bytes == 4 * MIB);
    rescues_reported++;
    first_reported += nth == 1;
}

static void each_rescue_is_told_with_its_number_in_the_step(void)
{
    oomph_config_t config = host_config(64 * MIB);
    oomph_hooks_t hooks = {.rescued = report};

    oomph_set_hooks(&hooks);
    start_card("16MiB,context=0,memory=real", &config);
    take(16 * MIB, NULL);
    for (int step = 0; step < 2; step++) {
        take(4 * MIB, NULL);
        take(4 * MIB, NULL);
        oomph_step();
    }
    CHECK(rescues_reported == 4 && first_reported == 2);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(a_block_that_finds_no_page_falls_back_to_the_host),
        TEST(its_contents_are_kept_and_work_like_any_other),
        TEST(device_pages_are_used_up_first),
        TEST(a_freed_host_block_serves_the_next_rescue_at_once),
        TEST(host_pages_of_one_hole_serve_another),
        TEST(a_hole_that_grows_while_pages_are_found_for_it_is_filled),
        TEST(small_blocks_fall_back_to_the_host_once_the_headroom_is_used),
        TEST(workspaces_fall_back_to_the_host_once_the_headroom_is_used),
        TEST(a_host_limit_of_0_means_none),
        TEST(the_error_says_that_the_host_limit_is_reached),
        TEST(the_error_says_that_the_machine_has_no_more),
        TEST(the_error_says_that_no_host_memory_works),
        TEST(the_error_says_that_none_is_allowed),
        TEST(the_error_says_that_offload_is_off),
        TEST(offload_can_be_switched_off),
        TEST(blocks_of_mem_pools_never_fall_back_to_the_host),
        TEST(a_block_of_a_graphs_pool_may_be_while_nothing_captures),
        TEST(a_planned_block_that_finds_no_page_falls_back_to_the_host),
        TEST(an_embedder_that_freed_nothing_is_not_asked_at_each_rescue),
        TEST(the_host_limit_holds_for_all_devices_together),
        TEST(the_machine_may_have_less_than_the_limit),
        TEST(host_pages_come_second),
        TEST(pinned_blocks_come_third),
        TEST(a_kind_can_be_insisted_on),
        TEST(a_kind_that_does_not_work_is_no_host_memory),
        TEST(trying_host_memory_leaves_nothing_behind),
        TEST(pinned_memory_that_nothing_uses_is_returned),
        TEST(a_pinned_block_that_fails_leaves_the_limit_as_it_was),
        TEST(the_link_is_measured),
        TEST(a_full_card_leaves_the_link_unmeasured),
        TEST(host_pages_are_made_ahead),
        TEST(pages_made_ahead_count_against_the_limit),
        TEST(what_was_made_ahead_may_be_had_after_the_stop),
        TEST(pages_that_the_driver_refuses_are_not_tried_over_and_over),
        TEST(a_step_without_rescue_returns_host_pages),
        TEST(each_rescue_is_told_with_its_number_in_the_step),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
