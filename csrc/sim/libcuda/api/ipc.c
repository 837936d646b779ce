/* ipc.c - sharing with other processes: physical memory by file descriptor, whole
 * allocations and events by plain bytes.
 */
#include "libcuda/engine/wait.h"
#include "libcuda/execution/call.h"
#include "libcuda/execution/event.h"
#include "libcuda/memory/allocation.h"
#include "libcuda/memory/handle.h"
#include "libcuda/memory/share.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/context.h"
#include "libcuda/objects/mark.h"
#include "libcuda/session/report.h"

_Static_assert(SIM_SHARE_TEXT == sizeof(CUipcMemHandle) &&
                   SIM_MARK_TEXT == sizeof(CUipcEventHandle),
               "as much as a handle holds");

// ---- physical memory

static CUresult export_handle(void *shareable, CUmemGenericAllocationHandle value,
                              CUmemAllocationHandleType type, unsigned long long flags)
{
    const CUmemAllocationHandleType known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    sim_handle_t *handle = sim_handle_find(value);

    if (shareable == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle == NULL)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "handle %#llx does not exist or was released", value);
    if (type != known) {
        sim_unsupported("cuMemExportToShareableHandle");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!(handle->prop.requestedHandleTypes & known))
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "handle %#llx was made without being meant for export",
                          value);
    return sim_share_export(handle, shareable);
}

CUresult cuMemExportToShareableHandle(void *shareable,
                                      CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    return SIM_CALL(export_handle(shareable, handle, type, flags), "%#llx, %d, %llu",
                    handle, (int)type, flags);
}

static CUresult import_handle(CUmemGenericAllocationHandle *value, void *shareable,
                              CUmemAllocationHandleType type)
{
    sim_handle_t *handle;

    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        sim_unsupported("cuMemImportFromShareableHandle");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult result = sim_share_import((int)(intptr_t)shareable, &handle);
    if (result == CUDA_SUCCESS)
        *value = sim_handle_value(handle);
    return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                        void *shareable, CUmemAllocationHandleType type)
{
    return SIM_CALL(import_handle(handle, shareable, type), "%p, %d", shareable,
                    (int)type);
}

// ---- allocations

// The allocation of this process that holds `addr`.
static CUresult find_own(CUdeviceptr addr, sim_handle_t **handle)
{
    const sim_reservation_t *reservation = sim_space_find(addr);

    if (reservation == NULL || reservation->owner == NULL || reservation->is_pooled ||
        reservation->open_count > 0)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = reservation->slots[0]->handle;
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *ipc, CUdeviceptr addr)
{
    sim_handle_t *handle;
    CUresult result = sim_enter_checked(__func__, ipc != NULL);

    if (result == CUDA_SUCCESS)
        result = find_own(addr, &handle);
    if (result == CUDA_SUCCESS)
        result = sim_share_describe(handle, ipc->reserved);
    return sim_leave(result, "%#llx", addr);
}

static CUresult open_allocation(CUdeviceptr *addr, const CUipcMemHandle *ipc,
                                unsigned flags)
{
    sim_reservation_t *reservation;
    sim_handle_t *handle;
    CUcontext context;

    if (addr == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_context_usable(&context);
    if (result == CUDA_SUCCESS)
        result = sim_share_open(ipc->reserved, &handle);
    if (result != CUDA_SUCCESS)
        return result;
    for (size_t i = 0; (reservation = sim_space_at(i)) != NULL; i++) {
        if (reservation->open_count > 0 && reservation->slots[0]->handle == handle)
            break;
    }
    if (reservation == NULL)
        result = sim_memory_place(context, handle, &reservation);
    sim_handle_unreference(handle); // from here on the mapping alone keeps it
    if (result != CUDA_SUCCESS)
        return result;
    reservation->open_count++;
    *addr = reservation->range.base;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *addr, CUipcMemHandle ipc, unsigned flags)
{
    return SIM_CALL(open_allocation(addr, &ipc, flags), "%#llx, %u",
                    result == CUDA_SUCCESS ? *addr : 0, flags);
}

static sim_reservation_t *find_open(CUdeviceptr addr)
{
    sim_reservation_t *reservation = sim_space_find(addr);

    return reservation != NULL && reservation->range.base == addr &&
                   reservation->open_count > 0
               ? reservation
               : NULL;
}

static CUresult close_allocation(CUdeviceptr addr)
{
    sim_reservation_t *reservation = find_open(addr);

    if (reservation == NULL)
        return sim_misuse(CUDA_ERROR_INVALID_VALUE,
                          "%#llx was not opened, or closed before", addr);
    if (reservation->open_count > 1) {
        reservation->open_count--;
        return CUDA_SUCCESS;
    }
    sim_queue_wait_for_context(reservation->owner);
    if (find_open(addr) != reservation) // the lock was given away meanwhile
        return CUDA_ERROR_INVALID_VALUE;
    sim_memory_unplace(reservation);
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr addr)
{
    return SIM_CALL(close_allocation(addr), "%#llx", addr);
}

// ---- events

static CUresult describe_event(CUipcEventHandle *ipc, CUevent event)
{
    sim_mark_t mark;
    CUresult result = sim_event_share(event, &mark);

    if (result == CUDA_SUCCESS)
        sim_mark_describe(&mark, ipc->reserved);
    return result;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *ipc, CUevent event)
{
    return SIM_CALL(ipc != NULL ? describe_event(ipc, event) : CUDA_ERROR_INVALID_VALUE,
                    "%p", (void *)event);
}

static CUresult open_event(CUevent *event, const CUipcEventHandle *ipc)
{
    sim_mark_t mark;

    if (event == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_mark_open(ipc->reserved, &mark);
    return result == CUDA_SUCCESS ? sim_event_open(event, &mark) : result;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle ipc)
{
    return SIM_CALL(open_event(event, &ipc), "%p",
                    result == CUDA_SUCCESS ? (void *)*event : NULL);
}
