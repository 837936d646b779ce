/* device.c - devices: what they are, what memory they have, what they can do. */
#include "libcuda/memory/device.h"

#include "libcuda/session/call.h"
#include "libcuda/session/config.h"
#include "libcuda/session/visible.h"
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct CUctx_st devices[SIM_DEVICES_MAX];
static uint64_t host_used[SIM_HOST_KINDS], host_peak[SIM_HOST_KINDS];

CUcontext sim_device(int device)
{
    if (device < 0 || device >= sim_visible_count())
        return NULL;
    if (devices[device].device != device) // else threads may be reading it
        devices[device].device = device;
    return &devices[device];
}

void sim_device_reset(void)
{
    memset(devices, 0, sizeof devices);
    memset(host_used, 0, sizeof host_used);
    memset(host_peak, 0, sizeof host_peak);
}

uint64_t sim_device_free_bytes(const struct CUctx_st *context)
{
    uint64_t taken = context->used_bytes;

    if (context->retain_count > 0)
        taken += sim_config.context_bytes;
    return taken < sim_config.capacity_bytes ? sim_config.capacity_bytes - taken : 0;
}

bool sim_device_take(CUcontext context, uint64_t bytes)
{
    if (bytes > sim_device_free_bytes(context))
        return false;
    context->used_bytes += bytes;
    if (context->used_bytes > context->peak_used_bytes)
        context->peak_used_bytes = context->used_bytes;
    return true;
}

void sim_device_give(CUcontext context, uint64_t bytes)
{
    context->used_bytes -= bytes;
}

bool sim_host_take(sim_host_memory_t kind, uint64_t bytes)
{
    uint64_t used = host_used[SIM_HOST_LOCATED] + host_used[SIM_HOST_PINNED];

    if (bytes > sim_config.host_bytes - used)
        return false;
    host_used[kind] += bytes;
    if (host_used[kind] > host_peak[kind])
        host_peak[kind] = host_used[kind];
    return true;
}

void sim_host_give(sim_host_memory_t kind, uint64_t bytes)
{
    host_used[kind] -= bytes;
}

uint64_t sim_host_used_bytes(sim_host_memory_t kind)
{
    return host_used[kind];
}

uint64_t sim_host_peak_bytes(sim_host_memory_t kind)
{
    return host_peak[kind];
}

CUresult cuInit(unsigned flags)
{
    CUresult result = sim_enter_uninitialised("cuInit");

    if (result == CUDA_SUCCESS && flags != 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && sim_visible_count() == 0)
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
    CUresult result = sim_enter("cuDeviceGetCount");

    if (result == CUDA_SUCCESS && count == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *count = sim_visible_count();
    return sim_return(result);
}

// The checks that calls about one device share.
static CUresult check_device(const void *out, CUdevice device)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = sim_enter("cuDeviceGet");

    if (result == CUDA_SUCCESS)
        result = check_device(device, ordinal);
    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return sim_leave(result, "%d", ordinal);
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    CUresult result = sim_enter("cuDeviceGetName");

    if (result == CUDA_SUCCESS)
        result = check_device(name, device);
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

static CUresult device_uuid(CUuuid *uuid, CUdevice device)
{
    CUresult result = check_device(uuid, device);

    if (result == CUDA_SUCCESS)
        oomph_sim_uuid(sim_visible_at(device), (unsigned char *)uuid->bytes);
    return result;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    CUresult result = sim_enter("cuDeviceGetUuid");

    if (result == CUDA_SUCCESS)
        result = device_uuid(uuid, device);
    return sim_leave(result, "%d", device);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult result = sim_enter("cuDeviceGetUuid_v2");

    if (result == CUDA_SUCCESS)
        result = device_uuid(uuid, device);
    return sim_leave(result, "%d", device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = sim_enter("cuDeviceTotalMem_v2");

    if (result == CUDA_SUCCESS)
        result = check_device(bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = sim_config.capacity_bytes;
    return sim_leave(result, "%d", device);
}

CUresult cuDeviceGetPCIBusId(char *id, int bytes, CUdevice device)
{
    CUresult result = sim_enter("cuDeviceGetPCIBusId");

    if (result == CUDA_SUCCESS)
        result = check_device(id, device);
    if (result == CUDA_SUCCESS && bytes < 13)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        snprintf(id, (size_t)bytes, "0000:%02X:00.0", sim_visible_at(device) + 1);
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

static int visible_device_of_bus_id(const char *id)
{
    int wanted = oomph_sim_device_of_bus_id(id);

    for (int device = 0; device < sim_visible_count(); device++)
        if (sim_visible_at(device) == wanted)
            return device;
    return -1;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
    CUresult result = sim_enter("cuDeviceGetByPCIBusId");
    int found = visible_device_of_bus_id(id);

    if (result == CUDA_SUCCESS && id == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = check_device(device, found);
    if (result == CUDA_SUCCESS)
        *device = found;
    return sim_leave(result, "%s", id ? id : "NULL");
}

static CUresult check_pair(const void *out, CUdevice device, CUdevice peer)
{
    CUresult result = check_device(out, device);

    return result == CUDA_SUCCESS ? check_device(out, peer) : result;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CUresult result = sim_enter("cuDeviceCanAccessPeer");

    if (result == CUDA_SUCCESS)
        result = check_pair(can, device, peer);
    if (result == CUDA_SUCCESS)
        *can = device != peer;
    return sim_leave(result, "%d, %d", device, peer);
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute,
                                 CUdevice device, CUdevice peer)
{
    CUresult result = sim_enter("cuDeviceGetP2PAttribute");

    if (result == CUDA_SUCCESS)
        result = check_pair(value, device, peer);
    if (result == CUDA_SUCCESS && device == peer)
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
                 attribute == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    return sim_leave(result, "%d, %d, %d", (int)attribute, device, peer);
}
