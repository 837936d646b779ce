/* The description of the card, and the environment that gives it. */
#include "sim_check.h"

#include <stdint.h>

static void allowed(const char *card)
{
    oomph_sim_reset();
    CHECK(oomph_sim_configure(card) == 0);
    CHECK(strcmp(oomph_sim_error(), "") == 0);
}

static void refused(const char *card, const char *why)
{
    oomph_sim_reset();
    CHECK(oomph_sim_configure(card) != 0);
    if (strstr(oomph_sim_error(), why) == NULL) {
        fprintf(stderr, "%s: %s\n", card, oomph_sim_error());
        exit(1);
    }
}

static int attribute(CUdevice_attribute name)
{
    int value;

    OK(cuDeviceGetAttribute(&value, name, 0));
    return value;
}

static void test_cards_are_described_in_many_ways(void)
{
    allowed("12GiB");
    allowed("12gib,link=25gb/s");
    allowed("11.69GiB,devices=16,host=128GB,link=25GB/s,cc=12.0,context=0");
    allowed("12884901888,memory=real,tick=0,kernels=error,host-pages=none");
    allowed("80GB,driver=11000,name=H100 PCIe,tick=1.5ms");
    allowed("rtx4090");
    allowed("RTX4090,host=64GiB");
    allowed("25393692672,gpu=NVIDIA GeForce RTX 4090"); // as CUDA names it
    allowed("12GiB,bandwidth=900GB/s,fp32=40TFLOPS,fp8=1.5PFLOPS,sms=46,gpu=rtx4090");
    allowed("a10,flops-share=0.5,bandwidth-share=1,launch=0");
}

static void test_wrong_descriptions_say_what_is_allowed(void)
{
    refused("", "must start with the memory");
    refused("devices=2", "must start with the memory");
    refused("12GiBs", "must start with the memory");
    refused("-1GiB", "must start with the memory");
    refused("1KiB", "at least 2MiB");
    refused("1GiB,speed=3", "unknown key 'speed'; allowed are: devices, host, link");
    refused("1GiB,devices=0", "devices=0 is not allowed; use 1 to 16");
    refused("1GiB,devices=2x", "devices=2x is not allowed");
    refused("1GiB,link=25GB", "link=25GB is not allowed");
    refused("1GiB,link=0GB/s", "is not allowed");
    refused("1GiB,cc=9", "cc=9 is not allowed");
    refused("1GiB,memory=fake", "none, real or values");
    refused("1GiB,tick=1h", "tick=1h is not allowed");
    refused("1GiB,kernels=run", "ignore or error");
    refused("1GiB,host-pages", "numa, host or none");
    refused("1GiB,rdma=maybe", "yes, no or refused");
    refused("1GiB,share=maybe", "yes, no or refused");
    refused("1GiB,integrated=maybe", "yes or no");
    refused("1GiB,driver=14000", "11000 to 13000");
    refused("1GiB,context=2GiB", "CUDA itself takes 2048 MiB of it");
    refused("1GiB,name=", "name= is not allowed");
    refused("1GiB,gpu=rtx1", "gpu=rtx1 is not allowed; use t4, a10, l4, rtx3060");
    refused("1GiB,gpu", "gpu= is not allowed");
    refused("rtx1", "or with a GPU: t4, a10, l4, rtx3060");
    refused("1GiB,bandwidth=1GB/s", "bandwidth= needs a card: add gpu=");
    refused("1GiB,bf16=1TFLOPS", "bf16= needs a card: add gpu=");
    refused("t4,fp16=100", "fp16=100 is not allowed; use a speed, such as");
    refused("t4,fp16=0TFLOPS", "is not allowed");
    refused("t4,flops-share=1.1", "a number above 0, up to 1");
    refused("t4,bandwidth-share=0", "a number above 0, up to 1");
    refused("t4,sms=0", "1 to 1024");
}

static void test_a_description_can_be_asked_about(void)
{
    oomph_sim_card_t card;

    start("1GiB");
    CHECK(oomph_sim_describe("2GiB,devices=3", &card) == 0);
    CHECK(card.memory_bytes == 2ull << 30 && card.device_count == 3);
    CHECK(card.host_bytes == UINT64_MAX);
    CHECK(oomph_sim_describe("2GiB,host=1GiB", &card) == 0);
    CHECK(card.host_bytes == 1 << 30);
    CHECK(oomph_sim_describe("2GiB,speed=1", &card) != 0);
    CHECK(strstr(oomph_sim_error(), "unknown key 'speed'") != NULL);
    CHECK(stats().capacity_bytes == 1u << 30);
}

static void test_a_well_known_card_is_what_it_is_unless_the_description_differs(void)
{
    char name[96];

    start("rtx4090");
    OK(cuDeviceGetName(name, sizeof name, 0));
    CHECK(strcmp(name, "NVIDIA GeForce RTX 4090") == 0);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) == 9);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == 128);
    CHECK(stats().capacity_bytes > 23ull << 30 && stats().capacity_bytes < 24ull << 30);
    start("12GiB,cc=8.6,name=mine,sms=7,gpu=rtx4090");
    OK(cuDeviceGetName(name, sizeof name, 0));
    CHECK(strcmp(name, "mine") == 0);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) == 6);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == 7);
    CHECK(stats().capacity_bytes == 12ull << 30);
}

static void test_the_card_cannot_change_while_the_driver_is_in_use(void)
{
    start("1GiB");
    CHECK(oomph_sim_configure("2GiB") != 0);
    CHECK(strstr(oomph_sim_error(), "in use") != NULL);
    CHECK(stats().capacity_bytes == 1u << 30);
}

static void test_the_environment_describes_the_card(void)
{
    oomph_sim_reset();
    setenv("OOMPH_SIMULATE", "3GiB", 1);
    OK(cuInit(0));
    CHECK(stats().capacity_bytes == (uint64_t)3 << 30);
    unsetenv("OOMPH_SIMULATE");
}

static void test_a_wrong_environment_fails_the_initialisation(void)
{
    oomph_sim_reset();
    setenv("OOMPH_SIMULATE", "3 apples", 1);
    CHECK_RESULT(cuInit(0), CUDA_ERROR_INVALID_VALUE);
    CHECK(strstr(oomph_sim_error(), "3 apples") != NULL);
    unsetenv("OOMPH_SIMULATE");
}

// How many devices the program sees, and the bus of its first one.
static int visible_devices(const char *variable, int *first_bus)
{
    int count = 0;

    oomph_sim_reset();
    OK(oomph_sim_configure("1GiB,devices=3"));
    setenv("CUDA_VISIBLE_DEVICES", variable, 1);
    if (cuInit(0) == CUDA_SUCCESS) {
        OK(cuDeviceGetCount(&count));
        OK(cuDeviceGetAttribute(first_bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0));
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
    return count;
}

static void test_the_environment_says_which_devices_are_visible(void)
{
    CUdevice device = 9;
    char bus_id[16];
    int bus = 0;

    CHECK(visible_devices("0,1,2", &bus) == 3 && bus == 1);
    CHECK(visible_devices("1, 0", &bus) == 2 && bus == 2);
    CHECK(visible_devices("2,3,0", &bus) == 1 && bus == 3); // 3 ends the list
    OK(cuDeviceGetPCIBusId(bus_id, sizeof bus_id, 0));
    OK(cuDeviceGetByPCIBusId(&device, bus_id));
    CHECK(device == 0);
    CHECK_RESULT(cuDeviceGetByPCIBusId(&device, "0000:01:00.0"),
                 CUDA_ERROR_INVALID_DEVICE);
    CHECK(visible_devices("0,0", &bus) == 1);
    CHECK(visible_devices("", &bus) == 0);
    CHECK(visible_devices("-1", &bus) == 0);
    CHECK(visible_devices("GPU-0", &bus) == 0);
    CHECK_RESULT(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

static void test_the_default_card_is_large_and_real(void)
{
    start(NULL);
    CHECK(stats().capacity_bytes == (uint64_t)96 << 30);
    CHECK(oomph_sim_now_ns() == 0); // time stands still
}

int main(void)
{
    run(test_cards_are_described_in_many_ways);
    run(test_wrong_descriptions_say_what_is_allowed);
    run(test_a_description_can_be_asked_about);
    run(test_a_well_known_card_is_what_it_is_unless_the_description_differs);
    run(test_the_card_cannot_change_while_the_driver_is_in_use);
    run(test_the_environment_describes_the_card);
    run(test_a_wrong_environment_fails_the_initialisation);
    run(test_the_environment_says_which_devices_are_visible);
    run(test_the_default_card_is_large_and_real);
    return finish();
}
