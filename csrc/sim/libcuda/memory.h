/* memory.h - memory that is reserved, made and mapped in one go: cuMemAlloc, and the
 * pools of cuMemAllocAsync. The caller holds the driver's lock.
 */
#pragma once
#include "device.h"

// The device of a pool. Each has one pool, whose handle is the device's.
static inline CUcontext sim_pool_device(CUmemoryPool pool)
{
    return (CUcontext)(void *)pool;
}

// Frees what a pool gave out at `addr`, when its stream has come so far.
void sim_memory_free_pooled(uint64_t addr);

// Frees what was allocated in the context.
void sim_memory_free_all(CUcontext context);
