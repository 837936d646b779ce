/* driver.c - the driver table over libcuda, NVIDIA's or the simulated, and what devices
 * there are. Their pages are in cuda_pages.c, what streams do in cuda_work.c.
 */
#include "driver/driver.h"

#include "driver/cuda.h"
#include "driver/cuda_pages.h"
#include "driver/cuda_work.h"

static oomph_status_t open_device(int device, oomph_device_info_t *info)
{
    CUdevice handle;

    oomph_status_t status =
        oomph_cuda_check(oomph_cu.cuDeviceGet(&handle, device), "cuDeviceGet");
    if (status != OOMPH_OK)
        return status;
    if (oomph_cuda_attribute(
            handle, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0) == 0)
        return oomph_fail(
            OOMPH_ERR_DRIVER,
            "device %d has no virtual memory management (some virtual GPUs "
            "have it switched off): oomph needs it and cannot run on this GPU",
            device);
    status = oomph_cuda_check(oomph_cu.cuDeviceTotalMem(&info->total_bytes, handle),
                              "cuDeviceTotalMem");
    if (status == OOMPH_OK)
        status = oomph_cuda_retain(device, handle);
    if (status != OOMPH_OK)
        return status;
    info->page_bytes = oomph_cuda_page_bytes(device, handle);
    if (info->page_bytes == 0)
        return oomph_fail(OOMPH_ERR_DRIVER, "device %d reports no page size", device);
    return OOMPH_OK;
}

static oomph_status_t memory_info(int device, size_t *free_bytes, size_t *total_bytes)
{
    oomph_cuda_scope_t scope;

    if (oomph_cuda_enter(device, &scope))
        scope.status = oomph_cuda_check(oomph_cu.cuMemGetInfo(free_bytes, total_bytes),
                                        "cuMemGetInfo");
    return oomph_cuda_leave(&scope);
}

// Not by CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES: a GH200 has
// that, and memory of its own besides.
static oomph_status_t shares_memory(int device, bool *shares)
{
    CUdevice handle;

    oomph_status_t status =
        oomph_cuda_check(oomph_cu.cuDeviceGet(&handle, device), "cuDeviceGet");
    if (status == OOMPH_OK)
        *shares = oomph_cuda_attribute(handle, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0) != 0;
    return status;
}

const oomph_driver_t *oomph_driver_cuda(void)
{
    static const oomph_driver_t driver = {
        .find = oomph_cuda_find,
        .records_all = oomph_cuda_records_all,
        .start = oomph_cuda_start,
        .open = open_device,
        .memory_info = memory_info,
        .shares_memory = shares_memory,
        .reserve = oomph_cuda_reserve,
        .unreserve = oomph_cuda_unreserve,
        .create = oomph_cuda_create,
        .release = oomph_cuda_release,
        .map = oomph_cuda_map,
        .unmap = oomph_cuda_unmap,
        .set_access = oomph_cuda_set_access,
        .export_page = oomph_cuda_export_page,
        .import_page = oomph_cuda_import_page,
        .pinned_alloc = oomph_cuda_pinned_alloc,
        .pinned_free = oomph_cuda_pinned_free,
        .stream_id = oomph_cuda_stream_id,
        .stream_captures = oomph_cuda_stream_captures,
        .stream_create = oomph_cuda_stream_create,
        .event_create = oomph_cuda_event_create,
        .event_destroy = oomph_cuda_event_destroy,
        .event_record = oomph_cuda_event_record,
        .event_record_all = oomph_cuda_event_record_all,
        .stream_wait = oomph_cuda_stream_wait,
        .event_passed = oomph_cuda_event_passed,
        .event_wait = oomph_cuda_event_wait,
        .drain = oomph_cuda_drain,
        .copy = oomph_cuda_copy,
        .fill = oomph_cuda_fill,
        .copy_all = oomph_cuda_copy_all,
        .time_copy = oomph_cuda_time_copy,
        .trim = oomph_cuda_trim,
    };

    return &driver;
}
