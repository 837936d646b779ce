#include "libcuda/memory/allocation.h"

#include "libcuda/memory/address.h"
#include "libcuda/memory/handle.h"

enum { SMALL_UNIT = 512 }; // bytes

// Any device may copy to and from the allocation. That a kernel of another device needs
// peer access is seen to where kernels run (fault.c).
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

void sim_memory_unplace(sim_reservation_t *allocation)
{
    if (allocation->is_pooled)
        allocation->owner->pooled_bytes -= allocation->slots[0]->handle->charged_bytes;
    if (allocation->mapping_count > 0)
        sim_space_unmap(allocation, allocation->slots[0]);
    sim_space_unreserve(allocation);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

uint64_t sim_memory_charge(size_t bytes)
{
    return round_up(bytes, bytes < SIM_PAGE ? SMALL_UNIT : SIM_PAGE);
}

uint64_t sim_memory_pool_charge(size_t bytes)
{
    return round_up(bytes, SMALL_UNIT);
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
        sim_memory_unplace(reservation);
    }
    return result;
}

CUresult sim_memory_allocate(CUcontext context, size_t bytes, uint64_t charged_bytes,
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
    while (context->guests != NULL)
        sim_device_dismiss(context->guests);
    for (size_t i = 0; sim_space_at(i) != NULL;) {
        if (sim_space_at(i)->owner == context)
            sim_memory_unplace(sim_space_at(i));
        else
            i++;
    }
}

sim_reservation_t *sim_memory_find(CUdeviceptr addr)
{
    sim_reservation_t *reservation = sim_space_find(addr);

    if (reservation == NULL || reservation->owner == NULL ||
        reservation->range.base != addr)
        return NULL;
    return reservation;
}

static void free_graph_memory(sim_reservation_t *allocation)
{
    if (allocation->graph_count == 0 && !allocation->is_graph_used)
        sim_memory_unplace(allocation);
}

void sim_memory_graph_hold(uint64_t addr)
{
    sim_memory_find(addr)->graph_count++;
}

void sim_memory_graph_unhold(uint64_t addr)
{
    sim_reservation_t *allocation = sim_memory_find(addr);

    if (allocation == NULL || allocation->graph_count == 0)
        return; // its context is gone
    allocation->graph_count--;
    free_graph_memory(allocation);
}

void sim_memory_graph_use(uint64_t addr, bool is_used)
{
    sim_reservation_t *allocation = sim_memory_find(addr);

    if (allocation == NULL)
        return;
    allocation->is_graph_used = is_used;
    free_graph_memory(allocation);
}
