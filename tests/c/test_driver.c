/* What the core asks of CUDA, where devices and drivers differ. */
#include "card.h"

#include <cuda.h>

/* ---- GPUDirect RDMA */

static bool is_for_rdma(oomph_addr_t addr)
{
    bool capable = false;

    CHECK(cuPointerGetAttribute(&capable,
                                CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                                addr) == CUDA_SUCCESS);
    return capable;
}

static void network_cards_may_use_blocks_where_the_device_can(void)
{
    oomph_config_t config = test_config();
    config.host_limit_bytes = 64 * MIB;
    start_card("64MiB,context=0,memory=real", &config);
    oomph_addr_t small = take(1000, NULL), large = take(58 * MIB, NULL);

    CHECK(is_for_rdma(small) && is_for_rdma(large));
    oomph_addr_t on_host = take(8 * MIB, NULL);
    CHECK(stats_of(0).rescues == 1 && !is_for_rdma(on_host));
    check_sound();
}

static void nothing_is_made_for_network_cards_where_the_device_cannot(void)
{
    oomph_config_t config = test_config();
    start_card("64MiB,context=0,memory=real,rdma=no", &config);

    CHECK(!is_for_rdma(take(8 * MIB, NULL)));
    check_sound();
}

static void pages_are_made_without_what_the_driver_refuses_though_the_device_can(void)
{
    oomph_config_t config = test_config();
    start_card("64MiB,context=0,memory=real", &config);

    CHECK(oomph_sim_fail("cuMemCreate", 1, CUDA_ERROR_NOT_SUPPORTED) == 0);
    CHECK(!is_for_rdma(take(8 * MIB, NULL)));
    uint64_t calls = oomph_sim_call_count("cuMemCreate");
    take(8 * MIB, NULL);
    CHECK(oomph_sim_call_count("cuMemCreate") == calls + 4); // it is not tried again
    check_sound();
}

static void pages_that_can_be_made_for_network_cards_but_not_used_are_not(void)
{
    oomph_config_t config = test_config();
    start_card("64MiB,context=0,memory=real,rdma=refused", &config);

    CHECK(!is_for_rdma(take(8 * MIB, NULL)));
    check_sound();
}

static void nothing_is_left_of_what_was_tried(void)
{
    oomph_config_t config = test_config();
    size_t freed_bytes = 0;
    start_card("64MiB,context=0,memory=real,rdma=refused,share=refused", &config);

    give(take(8 * MIB, NULL));
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed_bytes) == OOMPH_OK);
    CHECK(sim_stats_of(0).handle_count == 0 && sim_stats_of(0).mapping_count == 0);
}

/* ---- Other processes */

static void expect_no_sharing(const char *card)
{
    oomph_config_t config = test_config();
    oomph_ticket_t ticket;
    size_t offset;
    start_card(card, &config);

    CHECK(oomph_export(take(8 * MIB, NULL), &ticket, &offset) == OOMPH_ERR_DRIVER);
    CHECK(strstr(oomph_error_detail(), "share the tensor on the CPU") != NULL);
    check_sound();
}

static void where_descriptors_name_no_memory_only_sharing_is_off(void)
{
    expect_no_sharing("64MiB,context=0,memory=real,share=no");
}

static void where_that_is_found_out_by_trying_it_is_the_same(void)
{
    expect_no_sharing("64MiB,context=0,memory=real,share=refused");
}

/* ---- Devices */

static void without_virtual_memory_management_the_device_is_refused(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;
    start_card("64MiB,context=0,memory=real,vmm=no", &config);

    CHECK(try_take(8 * MIB, NULL, &addr) == OOMPH_ERR_DRIVER);
    CHECK(strstr(oomph_error_detail(), "no virtual memory management") != NULL);
}

static void fill_a_card_without_memory_of_its_own(oomph_offload_t offload)
{
    oomph_config_t config = test_config();
    bool shares = false;
    config.host_limit_bytes = 64 * MIB;
    config.offload = offload;
    start_card("64MiB,context=0,memory=real,integrated=yes", &config);

    CHECK(oomph_shares_memory(0, &shares) == OOMPH_OK && shares);
    take(48 * MIB, NULL);
}

static void nothing_falls_back_where_the_hosts_memory_is_the_devices(void)
{
    oomph_addr_t addr;

    fill_a_card_without_memory_of_its_own(OOMPH_OFFLOAD_AUTO);
    CHECK(try_take(32 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(strstr(oomph_error_detail(), "uses the CPU's") != NULL);
    CHECK(sim_stats_of(0).host_bytes == 0);
    check_sound();
}

static void it_would_be_in_vain(void)
{
    oomph_addr_t addr;

    fill_a_card_without_memory_of_its_own(OOMPH_OFFLOAD_ON_OOM);
    CHECK(try_take(32 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    check_sound();
}

static void a_full_device_does_not_end_what_network_cards_may_use(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr = 0;
    start_card("64MiB,context=0,memory=real", &config);

    oomph_addr_t block = take(60 * MIB, NULL);
    CHECK(oomph_sim_fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY) == 0);
    try_take(4 * MIB, NULL, &addr);
    give(block);
    size_t freed_bytes = 0;
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed_bytes) == OOMPH_OK);
    CHECK(freed_bytes > 0 && is_for_rdma(take(32 * MIB, NULL)));
    check_sound();
}

/* ---- Copies */

static void copies_are_not_done_if_waiting_for_them_fails(void)
{
    const oomph_driver_t *driver = oomph_driver_cuda();
    oomph_config_t config = test_config();

    start_card("64MiB,context=0,memory=real", &config);
    const oomph_copy_t copy = {take(4 * MIB, NULL), take(4 * MIB, NULL), 4 * MIB};
    CHECK(oomph_sim_fail("cuStreamSynchronize", 1, CUDA_ERROR_UNKNOWN) == 0);
    CHECK(driver->copy_all(0, &copy, 1) == OOMPH_ERR_DRIVER);
    CHECK(driver->copy_all(0, &copy, 1) == OOMPH_OK);
}

/* ---- Alignment */

static oomph_driver_t other_driver; // differs from the usual in one call
static size_t least_alignment, reserve_count;

static oomph_status_t note_reserve(size_t bytes, size_t alignment, oomph_addr_t *addr)
{
    oomph_status_t status = faulty_driver()->reserve(bytes, alignment, addr);

    least_alignment = oomph_min(least_alignment, alignment);
    reserve_count++;
    return status;
}

// Aligns to the page that it knows, and no more.
static oomph_status_t reserve_badly(size_t bytes, size_t alignment, oomph_addr_t *addr)
{
    (void)alignment;
    return faulty_driver()->reserve(bytes, 2 * MIB, addr);
}

static void start_with(oomph_status_t (*reserve)(size_t, size_t, oomph_addr_t *),
                       size_t page_bytes)
{
    oomph_config_t config = test_config();

    config.page_bytes = page_bytes;
    config.host_limit_bytes = 256 * MIB;
    start_card("128MiB,context=0,memory=real", &config);
    other_driver = *faulty_driver();
    other_driver.reserve = reserve;
    oomph_process.driver = &other_driver;
}

static void all_address_space_is_aligned_to_pages_however_large(void)
{
    oomph_move_t move;
    size_t moved_bytes;

    least_alignment = SIZE_MAX;
    start_with(note_reserve, 16 * MIB);
    move.addr = take(32 * MIB, NULL);
    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == OOMPH_OK);
    CHECK(moved_bytes == 32 * MIB);
    CHECK(reserve_count >= 3); // of the pool, to try a host page, to move
    CHECK(least_alignment >= 16 * MIB);
    check_sound();
}

static void address_space_that_the_driver_did_not_align_is_given_back(void)
{
    oomph_addr_t addr = 0;

    start_with(reserve_badly, 0);
    CHECK(try_take(32 * MIB, NULL, &addr) == OOMPH_ERR_DRIVER);
    CHECK(strstr(oomph_error_detail(), "not aligned to 1.00 GiB") != NULL);
    CHECK(sim_stats_of(0).reservation_count == 0);
    check_sound();
}

/* ---- Mappings of the process */

static size_t page_bytes_for(const char *card, oomph_config_t config)
{
    start_card(card, &config);
    give(take(1000, NULL));
    check_sound();
    return (size_t)stats_of(0).page_bytes;
}

static oomph_config_t limited_to(size_t host_page_max)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 256 * GIB;
    config.host_page_max = host_page_max;
    return config;
}

static void pages_are_larger_where_the_host_would_take_too_many(void)
{
    CHECK(page_bytes_for("80GiB,memory=none", limited_to(54000)) == 8 * MIB);
}

static void pages_are_not_larger_than_needed(void)
{
    CHECK(page_bytes_for("80GiB,memory=none", limited_to(128 << 10)) == 2 * MIB);
}

static void a_card_keeps_many_pages_however_few_may_be_mapped(void)
{
    CHECK(page_bytes_for("12GiB,memory=none", limited_to(1000)) == 4 * MIB);
}

static void pages_are_not_larger_where_nothing_goes_to_the_host(void)
{
    oomph_config_t config = limited_to(1000);

    config.offload = OOMPH_OFFLOAD_OFF;
    CHECK(page_bytes_for("80GiB,memory=none", config) == 2 * MIB);
}

static void pages_are_not_larger_where_the_hosts_memory_is_the_devices(void)
{
    const char *card = "80GiB,memory=none,integrated=yes";

    CHECK(page_bytes_for(card, limited_to(1000)) == 2 * MIB);
}

static void pages_are_larger_there_if_offload_is_asked_for(void)
{
    oomph_config_t config = limited_to(1000);

    config.offload = OOMPH_OFFLOAD_ON_OOM;
    CHECK(page_bytes_for("80GiB,memory=none,integrated=yes", config) > 2 * MIB);
}

static void what_the_system_lets_nobody_map_is_predicted_and_reported(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr = 0;

    config.host_limit_bytes = 256 * MIB;
    config.host_page_max = 16;
    start_card("64MiB,context=0,memory=real", &config);
    take(64 * MIB, NULL);
    oomph_addr_t on_host = take(20 * MIB, NULL);
    CHECK(try_take(20 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(strstr(oomph_error_detail(), "vm.max_map_count") != NULL);
    CHECK(strstr(oomph_error_detail(), "page:8MiB") != NULL);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == (int64_t)(20 * MIB));
    give(on_host);
    give(take(32 * MIB, NULL)); // all that may be mapped
    check_sound();
}

/* ---- Who may use host pages */

static bool cpu_may_use(oomph_addr_t addr)
{
    const CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    unsigned long long flags = 0;

    CHECK(cuMemGetAccess(&flags, &host, addr) == CUDA_SUCCESS);
    return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static oomph_addr_t take_buffer(size_t bytes, oomph_stream_t stream)
{
    oomph_addr_t addr = 0;

    CHECK(oomph_buffer(0, bytes, stream, &addr) == OOMPH_OK);
    return addr;
}

static oomph_stream_t start_spilling(void)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 256 * MIB;
    start_card("64MiB,context=0,memory=real,devices=2", &config);
    return new_stream();
}

static void the_cpu_may_use_blocks_that_lie_on_the_host_and_no_buffers(void)
{
    oomph_stream_t stream = start_spilling();
    oomph_move_t move;
    size_t moved_bytes;

    oomph_addr_t buffer = take_buffer(8 * MIB, stream);
    move.addr = take(32 * MIB, stream);
    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == OOMPH_OK);
    take(64 * MIB, stream);
    oomph_addr_t block = take(8 * MIB, stream);
    CHECK(!cpu_may_use(buffer) && !cpu_may_use(buffer + 7 * MIB));
    CHECK(cpu_may_use(block) && cpu_may_use(block + 7 * MIB));
    CHECK(cpu_may_use(move.addr) && cpu_may_use(move.addr + 31 * MIB));
    check_sound();
}

static void what_was_a_buffer_is_the_cpus_once_it_is_a_block(void)
{
    oomph_stream_t stream = start_spilling();

    oomph_addr_t first = take_buffer(8 * MIB, stream);
    oomph_addr_t second = take_buffer(8 * MIB, stream);
    take(64 * MIB, stream);
    give(first);
    oomph_addr_t block = take(6 * MIB, stream);
    give(second);
    oomph_addr_t next = take(10 * MIB, stream);
    CHECK(block == first && next == first + 6 * MIB);
    CHECK(cpu_may_use(block) && cpu_may_use(next) && cpu_may_use(next + 9 * MIB));
    mark(next, 10 * MIB, 5);
    CHECK(is_marked(next, 10 * MIB, 5));
    check_sound();
}

static void a_page_that_goes_elsewhere_leaves_the_cpus_access_behind(void)
{
    oomph_stream_t stream = start_spilling(), other = new_stream();
    size_t freed_bytes = 0;

    take(64 * MIB, stream);
    oomph_addr_t block = take(8 * MIB, stream);
    give(block);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed_bytes) == OOMPH_OK);
    CHECK(freed_bytes == 8 * MIB);
    CHECK(!cpu_may_use(take_buffer(8 * MIB, other)));
    oomph_addr_t buffer = take_buffer(8 * MIB, stream);
    CHECK(!cpu_may_use(buffer));
    CHECK(oomph_enable_peer(0, 1) == OOMPH_OK);
    CHECK(!cpu_may_use(buffer));
    check_sound();
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(network_cards_may_use_blocks_where_the_device_can),
        TEST(nothing_is_made_for_network_cards_where_the_device_cannot),
        TEST(pages_are_made_without_what_the_driver_refuses_though_the_device_can),
        TEST(pages_that_can_be_made_for_network_cards_but_not_used_are_not),
        TEST(nothing_is_left_of_what_was_tried),
        TEST(where_descriptors_name_no_memory_only_sharing_is_off),
        TEST(where_that_is_found_out_by_trying_it_is_the_same),
        TEST(without_virtual_memory_management_the_device_is_refused),
        TEST(nothing_falls_back_where_the_hosts_memory_is_the_devices),
        TEST(it_would_be_in_vain),
        TEST(a_full_device_does_not_end_what_network_cards_may_use),
        TEST(copies_are_not_done_if_waiting_for_them_fails),
        TEST(all_address_space_is_aligned_to_pages_however_large),
        TEST(address_space_that_the_driver_did_not_align_is_given_back),
        TEST(the_cpu_may_use_blocks_that_lie_on_the_host_and_no_buffers),
        TEST(what_was_a_buffer_is_the_cpus_once_it_is_a_block),
        TEST(a_page_that_goes_elsewhere_leaves_the_cpus_access_behind),
        TEST(pages_are_larger_where_the_host_would_take_too_many),
        TEST(pages_are_not_larger_than_needed),
        TEST(a_card_keeps_many_pages_however_few_may_be_mapped),
        TEST(pages_are_not_larger_where_nothing_goes_to_the_host),
        TEST(pages_are_not_larger_where_the_hosts_memory_is_the_devices),
        TEST(pages_are_larger_there_if_offload_is_asked_for),
        TEST(what_the_system_lets_nobody_map_is_predicted_and_reported),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
