/* vmm.c - the driver calls of virtual memory management: reservations, mappings and
 * access; physical.c has the memory that is mapped. What each promises, and which use
 * of it is wrong, is checked here.
 *
 * While something captures, memory may be made, mapped and opened: PyTorch's expandable
 * segments do that. Whether it may be unmapped or released is not documented: here not.
 */
#include "libcuda/engine/race.h"
#include "libcuda/execution/call.h"
#include "libcuda/memory/address.h"
#include "libcuda/memory/device.h"
#include "libcuda/memory/handle.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/capture.h"
#include "libcuda/objects/stream.h"
#include "libcuda/session/config.h"
#include "libcuda/session/report.h"

// ---- reservations

enum { HOST_PAGE = 4096 };

static CUresult reserve(CUdeviceptr *addr, size_t bytes, size_t alignment,
                        unsigned long long flags)
{
    if (addr == NULL || flags != 0 || bytes == 0 || bytes % HOST_PAGE != 0 ||
        (alignment & (alignment - 1)) != 0)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "%zu bytes aligned to %zu: the size must be a multiple of "
                          "4 KiB, the alignment a power of two, flags 0",
                          bytes, alignment);
    sim_reservation_t *reservation = sim_space_reserve(bytes, alignment);
    if (reservation == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *addr = reservation->range.base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *addr, size_t bytes, size_t alignment,
                             CUdeviceptr hint, unsigned long long flags)
{
    return SIM_CALL(reserve(addr, bytes, alignment, flags),
                    "%#llx, %zu, %zu, %#llx, %llu", result == CUDA_SUCCESS ? *addr : 0,
                    bytes, alignment, hint, flags);
}

static CUresult unreserve(CUdeviceptr addr, size_t bytes)
{
    sim_reservation_t *reservation = sim_space_find(addr);

    if (reservation == NULL || reservation->range.base != addr ||
        reservation->owner != NULL)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "%#llx is not the start of a reservation", addr);
    if (reservation->range.bytes != bytes)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "%zu bytes at %#llx: %llu are reserved", bytes, addr,
                          (unsigned long long)reservation->range.bytes);
    if (reservation->mapping_count > 0)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "%llu mappings are left in the reservation at %#llx",
                          (unsigned long long)reservation->mapping_count, addr);
    sim_space_unreserve(reservation);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr addr, size_t bytes)
{
    return SIM_CALL(unreserve(addr, bytes), "%#llx, %zu", addr, bytes);
}

// ---- mappings

// The reservation that holds the whole range, aligned to pages; else NULL and a misuse.
static sim_reservation_t *find_whole(CUdeviceptr addr, size_t bytes)
{
    sim_reservation_t *reservation = sim_space_find(addr);

    if (reservation != NULL && reservation->owner == NULL && bytes > 0 &&
        addr % SIM_PAGE == 0 && bytes % SIM_PAGE == 0 &&
        bytes <= reservation->range.base + reservation->range.bytes - addr)
        return reservation;
    sim_misuse(CUDA_ERROR_INVALID_VALUE,
               "%zu bytes at %#llx: not in one reservation, or not multiples of 2 MiB",
               bytes, addr);
    return NULL;
}

static CUresult map(CUdeviceptr addr, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle value, unsigned long long flags)
{
    sim_handle_t *handle = sim_handle_find(value);

    if (handle == NULL)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "handle %#llx does not exist or was released", value);
    if (offset != 0 || flags != 0 || bytes > handle->bytes)
        return sim_misuse(
            CUDA_ERROR_INVALID_VALUE,
            "%zu bytes at offset %zu: offset and flags must be 0, the handle "
            "has %llu bytes",
            bytes, offset, (unsigned long long)handle->bytes);
    sim_reservation_t *reservation = find_whole(addr, bytes);
    if (reservation == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t at = addr; at < addr + bytes; at += SIM_PAGE) {
        if (sim_space_mapping(at) != NULL)
            return sim_misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is mapped already",
                              (unsigned long long)at);
    }
    return sim_space_map(reservation, addr, bytes, handle);
}

CUresult cuMemMap(CUdeviceptr addr, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    return SIM_CALL(map(addr, bytes, offset, handle, flags),
                    "%#llx, %zu, %zu, %#llx, %llu", addr, bytes, offset, handle, flags);
}

// The range must consist of whole mappings, side by side.
static CUresult check_whole_mappings(CUdeviceptr addr, size_t bytes)
{
    uint64_t at = addr, end = addr + bytes;

    while (at < end) {
        const sim_mapping_t *mapping = sim_space_mapping(at);
        if (mapping == NULL)
            return sim_misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is not mapped",
                              (unsigned long long)at);
        if (mapping->base != at || mapping->base + mapping->bytes > end)
            return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                              "%zu bytes at %#llx cover only a part of the mapping of "
                              "%llu bytes at %#llx",
                              bytes, addr, (unsigned long long)mapping->bytes,
                              (unsigned long long)mapping->base);
        at += mapping->bytes;
    }
    return CUDA_SUCCESS;
}

static void report_pending_use(CUdeviceptr addr, size_t bytes)
{
    const sim_operation_t *user = sim_race_find_runner(addr, bytes);

    if (user != NULL)
        sim_misuse(CUDA_SUCCESS,
                   "%zu bytes at %#llx are in use by a pending %s of stream "
                   "%llu",
                   bytes, addr, user->work.call, (unsigned long long)user->stream->id);
}

static CUresult unmap(CUdeviceptr addr, size_t bytes)
{
    sim_reservation_t *reservation = find_whole(addr, bytes);

    if (reservation == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_whole_mappings(addr, bytes);
    if (result == CUDA_SUCCESS)
        result = sim_capture_forbid();
    if (result != CUDA_SUCCESS)
        return result;
    report_pending_use(addr, bytes);
    for (uint64_t at = addr; at < addr + bytes && result == CUDA_SUCCESS;) {
        sim_mapping_t *mapping = sim_space_mapping(at);
        at += mapping->bytes;
        result = sim_space_unmap(reservation, mapping);
    }
    return result;
}

CUresult cuMemUnmap(CUdeviceptr addr, size_t bytes)
{
    return SIM_CALL(unmap(addr, bytes), "%#llx, %zu", addr, bytes);
}

// ---- access

static bool is_host_access(const CUmemLocation *location)
{
    return location->type == CU_MEM_LOCATION_TYPE_HOST ||
           location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

static CUresult check_descriptor(CUdeviceptr addr, size_t bytes,
                                 const CUmemAccessDesc *access)
{
    if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE, "access flags %d are unknown",
                          (int)access->flags);
    if (!is_host_access(&access->location)) {
        bool is_device = access->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                         sim_device(access->location.id) != NULL;
        return is_device
                   ? CUDA_SUCCESS
                   : sim_misuse(CUDA_ERROR_INVALID_DEVICE, "there is no location %d:%d",
                                (int)access->location.type, access->location.id);
    }
    for (uint64_t at = addr; at < addr + bytes;) {
        const sim_mapping_t *mapping = sim_space_mapping(at);
        if (!sim_handle_is_on_host(mapping->handle))
            return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                              "host access to device memory at %#llx",
                              (unsigned long long)at);
        at += mapping->bytes;
    }
    return CUDA_SUCCESS;
}

static CUresult allow(CUdeviceptr addr, size_t bytes, const CUmemAccessDesc *access)
{
    int device = is_host_access(&access->location) ? -1 : access->location.id;
    CUresult result = CUDA_SUCCESS;

    for (uint64_t at = addr; at < addr + bytes && result == CUDA_SUCCESS;) {
        sim_mapping_t *mapping = sim_space_mapping(at);
        result = sim_space_allow(mapping, device, access->flags);
        at += mapping->bytes;
    }
    return result;
}

static CUresult set_access(CUdeviceptr addr, size_t bytes,
                           const CUmemAccessDesc *access, size_t count)
{
    if (access == NULL || count == 0)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE, "no access is described");
    if (find_whole(addr, bytes) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_whole_mappings(addr, bytes);
    if (result == CUDA_SUCCESS && sim_config.rdma == SIM_OFFER_REFUSED &&
        sim_space_mapping(addr)->handle->prop.allocFlags.gpuDirectRDMACapable != 0)
        result = CUDA_ERROR_UNKNOWN;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = check_descriptor(addr, bytes, &access[i]);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = allow(addr, bytes, &access[i]);
    return result;
}

CUresult cuMemSetAccess(CUdeviceptr addr, size_t bytes, const CUmemAccessDesc *access,
                        size_t count)
{
    return SIM_CALL(set_access(addr, bytes, access, count), "%#llx, %zu, %zu", addr,
                    bytes, count);
}

static CUresult get_access(unsigned long long *flags, const CUmemLocation *location,
                           CUdeviceptr addr)
{
    const sim_mapping_t *mapping = sim_space_mapping(addr);

    if (flags == NULL || location == NULL || mapping == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool read = mapping->host_reads, write = mapping->host_writes;
    if (!is_host_access(location)) {
        if (sim_device(location->id) == NULL)
            return CUDA_ERROR_INVALID_DEVICE;
        read = mapping->readers >> location->id & 1;
        write = mapping->writers >> location->id & 1;
    }
    *flags = write  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : read ? CU_MEM_ACCESS_FLAGS_PROT_READ
                    : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                        CUdeviceptr addr)
{
    return SIM_CALL(get_access(flags, location, addr), "%#llx", addr);
}
