/* device.c - devices: how many there are, who they are, and their attributes. */
#include "libcuda/memory/device.h"
#include "libcuda/base/lock.h"
#include "libcuda/execution/call.h"
#include "libcuda/session/config.h"
#include "libcuda/session/gpu.h"
#include "libcuda/session/session.h"
#include "libcuda/session/visible_devices.h"
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult cuInit(unsigned flags)
{
    CUresult result = sim_enter_uninitialised(__func__);

    if (result == CUDA_SUCCESS && flags != 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && sim_visible_device_count() == 0)
        result = CUDA_ERROR_NO_DEVICE;
    if (result == CUDA_SUCCESS)
        sim_mark_initialised();
    return sim_leave(result, "%u", flags);
}

CUresult cuDriverGetVersion(int *version)
{
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    *version = sim_config.driver_version;
    sim_unlock();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = sim_enter_checked(__func__, count != NULL);

    if (result == CUDA_SUCCESS)
        *count = sim_visible_device_count();
    return sim_return(result);
}

// Enters a call about a device, which must exist; so must the place of the answer.
static CUresult enter(const char *function, const void *out, CUdevice device)
{
    CUresult result = sim_enter_checked(function, out != NULL);

    return result == CUDA_SUCCESS && sim_device(device) == NULL
               ? CUDA_ERROR_INVALID_DEVICE
               : result;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = enter(__func__, device, ordinal);

    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return sim_leave(result, "%d", ordinal);
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    CUresult result = enter(__func__, name, device);

    if (result == CUDA_SUCCESS && bytes <= 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        snprintf(name, (size_t)bytes, "%s", sim_config.name);
    return sim_leave(result, "%d", device);
}

void oomph_sim_uuid(int device, unsigned char bytes[16])
{
    memcpy(bytes, "oomph simulated", 16);
    bytes[15] = (unsigned char)device;
}

int oomph_sim_device_total(void)
{
    sim_lock();
    int total = sim_config.device_count;
    sim_unlock();
    return total;
}

static CUresult get_uuid(const char *function, CUuuid *uuid, CUdevice device)
{
    CUresult result = enter(function, uuid, device);

    if (result == CUDA_SUCCESS)
        oomph_sim_uuid(sim_visible_device(device), (unsigned char *)uuid->bytes);
    return sim_leave(result, "%d", device);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return get_uuid(__func__, uuid, device);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return get_uuid(__func__, uuid, device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = enter(__func__, bytes, device);

    if (result == CUDA_SUCCESS)
        *bytes = sim_config.capacity_bytes;
    return sim_leave(result, "%d", device);
}

CUresult cuDeviceGetPCIBusId(char *id, int bytes, CUdevice device)
{
    CUresult result = enter(__func__, id, device);

    if (result == CUDA_SUCCESS && bytes < 13)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        snprintf(id, (size_t)bytes, "0000:%02X:00.0", sim_visible_device(device) + 1);
    return sim_leave(result, "%d", device);
}

int oomph_sim_device_of_bus_id(const char *id)
{
    const char *bus = id != NULL ? strchr(id, ':') : NULL;
    char *end = NULL;

    if (bus == NULL)
        return -1;
    unsigned long number = strtoul(bus + 1, &end, 16);
    return *end == ':' && number <= SIM_DEVICES_MAX ? (int)number - 1 : -1;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
    CUresult result = sim_enter_checked(__func__, device != NULL && id != NULL);
    int found = sim_visible_device_find(oomph_sim_device_of_bus_id(id));

    if (result == CUDA_SUCCESS && found < 0)
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *device = found;
    return sim_leave(result, "%s", id ? id : "NULL");
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CUresult result = enter(__func__, can, device);

    if (result == CUDA_SUCCESS && sim_device(peer) == NULL)
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *can = device != peer;
    return sim_leave(result, "%d, %d", device, peer);
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute,
                                 CUdevice device, CUdevice peer)
{
    CUresult result = enter(__func__, value, device);

    if (result == CUDA_SUCCESS && (sim_device(peer) == NULL || device == peer))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
                 attribute == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    return sim_leave(result, "%d, %d, %d", (int)attribute, device, peer);
}

// ---- attributes: those of an H100, where the card's description says nothing else

typedef struct attribute {
    CUdevice_attribute name;
    int value;
} attribute_t;

static const attribute_t ATTRIBUTES[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 52428800},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
};

// What depends on the card that is simulated.
static int card_attribute(CUdevice_attribute attribute, int device)
{
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return sim_config.cc_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return sim_config.cc_minor;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return sim_config.sm_count;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return sim_threads_per_sm(sim_config.cc_major, sim_config.cc_minor);
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: // see oomph_sim_device_of_bus_id()
        return sim_visible_device(device) + 1;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
        return sim_config.is_integrated;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        return sim_config.has_vmm;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        return sim_config.share != SIM_OFFER_NO;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        return sim_config.host_pages == SIM_HOST_PAGES_NUMA;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        return sim_config.rdma != SIM_OFFER_NO;
    case CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        return sim_config.host_pages != SIM_HOST_PAGES_NONE;
    default:
        return 0; // unknown: not supported
    }
}

static int device_attribute(CUdevice_attribute attribute, int device)
{
    for (size_t i = 0; i < sizeof ATTRIBUTES / sizeof ATTRIBUTES[0]; i++) {
        if (ATTRIBUTES[i].name == attribute)
            return ATTRIBUTES[i].value;
    }
    return card_attribute(attribute, device);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CUresult result = enter(__func__, value, device);

    if (result == CUDA_SUCCESS &&
        (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *value = device_attribute(attribute, device);
    return sim_leave(result, "%d, %d", (int)attribute, device);
}
