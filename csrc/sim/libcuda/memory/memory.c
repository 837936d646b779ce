#include "libcuda/memory/memory.h"

#include "libcuda/engine/queue.h"
#include "libcuda/memory/address.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/capture.h"
#include "libcuda/session/call.h"
#include "libcuda/session/config.h"

#include <stddef.h>

enum { SMALL_UNIT = 512 }; // bytes

// Any device may copy to and from the allocation. That a kernel of another device needs
// peer access is seen to where kernels run (work.c).
static CUresult allow_devices(sim_mapping_t *mapping)
{
    CUresult result = CUDA_SUCCESS;

    for (int i = 0; sim_device(i) != NULL && result == CUDA_SUCCESS; i++)
        result = sim_space_allow(mapping, i, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return result;
}

static CUresult map_all(sim_reservation_t *reservation, sim_handle_t *handle)
{
    CUresult result = sim_space_map(reservation, reservation->range.base,
                                    reservation->range.bytes, handle);
    if (result == CUDA_SUCCESS)
        result = allow_devices(reservation->slots[0]);
    return result;
}

static void free_reservation(sim_reservation_t *reservation)
{
    if (reservation->is_pooled)
        reservation->owner->pooled_bytes -=
            reservation->slots[0]->handle->charged_bytes;
    if (reservation->mapping_count > 0)
        sim_space_unmap(reservation, reservation->slots[0]);
    sim_space_unreserve(reservation);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

// What cuMemAlloc takes of the device: small allocations share pages.
static uint64_t plain_charge(size_t bytes)
{
    return round_up(bytes, bytes < SIM_PAGE ? SMALL_UNIT : SIM_PAGE);
}

CUresult sim_memory_place(CUcontext context, sim_handle_t *handle,
                          sim_reservation_t **allocation)
{
    sim_reservation_t *reservation = sim_space_reserve(handle->bytes, SIM_PAGE);

    if (reservation == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = map_all(reservation, handle);
    if (result == CUDA_SUCCESS) {
        reservation->owner = context;
        *allocation = reservation;
    } else {
        free_reservation(reservation);
    }
    return result;
}

void sim_memory_unplace(sim_reservation_t *allocation)
{
    free_reservation(allocation);
}

static CUresult allocate(CUcontext context, size_t bytes, uint64_t charged_bytes,
                         sim_reservation_t **allocation)
{
    const CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context->device},
    };
    uint64_t whole = round_up(bytes, SIM_PAGE);
    sim_handle_t *handle;

    if (bytes > UINT64_MAX / 2)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sim_handle_create(&prop, whole, charged_bytes, &handle);
    if (result != CUDA_SUCCESS)
        return result;
    result = sim_memory_place(context, handle, allocation);
    sim_handle_unreference(handle); // from here on the mapping alone keeps it
    return result;
}

void sim_memory_free_all(CUcontext context)
{
    for (size_t i = 0; sim_space_at(i) != NULL;) {
        if (sim_space_at(i)->owner == context)
            free_reservation(sim_space_at(i));
        else
            i++;
    }
}

static CUresult allocate_plain(CUdeviceptr *addr, size_t bytes)
{
    CUcontext context;
    sim_reservation_t *allocation;

    if (addr == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_context_usable(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_forbid();
    if (result == CUDA_SUCCESS)
        result = allocate(context, bytes, plain_charge(bytes), &allocation);
    if (result == CUDA_SUCCESS)
        *addr = allocation->range.base;
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *addr, size_t bytes)
{
    CUresult result = sim_enter("cuMemAlloc_v2");

    if (result == CUDA_SUCCESS)
        result = allocate_plain(addr, bytes);
    return sim_leave(result, "%#llx, %zu", result == CUDA_SUCCESS ? *addr : 0, bytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *addr, size_t *pitch, size_t width,
                            size_t height, unsigned element_bytes)
{
    const size_t alignment = 512;
    CUresult result = sim_enter("cuMemAllocPitch_v2");

    if (result == CUDA_SUCCESS && pitch == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        *pitch = (width + alignment - 1) / alignment * alignment;
        result = allocate_plain(addr, *pitch * height);
    }
    return sim_leave(result, "%zu, %zu, %u", width, height, element_bytes);
}

static sim_reservation_t *find_allocation(CUdeviceptr addr)
{
    sim_reservation_t *reservation = sim_space_find(addr);

    if (reservation == NULL || reservation->owner == NULL ||
        reservation->range.base != addr)
        return NULL;
    return reservation;
}

static CUresult free_plain(CUdeviceptr addr)
{
    sim_reservation_t *allocation = find_allocation(addr);
    CUresult result;

    if (addr == 0)
        return CUDA_SUCCESS;
    if (allocation == NULL || allocation->open_count > 0)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "%#llx was not allocated, or freed before", addr);
    if (allocation->owner->sticky != CUDA_SUCCESS)
        return allocation->owner->sticky;
    result = sim_capture_forbid();
    if (result != CUDA_SUCCESS)
        return result;
    sim_queue_wait_for_context(allocation->owner); // as the real one does
    if (find_allocation(addr) != allocation)       // the lock was given away meanwhile
        return CUDA_ERROR_INVALID_VALUE;
    free_reservation(allocation);
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr addr)
{
    CUresult result = sim_enter("cuMemFree_v2");

    if (result == CUDA_SUCCESS)
        result = free_plain(addr);
    return sim_leave(result, "%#llx", addr);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CUcontext context;
    CUresult result = sim_enter("cuMemGetInfo_v2");

    if (result == CUDA_SUCCESS && (free_bytes == NULL || total_bytes == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = sim_context_usable(&context);
    if (result == CUDA_SUCCESS) {
        sim_handle_collect();
        *free_bytes = sim_device_free_bytes(context);
        *total_bytes = sim_config.capacity_bytes;
    }
    return sim_return(result);
}

// ---- stream-ordered memory

// The node that allocates takes over the hold.
static CUresult capture_allocation(sim_reservation_t *allocation, CUstream stream)
{
    const sim_work_t work = {
        .kind = SIM_WORK_GRAPH_ALLOC,
        .call = sim_current_call(),
        .dst = allocation->range.base,
    };

    allocation->graph_count = 1;
    CUresult result = sim_queue_submit(stream, &work, NULL);
    if (result != CUDA_SUCCESS)
        free_reservation(allocation);
    return result;
}

static void free_graph_memory(sim_reservation_t *allocation)
{
    if (allocation->graph_count == 0 && !allocation->is_graph_used)
        free_reservation(allocation);
}

void sim_memory_graph_hold(uint64_t addr)
{
    find_allocation(addr)->graph_count++;
}

void sim_memory_graph_unhold(uint64_t addr)
{
    sim_reservation_t *allocation = find_allocation(addr);

    if (allocation == NULL || allocation->graph_count == 0)
        return; // its context is gone
    allocation->graph_count--;
    free_graph_memory(allocation);
}

void sim_memory_graph_use(uint64_t addr, bool is_used)
{
    sim_reservation_t *allocation = find_allocation(addr);

    if (allocation == NULL)
        return;
    allocation->is_graph_used = is_used;
    free_graph_memory(allocation);
}

// The host has no need to wait for pending frees before it takes device memory again;
// only when that is exhausted.
static CUresult allocate_pooled(CUdeviceptr *addr, size_t bytes, CUcontext owner,
                                CUstream handle)
{
    CUstream stream;
    sim_reservation_t *allocation;

    if (addr == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    CUcontext context = owner != NULL ? owner : stream->context;
    uint64_t charge = round_up(bytes, SMALL_UNIT); // a pool shares all pages
    result = allocate(context, bytes, charge, &allocation);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        sim_queue_wait_for_context(context);
        result = allocate(context, bytes, charge, &allocation);
    }
    if (result != CUDA_SUCCESS)
        return result;
    allocation->is_pooled = true;
    context->pooled_bytes += charge;
    if (context->pooled_bytes > context->peak_pooled_bytes)
        context->peak_pooled_bytes = context->pooled_bytes;
    *addr = allocation->range.base;
    return stream->capture != NULL ? capture_allocation(allocation, stream)
                                   : CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *addr, size_t bytes, CUstream stream)
{
    CUresult result = sim_enter("cuMemAllocAsync");

    if (result == CUDA_SUCCESS)
        result = allocate_pooled(addr, bytes, NULL, stream);
    return sim_leave(result, "%#llx, %zu, %p", result == CUDA_SUCCESS ? *addr : 0,
                     bytes, (void *)stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *addr, size_t bytes, CUmemoryPool pool,
                                 CUstream stream)
{
    CUresult result = sim_enter("cuMemAllocFromPoolAsync");

    if (result == CUDA_SUCCESS && pool == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = allocate_pooled(addr, bytes, sim_pool_device(pool), stream);
    return sim_leave(result, "%#llx, %zu, %p", result == CUDA_SUCCESS ? *addr : 0,
                     bytes, (void *)stream);
}

void sim_memory_free_pooled(uint64_t addr)
{
    sim_reservation_t *allocation = find_allocation(addr);

    if (allocation == NULL) {
        sim_misuse(CUDA_SUCCESS, "cuMemFreeAsync: %#llx was freed before",
                   (unsigned long long)addr);
        return;
    }
    const sim_operation_t *user =
        sim_queue_find_user(addr, allocation->range.bytes, NULL);
    if (allocation->graph_count > 0 || allocation->is_graph_used) {
        sim_memory_graph_use(addr, false);
        return;
    }
    if (user != NULL)
        sim_misuse(CUDA_SUCCESS,
                   "cuMemFreeAsync: %#llx is in use by a pending %s of stream %llu",
                   (unsigned long long)addr, user->work.call,
                   (unsigned long long)user->stream->id);
    free_reservation(allocation);
}

static CUresult free_in_order(CUdeviceptr addr, CUstream handle)
{
    CUstream stream;
    sim_work_t work = {.kind = SIM_WORK_FREE, .call = "cuMemFreeAsync", .dst = addr};
    CUresult result = sim_stream_find(handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    const sim_reservation_t *allocation = find_allocation(addr);
    if (allocation == NULL)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "%#llx was not allocated, or freed before", addr);
    if (stream->capture != NULL && allocation->graph_count == 0)
        return sim_capture_refuse(stream); // a graph frees what a graph allocated
    if (stream->capture != NULL)
        work.kind = SIM_WORK_GRAPH_FREE;
    return sim_queue_submit(stream, &work, NULL);
}

CUresult cuMemFreeAsync(CUdeviceptr addr, CUstream stream)
{
    CUresult result = sim_enter("cuMemFreeAsync");

    if (result == CUDA_SUCCESS)
        result = free_in_order(addr, stream);
    return sim_leave(result, "%#llx, %p", addr, (void *)stream);
}
