/* sim_check.h - what the tests of the simulated driver share. */
#pragma once
#include "sim.h"

#include <cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

#define CHECK_RESULT(call, expected)                                                   \
    do {                                                                               \
        CUresult result_ = (call);                                                     \
        if (result_ != (expected)) {                                                   \
            fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call,          \
                    (int)result_);                                                     \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

#define OK(call) CHECK_RESULT(call, CUDA_SUCCESS)

static const size_t PAGE = 2u << 20; // bytes; the granularity

static int passed_count;

// Starts anew with a card (NULL: the default), the context of device 0 current.
static inline void start(const char *card)
{
    CUcontext context;

    oomph_sim_reset();
    unsetenv("OOMPH_SIMULATE");
    if (card != NULL)
        CHECK(oomph_sim_configure(card) == 0);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

static inline void run(void (*test)(void))
{
    test();
    passed_count++;
}

static inline int finish(void)
{
    printf("%d passed\n", passed_count);
    return 0;
}

static inline oomph_sim_stats_t stats(void)
{
    oomph_sim_stats_t now;

    CHECK(oomph_sim_stats(0, &now) == 0);
    return now;
}

// Whether the latest misuse contains `text`.
static inline bool misuse_says(const char *text)
{
    const char *latest = oomph_sim_misuse(0);

    return latest != NULL && strstr(latest, text) != NULL;
}

static inline CUmemAllocationProp on_device(int device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
}

static inline CUmemAllocationProp on_host(void)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0},
    };
}

static inline CUmemAccessDesc by_device(int device, CUmemAccess_flags flags)
{
    return (CUmemAccessDesc){
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = flags,
    };
}

static inline CUmemAccessDesc by_host(CUmemAccess_flags flags)
{
    return (CUmemAccessDesc){
        .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0},
        .flags = flags,
    };
}

static inline CUmemGenericAllocationHandle create(CUmemAllocationProp prop,
                                                  size_t bytes)
{
    CUmemGenericAllocationHandle handle;

    OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static inline CUdeviceptr reserve(size_t bytes)
{
    CUdeviceptr addr;

    OK(cuMemAddressReserve(&addr, bytes, 0, 0, 0));
    return addr;
}

// Maps the handle and opens it to device 0.
static inline void map_open(CUdeviceptr addr, size_t bytes,
                            CUmemGenericAllocationHandle handle)
{
    CUmemAccessDesc access = by_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

    OK(cuMemMap(addr, bytes, 0, handle, 0));
    OK(cuMemSetAccess(addr, bytes, &access, 1));
}

static inline CUstream make_stream(unsigned flags)
{
    CUstream stream;

    OK(cuStreamCreate(&stream, flags));
    return stream;
}

static inline CUevent make_event(unsigned flags)
{
    CUevent event;

    OK(cuEventCreate(&event, flags));
    return event;
}

static inline CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr addr;

    OK(cuMemAlloc(&addr, bytes));
    return addr;
}

// Page-locked memory of the host: zero, as the system gives it.
static inline void *pin(size_t bytes)
{
    void *place;

    OK(cuMemHostAlloc(&place, bytes, 0));
    return place;
}

static inline void kernel(CUstream stream, uint64_t cost_ns)
{
    CHECK(oomph_sim_launch(stream, 0, 0, 0, cost_ns) == CUDA_SUCCESS);
}
