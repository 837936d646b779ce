#include "handle.h"

#include "address.h"
#include "device.h"

static sim_slab_t handles = {.object_bytes = sizeof(sim_handle_t)};
static uint64_t next_block_id = 1;

static bool is_host_location(CUmemLocationType type)
{
    return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

bool sim_handle_is_on_host(const sim_handle_t *handle)
{
    return is_host_location(handle->prop.location.type);
}

static bool take_memory(const CUmemAllocationProp *prop, uint64_t bytes)
{
    if (is_host_location(prop->location.type))
        return sim_host_take(SIM_HOST_LOCATED, bytes);
    return sim_device_take(sim_device(prop->location.id), bytes);
}

static void give_memory(const CUmemAllocationProp *prop, uint64_t bytes)
{
    if (is_host_location(prop->location.type))
        sim_host_give(SIM_HOST_LOCATED, bytes);
    else
        sim_device_give(sim_device(prop->location.id), bytes);
}

CUresult sim_handle_create(const CUmemAllocationProp *prop, uint64_t bytes,
                           uint64_t charged_bytes, sim_handle_t **handle)
{
    uint64_t offset;

    if (!take_memory(prop, charged_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_handle_t *made = sim_slab_take(&handles);
    if (made == NULL || !sim_bytes_take(bytes, &offset))
        goto undo_memory;
    *made = (sim_handle_t){
        .object = made->object,
        .prop = *prop,
        .bytes = bytes,
        .charged_bytes = charged_bytes,
        .offset = offset,
        .block_id = next_block_id++,
        .reference_count = 1,
    };
    *handle = made;
    return CUDA_SUCCESS;

undo_memory:
    if (made != NULL)
        sim_slab_give(&handles, &made->object);
    give_memory(prop, charged_bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void free_if_unused(sim_handle_t *handle)
{
    if (handle->reference_count > 0 || handle->mapping_count > 0)
        return;
    sim_bytes_give(handle->offset, handle->bytes);
    give_memory(&handle->prop, handle->charged_bytes);
    sim_slab_give(&handles, &handle->object);
}

CUmemGenericAllocationHandle sim_handle_value(const sim_handle_t *handle)
{
    return (uint64_t)handle->object.generation << 32 | (handle->object.index + 1);
}

sim_handle_t *sim_handle_find(CUmemGenericAllocationHandle value)
{
    uint32_t index = (uint32_t)value;
    sim_handle_t *handle = index > 0 ? sim_slab_at(&handles, index - 1) : NULL;

    if (handle == NULL || sim_handle_value(handle) != value ||
        handle->reference_count == 0)
        return NULL;
    return handle;
}

void sim_handle_unreference(sim_handle_t *handle)
{
    handle->reference_count--;
    free_if_unused(handle);
}

void sim_handle_map(sim_handle_t *handle)
{
    handle->mapping_count++;
}

void sim_handle_unmap(sim_handle_t *handle)
{
    handle->mapping_count--;
    free_if_unused(handle);
}

uint64_t sim_handle_count(void)
{
    return handles.live_count;
}

void sim_handle_reset(void)
{
    sim_slab_give_all(&handles);
}
