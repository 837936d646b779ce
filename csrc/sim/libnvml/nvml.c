/* nvml.c - a stand-in for NVIDIA's management library, as far as PyTorch asks it: how
 * many devices there are, who they are, and that they have neither NVLink nor a fabric.
 */
#include "runtime.h"

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// From nvml.h.
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    UUID_TEXT_BYTES = 41, // "GPU-", 32 digits, 4 hyphens, and the end
};

// What all versions of nvmlGpuFabricInfo begin with.
typedef struct fabric_info {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
} fabric_info_t;

#pragma GCC visibility push(default)

// A handle is the device's index plus one, so that none is null.
static void *handle_of(int device)
{
    return (void *)(intptr_t)(device + 1); // NOLINT(performance-no-int-to-ptr)
}

static int device_of(const void *handle)
{
    return (int)(intptr_t)handle - 1;
}

static int give_handle(int device, void **handle)
{
    if (handle == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (device < 0 || device >= oomph_sim_device_total())
        return NVML_ERROR_NOT_FOUND;
    *handle = handle_of(device);
    return NVML_SUCCESS;
}

int nvmlInit_v2(void)
{
    return NVML_SUCCESS;
}

int nvmlInit(void)
{
    return NVML_SUCCESS;
}

int nvmlShutdown(void)
{
    return NVML_SUCCESS;
}

const char *nvmlErrorString(int status)
{
    return status == NVML_SUCCESS ? "Success" : "Not supported by the simulated GPU";
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (version == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return cuDriverGetVersion(version) == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned)oomph_sim_device_total();
    return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    return give_handle((int)index, handle);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle)
{
    return give_handle(oomph_sim_device_of_bus_id(id), handle);
}

int nvmlDeviceGetUUID(const void *handle, char *text, unsigned bytes)
{
    unsigned char uuid[16];
    int length = 0;

    if (handle == NULL || text == NULL || bytes < UUID_TEXT_BYTES)
        return NVML_ERROR_INVALID_ARGUMENT;
    oomph_sim_uuid(device_of(handle), uuid);
    length += snprintf(text, bytes, "GPU-");
    for (int i = 0; i < 16; i++)
        length += snprintf(text + length, bytes - (unsigned)length, "%s%02x",
                           i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    return NVML_SUCCESS;
}

// Processes of the card's other users: there are none.
int nvmlDeviceGetComputeRunningProcesses(const void *handle, unsigned *count,
                                         void *list)
{
    (void)list;
    if (handle == NULL || count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(const void *handle, void *info)
{
    fabric_info_t *const found = info;

    if (handle == NULL || info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(found->cluster, 0, sizeof found->cluster);
    found->status = NVML_ERROR_NOT_SUPPORTED;
    found->clique = 0;
    found->state = 0; // not supported
    return NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(const void *handle, unsigned link, int *type)
{
    (void)handle, (void)link, (void)type;
    return NVML_ERROR_NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(const void *handle, unsigned link, void *info)
{
    (void)handle, (void)link, (void)info;
    return NVML_ERROR_NOT_SUPPORTED;
}

#pragma GCC visibility pop
