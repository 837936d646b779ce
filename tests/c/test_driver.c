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

    oomph_addr_t before = take(8 * MIB, NULL);
    CHECK(oomph_sim_fail("cuMemCreate", 1, CUDA_ERROR_NOT_SUPPORTED) == 0);
    oomph_addr_t after = take(8 * MIB, NULL);
    CHECK(is_for_rdma(before) && !is_for_rdma(after));
    uint64_t calls = oomph_sim_call_count("cuMemCreate");
    take(8 * MIB, NULL);
    CHECK(oomph_sim_call_count("cuMemCreate") == calls + 4); // it is not tried again
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

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(network_cards_may_use_blocks_where_the_device_can),
        TEST(nothing_is_made_for_network_cards_where_the_device_cannot),
        TEST(pages_are_made_without_what_the_driver_refuses_though_the_device_can),
        TEST(a_full_device_does_not_end_what_network_cards_may_use),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
