/* measure.h - what the programs share that measure calls of the driver on device 0. */
#pragma once
#include "../../tests/gpu/cuda.h"

#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { MIB = 1 << 20 };

typedef struct place {
    const char *name;
    CUmemLocationType type;
} place_t;

static const place_t PLACES[] = {
    {"device", CU_MEM_LOCATION_TYPE_DEVICE},
    {"numa", CU_MEM_LOCATION_TYPE_HOST_NUMA},
    {"host", CU_MEM_LOCATION_TYPE_HOST},
};
enum { PLACE_COUNT = sizeof PLACES / sizeof PLACES[0] };

static const char *name_of(CUresult result)
{
    const char *name = NULL;

    cu.error_name(result, &name);
    return name ? name : "unknown";
}

static double now_us(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static CUresult create(const place_t *place, size_t bytes,
                       CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = place->type, .id = 0},
    };

    return cu.create(handle, bytes, &prop, 0);
}

static CUresult set_access(const place_t *place, CUdeviceptr addr, size_t bytes)
{
    CUmemAccessDesc access[2] = {
        {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
         CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {{.type = place->type, .id = 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
    };
    size_t count = place->type == CU_MEM_LOCATION_TYPE_DEVICE ? 1 : 2;

    return cu.set_access(addr, bytes, access, count);
}

// Initialises the driver and makes the device's context this thread's.
static CUresult open_device(void)
{
    CUcontext context = NULL;
    CUresult result = cu.init(0);

    if (result == CUDA_SUCCESS)
        result = cu.context_retain(&context, 0);
    return result == CUDA_SUCCESS ? cu.context_set(context) : result;
}
