#include "libcuda/memory/handle.h"

#include "libcuda/memory/device.h"
#include "libcuda/memory/foreign.h"

static sim_slab_t handles = {.object_bytes = sizeof(sim_handle_t)};
static uint64_t next_block_id = 1;
static uint32_t kept_count; // given up here, but not by other processes

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
    sim_bytes_t bytes_at;

    sim_handle_collect();
    if (!take_memory(prop, charged_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_handle_t *made = sim_slab_take(&handles);
    if (made == NULL || !sim_bytes_take(bytes, &bytes_at))
        goto undo_memory;
    *made = (sim_handle_t){
        .object = made->object,
        .prop = *prop,
        .bytes = bytes,
        .charged_bytes = charged_bytes,
        .bytes_at = bytes_at,
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

static bool is_unused(const sim_handle_t *handle)
{
    return handle->reference_count == 0 && handle->mapping_count == 0;
}

// Whether a descriptor or another process still names memory of this process.
static bool is_used_elsewhere(const sim_handle_t *handle)
{
    return handle->label != 0 && handle->bytes_at.file < 0 &&
           sim_label_is_used(handle->label);
}

static void free_memory(sim_handle_t *handle)
{
    if (handle->bytes_at.file >= 0) {
        sim_label_unlock(handle->bytes_at.file, handle->label);
        sim_foreign_give(handle->bytes_at.file);
    } else {
        sim_bytes_give(&handle->bytes_at, handle->bytes);
        give_memory(&handle->prop, handle->charged_bytes);
    }
    sim_slab_give(&handles, &handle->object);
}

static void free_if_unused(sim_handle_t *handle)
{
    if (!is_unused(handle))
        return;
    if (is_used_elsewhere(handle))
        kept_count++;
    else
        free_memory(handle);
}

void sim_handle_collect(void)
{
    sim_handle_t *handle;

    for (uint32_t i = 0;
         kept_count > 0 && (handle = sim_slab_next(&handles, &i)) != NULL;) {
        if (!is_unused(handle) || is_used_elsewhere(handle))
            continue;
        kept_count--;
        free_memory(handle);
    }
}

CUmemGenericAllocationHandle sim_handle_value(const sim_handle_t *handle)
{
    return (uint64_t)handle->object.generation << 32 | (handle->object.index + 1);
}

static sim_handle_t *find_any(CUmemGenericAllocationHandle value)
{
    uint32_t index = (uint32_t)value;
    sim_handle_t *handle = index > 0 ? sim_slab_at(&handles, index - 1) : NULL;

    return handle != NULL && sim_is_live(&handle->object) &&
                   sim_handle_value(handle) == value
               ? handle
               : NULL;
}

sim_handle_t *sim_handle_find(CUmemGenericAllocationHandle value)
{
    sim_handle_t *handle = find_any(value);

    return handle != NULL && handle->reference_count > 0 ? handle : NULL;
}

sim_handle_t *sim_handle_reference(CUmemGenericAllocationHandle value)
{
    sim_handle_t *handle = find_any(value);

    if (handle == NULL)
        return NULL;
    if (is_unused(handle))
        kept_count--;
    handle->reference_count++;
    return handle;
}

sim_handle_t *sim_handle_find_imported(const sim_bytes_t *bytes_at, uint64_t label)
{
    sim_handle_t *handle;

    for (uint32_t i = 0; (handle = sim_slab_next(&handles, &i)) != NULL;)
        if (handle->bytes_at.file == bytes_at->file && handle->label == label)
            break;
    return handle;
}

sim_handle_t *sim_handle_adopt(int device, uint64_t bytes, const sim_bytes_t *bytes_at,
                               uint64_t label)
{
    sim_handle_t *made = sim_slab_take(&handles);

    if (made == NULL)
        return NULL;
    *made = (sim_handle_t){
        .object = made->object,
        .prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytes = bytes,
        .bytes_at = *bytes_at,
        .label = label,
        .block_id = next_block_id++,
        .reference_count = 1,
    };
    return made;
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
    kept_count = 0;
}
