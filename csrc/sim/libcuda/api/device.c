/* device.c - devices: how many there are, who they are, and what memory they have. */
#include "libcuda/memory/device.h"
#include "libcuda/api/call.h"
#include "libcuda/session/config.h"
#include "libcuda/session/lock.h"
#include "libcuda/session/session.h"
#include "libcuda/session/visible_devices.h"
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult cuInit(unsigned flags)
{
    CUresult result = sim_enter_uninitialised("cuInit");

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
    CUresult result = sim_enter("cuDeviceGetCount");

    if (result == CUDA_SUCCESS && count == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *count = sim_visible_device_count();
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
        oomph_sim_uuid(sim_visible_device(device), (unsigned char *)uuid->bytes);
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
    CUresult result = sim_enter("cuDeviceGetByPCIBusId");
    int found = sim_visible_device_find(oomph_sim_device_of_bus_id(id));

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
