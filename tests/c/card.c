#include "card.h"

#include <cuda.h>

oomph_config_t test_config(void)
{
    oomph_config_t config = oomph_config_default();

    config.reserve_bytes = 0;
    config.host_ahead_bytes = 0;
    return config;
}

void start_card(const char *card, const oomph_config_t *config)
{
    int device_count;

    if (oomph_sim_configure(card) != 0) {
        fprintf(stderr, "%s\n", oomph_sim_error());
        exit(1);
    }
    oomph_process.driver = faulty_driver();
    CHECK(oomph_configure(config) == OOMPH_OK);
    CHECK(oomph_start(&device_count) == OOMPH_OK);
}

oomph_stream_t new_stream(void)
{
    CUcontext context;
    CUstream stream;

    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return stream;
}

oomph_status_t try_take(size_t bytes, oomph_stream_t stream, oomph_addr_t *addr)
{
    oomph_request_t request = {.bytes = bytes, .stream = stream};

    return oomph_malloc(&request, addr);
}

void order_streams(oomph_stream_t first, oomph_stream_t then)
{
    CUevent event;

    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    CHECK(cuEventRecord(event, first) == CUDA_SUCCESS);
    CHECK(cuStreamWaitEvent(then, event, 0) == CUDA_SUCCESS);
    CHECK(cuEventDestroy(event) == CUDA_SUCCESS);
}

oomph_addr_t take(size_t bytes, oomph_stream_t stream)
{
    oomph_addr_t addr = 0;

    oomph_status_t status = try_take(bytes, stream, &addr);
    if (status != OOMPH_OK)
        fprintf(stderr, "%zu bytes: %s\n", bytes, oomph_error_detail());
    CHECK(status == OOMPH_OK);
    return addr;
}

oomph_addr_t take_living(size_t bytes, oomph_stream_t stream)
{
    oomph_request_t request = {.bytes = bytes, .stream = stream, .stream_lives = true};
    oomph_addr_t addr = 0;

    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK);
    return addr;
}

void give(oomph_addr_t addr)
{
    CHECK(oomph_free(addr, NULL) == OOMPH_OK);
}

enum { MARK_EVERY = 64 << 10 };

static uint64_t *word_at(oomph_addr_t addr, size_t offset)
{
    return (uint64_t *)(uintptr_t)(addr + offset);
}

void mark(oomph_addr_t addr, size_t bytes, uint64_t tag)
{
    for (size_t offset = 0; offset + 8 <= bytes; offset += MARK_EVERY)
        *word_at(addr, offset) = tag + offset;
    if (bytes >= 8)
        *word_at(addr, (bytes - 8) & ~(size_t)7) = tag;
}

bool is_marked(oomph_addr_t addr, size_t bytes, uint64_t tag)
{
    size_t last = (bytes - 8) & ~(size_t)7;

    for (size_t offset = 0; offset + 8 <= bytes; offset += MARK_EVERY)
        if (offset != last && *word_at(addr, offset) != tag + offset)
            return false;
    return bytes < 8 || *word_at(addr, last) == tag;
}

oomph_stats_t stats_of(int device)
{
    oomph_stats_t stats;

    CHECK(oomph_get_stats(device, &stats) == OOMPH_OK);
    return stats;
}

oomph_sim_stats_t sim_stats_of(int device)
{
    oomph_sim_stats_t stats;

    CHECK(oomph_sim_stats(device, &stats) == 0);
    return stats;
}

void check_sound(void)
{
    for (int device = 0; device < oomph_process.device_count; device++) {
        if (oomph_check(device) != OOMPH_OK) {
            fprintf(stderr, "%s\n", oomph_error_detail());
            exit(1);
        }
    }
    if (oomph_sim_misuse(0) != NULL) {
        fprintf(stderr, "misuse: %s\n", oomph_sim_misuse(0));
        exit(1);
    }
}
