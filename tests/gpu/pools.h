/* pools.h - the checks of conformance.c about memory that is allocated in the order of
 * a stream, and the pool that it comes from.
 */
#pragma once
#include "report.h"

static uint64_t pool_value(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    cuuint64_t value = 0;

    cu.pool_get(pool, attribute, &value);
    return value;
}

static void check_threshold(CUmemoryPool pool)
{
    const CUmemPool_attribute threshold = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    cuuint64_t most = UINT64_MAX, none = 0;
    CUdeviceptr addr;

    check("a_pool_keeps_nothing_by_default", pool_value(pool, threshold) == 0);
    expect("set_of_the_release_threshold", cu.pool_set(pool, threshold, &most),
           CUDA_SUCCESS);
    check("the_release_threshold_is_as_set", pool_value(pool, threshold) == most);
    cu.alloc_async(&addr, 16 * page, NULL);
    cu.free_async(addr, NULL);
    cu.context_synchronize();
    note("reserved_after_free_of_16_pages_with_a_threshold", "%.1f pages",
         (double)pool_value(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) / (double)page);
    cu.pool_set(pool, threshold, &none);
    expect("trim_of_a_pool", cu.pool_trim(pool, 0), CUDA_SUCCESS);
    check("a_trimmed_pool_that_is_not_in_use_holds_nothing",
          pool_value(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0 &&
              pool_value(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
}

static void check_use(CUmemoryPool pool, CUstream stream)
{
    const CUmemPool_attribute used = CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    const CUmemPool_attribute high = CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    uint64_t before = pool_value(pool, used);
    cuuint64_t none = 0;
    unsigned value = 0;
    CUdeviceptr addr;

    expect("alloc_from_the_pool", cu.alloc_from_pool(&addr, 4 * page, pool, stream),
           CUDA_SUCCESS);
    check("what_was_allocated_is_in_use", pool_value(pool, used) >= before + 4 * page);
    check("a_pool_reserves_what_is_in_use",
          pool_value(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >=
              pool_value(pool, used));
    cu.fill_async(addr, 7, 1, stream);
    cu.copy_out_async(&value, addr, sizeof value, stream);
    cu.stream_synchronize(stream);
    check("pooled_memory_keeps_what_is_written", value == 7);
    expect("free_of_pooled_memory_in_order", cu.free_async(addr, stream), CUDA_SUCCESS);
    cu.stream_synchronize(stream);
    check("what_was_freed_is_not_in_use", pool_value(pool, used) == before);
    check("the_peak_of_use_stays", pool_value(pool, high) >= before + 4 * page);
    expect("reset_of_the_peak", cu.pool_set(pool, high, &none), CUDA_SUCCESS);
    check("the_peak_is_then_what_is_in_use", pool_value(pool, high) == before);
}

// Memory of one stream is used on another that waits for it, and freed there.
static void check_pooled_order(CUstream stream)
{
    CUdeviceptr first, second;
    CUevent allocated;
    CUstream other;
    unsigned value = 0;

    cu.stream_create(&other, CU_STREAM_NON_BLOCKING);
    cu.event_create(&allocated, CU_EVENT_DISABLE_TIMING);
    cu.alloc_async(&first, page, stream);
    cu.event_record(allocated, stream);
    cu.stream_wait(other, allocated, 0);
    cu.fill_async(first, 8, 1, other);
    cu.copy_out_async(&value, first, sizeof value, other);
    expect("free_on_another_stream", cu.free_async(first, other), CUDA_SUCCESS);
    cu.stream_synchronize(other);
    check("pooled_memory_is_used_on_another_stream", value == 8);

    cu.alloc_async(&first, page, stream);
    make_busy(stream);
    cu.free_async(first, stream);
    expect("alloc_behind_a_pending_free", cu.alloc_async(&second, page, stream),
           CUDA_SUCCESS);
    note("memory_of_a_pending_free_is_reused_in_its_stream", "%s",
         first == second ? "yes" : "no");
    open_gate();
    cu.stream_synchronize(stream);
    expect("free_of_pooled_memory_at_once", cu.free(second), CUDA_SUCCESS);
    expect_failure("free_of_pooled_memory_twice", cu.free_async(second, stream));
    cu.event_destroy(allocated);
    cu.stream_destroy(other);
}

static void check_pools(void)
{
    CUmemoryPool pool = NULL, current = NULL;
    CUstream stream;
    int supported = 0;

    cu.device_attribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0);
    if (!supported) {
        report("waived", "pools", "the device has none");
        return;
    }
    expect("default_pool", cu.default_pool(&pool, 0), CUDA_SUCCESS);
    expect("current_pool", cu.current_pool(&current, 0), CUDA_SUCCESS);
    check("the_current_pool_is_the_default_one", pool == current);
    cu.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    check_use(pool, stream);
    check_pooled_order(stream);
    check_threshold(pool);
    cu.stream_destroy(stream);
}
