/* pointer.c - what an address is. */
#include "libcuda/base/lock.h"
#include "libcuda/base/ranges.h"
#include "libcuda/execution/call.h"
#include "libcuda/memory/handle.h"
#include "libcuda/memory/pinned.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/context.h"
#include "libcuda/session/config.h"
#include "libcuda/session/session.h"
#include "runtime.h"

#include <string.h>

// All that is known of an address; every pointer may be NULL.
typedef struct pointer {
    uint64_t addr;
    const sim_reservation_t *reservation;
    const sim_mapping_t *mapping;
    const sim_pinned_t *pinned;
} pointer_t;

static pointer_t look_up(uint64_t addr)
{
    pointer_t pointer = {
        .addr = addr,
        .reservation = sim_space_find(addr),
        .mapping = sim_space_mapping(addr),
    };

    if (pointer.reservation == NULL)
        pointer.pinned = sim_pinned_find(addr);
    return pointer;
}

static bool is_known(const pointer_t *pointer)
{
    return pointer->reservation != NULL || pointer->pinned != NULL;
}

static bool is_on_host(const pointer_t *pointer)
{
    return pointer->pinned != NULL || (pointer->mapping != NULL &&
                                       sim_handle_is_on_host(pointer->mapping->handle));
}

static bool is_managed(const pointer_t *pointer)
{
    return pointer->pinned != NULL && pointer->pinned->kind == SIM_PINNED_MANAGED;
}

static int device_of(const pointer_t *pointer)
{
    if (pointer->pinned != NULL)
        return pointer->pinned->context->device;
    if (pointer->mapping == NULL || is_on_host(pointer))
        return 0;
    return pointer->mapping->handle->prop.location.id;
}

oomph_sim_pointer_t oomph_sim_pointer_kind(uint64_t addr, int *device)
{
    sim_lock();
    pointer_t pointer = look_up(addr);
    oomph_sim_pointer_t kind = OOMPH_SIM_POINTER_UNKNOWN;
    if (is_on_host(&pointer))
        kind =
            is_managed(&pointer) ? OOMPH_SIM_POINTER_MANAGED : OOMPH_SIM_POINTER_HOST;
    else if (pointer.mapping != NULL)
        kind = OOMPH_SIM_POINTER_DEVICE;
    *device = device_of(&pointer);
    sim_unlock();
    return kind;
}

static void *context_of(const pointer_t *pointer)
{
    if (pointer->pinned != NULL)
        return pointer->pinned->context;
    return pointer->reservation->owner; // virtual memory belongs to no context
}

static unsigned access_flags(const pointer_t *pointer)
{
    CUcontext context;

    if (pointer->mapping == NULL || sim_context_of_thread(&context) != CUDA_SUCCESS)
        return pointer->pinned ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                               : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
    if (pointer->mapping->writers >> context->device & 1)
        return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
    if (pointer->mapping->readers >> context->device & 1)
        return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ;
    return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

static const sim_range_t *range_of(const pointer_t *pointer)
{
    return pointer->pinned ? &pointer->pinned->range : &pointer->reservation->range;
}

// What only a mapping has; the pinned buffer stands in for it.
static uint64_t mapping_attribute(const pointer_t *pointer,
                                  CUpointer_attribute attribute)
{
    const sim_range_t *range = range_of(pointer);
    const sim_mapping_t *mapping = pointer->mapping;

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        return mapping ? mapping->base : range->base;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        return mapping ? mapping->bytes : range->bytes;
    default: // BUFFER_ID, MEMORY_BLOCK_ID
        return mapping ? mapping->handle->block_id : pointer->pinned->buffer_id;
    }
}

// Whether network cards may use it: memory of cuMemAlloc where the device allows it,
// pages if they were made for it.
static bool is_for_rdma(const pointer_t *pointer)
{
    if (sim_config.rdma == SIM_OFFER_NO || pointer->mapping == NULL ||
        is_on_host(pointer))
        return false;
    return pointer->reservation->owner != NULL ||
           pointer->mapping->handle->prop.allocFlags.gpuDirectRDMACapable != 0;
}

static CUresult attribute_of_mapped(void *out, CUpointer_attribute attribute,
                                    const pointer_t *pointer)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out =
            is_on_host(pointer) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)out = pointer->addr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!is_on_host(pointer))
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)out = (void *)(uintptr_t)pointer->addr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = device_of(pointer);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)out = access_flags(pointer);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(uint64_t *)out =
            pointer->mapping ? pointer->mapping->handle->prop.requestedHandleTypes : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(uint64_t *)out = mapping_attribute(pointer, attribute);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(bool *)out = is_managed(pointer);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(bool *)out = false;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(bool *)out = is_for_rdma(pointer);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult attribute_of(void *out, CUpointer_attribute attribute,
                             const pointer_t *pointer)
{
    if (out == NULL || !is_known(pointer))
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) { // what a reservation has, mapped or not
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(void **)out = context_of(pointer);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)out = range_of(pointer)->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)out = range_of(pointer)->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(bool *)out = pointer->mapping != NULL || pointer->pinned != NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(bool *)out = pointer->reservation != NULL &&
                       pointer->reservation->owner != NULL &&
                       !pointer->reservation->is_pooled;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(void **)out = pointer->reservation != NULL && pointer->reservation->is_pooled
                            ? pointer->reservation->owner
                            : NULL;
        return CUDA_SUCCESS;
    default:
        if (pointer->mapping == NULL && pointer->pinned == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        return attribute_of_mapped(out, attribute, pointer);
    }
}

static CUresult get_attribute(void *out, CUpointer_attribute attribute,
                              CUdeviceptr addr)
{
    pointer_t pointer = look_up(addr);

    return attribute_of(out, attribute, &pointer);
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute,
                               CUdeviceptr addr)
{
    return SIM_CALL(get_attribute(out, attribute, addr), "%d, %#llx", (int)attribute,
                    addr);
}

// What a program gets for an attribute that an address does not have: zero, no error.
static size_t attribute_bytes(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return sizeof(bool);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return sizeof(unsigned);
    default:
        return sizeof(uint64_t);
    }
}

static CUresult get_attributes(unsigned count, const CUpointer_attribute *attributes,
                               void **out, CUdeviceptr addr)
{
    pointer_t pointer = look_up(addr);

    if (attributes == NULL || out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (out[i] == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        if (attribute_of(out[i], attributes[i], &pointer) != CUDA_SUCCESS)
            memset(out[i], 0, attribute_bytes(attributes[i]));
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes,
                                void **out, CUdeviceptr addr)
{
    return SIM_CALL(get_attributes(count, attributes, out, addr), "%u, %#llx", count,
                    addr);
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                               CUdeviceptr addr)
{
    return SIM_CALL(value != NULL && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
                        ? CUDA_SUCCESS
                        : CUDA_ERROR_INVALID_VALUE,
                    "%d, %#llx", (int)attribute, addr);
}

static CUresult address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr addr)
{
    pointer_t pointer = look_up(addr);

    if (pointer.mapping == NULL && pointer.pinned == NULL)
        return CUDA_ERROR_NOT_FOUND;
    if (base != NULL)
        *base = mapping_attribute(&pointer, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
    if (bytes != NULL)
        *bytes = mapping_attribute(&pointer, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr addr)
{
    return SIM_CALL(address_range(base, bytes, addr), "%#llx", addr);
}
