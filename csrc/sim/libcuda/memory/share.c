#include "libcuda/memory/share.h"

#include "libcuda/memory/address.h"
#include "libcuda/memory/foreign.h"
#include "libcuda/session/config.h"
#include "libcuda/session/visible_devices.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// What cudaIpcMemHandle_t holds.
typedef struct address {
    uint64_t magic;
    uint64_t inode, label;
    int32_t process, file;
} address_t;

static const uint64_t MAGIC = 0x6f6f6d706869706cull;

// ---- exporting

static bool write_label(sim_handle_t *handle)
{
    const sim_label_t label = {
        .offset = handle->bytes_at.offset,
        .bytes = handle->bytes,
        .handle = sim_handle_value(handle),
        .device = sim_visible_device(handle->prop.location.id),
        .is_real = sim_memory_is_real(),
    };

    if (handle->label == 0)
        handle->label = sim_label_add(&label);
    return handle->label != 0;
}

// What cannot be exported: host memory, and what is another process's.
static CUresult prepare(sim_handle_t *handle)
{
    if (handle->bytes_at.file >= 0 || sim_handle_is_on_host(handle))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (sim_bytes_file() < 0 || !write_label(handle))
        return CUDA_ERROR_OPERATING_SYSTEM;
    return CUDA_SUCCESS;
}

CUresult sim_share_export(sim_handle_t *handle, int *descriptor)
{
    CUresult result = prepare(handle);

    if (result != CUDA_SUCCESS)
        return result;
    int file = sim_foreign_reopen(getpid(), sim_bytes_file());
    if (file < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (lseek(file, (off_t)handle->label, SEEK_SET) < 0 ||
        !sim_label_lock(file, handle->label)) {
        close(file);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *descriptor = file;
    return CUDA_SUCCESS;
}

CUresult sim_share_describe(sim_handle_t *handle, char text[SIM_SHARE_TEXT])
{
    struct stat status;
    CUresult result = prepare(handle);

    if (result != CUDA_SUCCESS)
        return result;
    if (fstat(sim_bytes_file(), &status) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    const address_t address = {
        .magic = MAGIC,
        .inode = status.st_ino,
        .label = handle->label,
        .process = getpid(),
        .file = sim_bytes_file(),
    };
    memset(text, 0, SIM_SHARE_TEXT);
    memcpy(text, &address, sizeof address);
    return CUDA_SUCCESS;
}

// ---- importing

static CUresult import_foreign(int descriptor, const struct stat *status,
                               uint64_t place, const sim_label_t *label,
                               sim_handle_t **handle)
{
    int device = sim_visible_device_find(label->device);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (label->is_real != sim_memory_is_real())
        return CUDA_ERROR_INVALID_VALUE;

    int file = sim_foreign_take(descriptor, status);
    if (file < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    const sim_bytes_t bytes_at = {.file = file, .offset = label->offset};
    *handle = sim_handle_find_imported(&bytes_at, place);
    if (*handle != NULL) {
        sim_foreign_give(file);
        (*handle)->reference_count++;
        return CUDA_SUCCESS;
    }
    if (!sim_label_lock(file, place)) {
        sim_foreign_give(file);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *handle = sim_handle_adopt(device, label->bytes, &bytes_at, place);
    if (*handle != NULL)
        return CUDA_SUCCESS;
    sim_label_unlock(file, place);
    sim_foreign_give(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult import_at(int descriptor, uint64_t place, sim_handle_t **handle)
{
    struct stat status, own;
    sim_label_t label;

    if (fstat(descriptor, &status) != 0 || !sim_label_read(descriptor, place, &label))
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_bytes_file() < 0 || fstat(sim_bytes_file(), &own) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (own.st_dev != status.st_dev || own.st_ino != status.st_ino)
        return import_foreign(descriptor, &status, place, &label, handle);
    *handle = sim_handle_reference(label.handle);
    return *handle != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_share_import(int descriptor, sim_handle_t **handle)
{
    off_t place = lseek(descriptor, 0, SEEK_CUR);

    return place < 0 ? CUDA_ERROR_INVALID_VALUE
                     : import_at(descriptor, (uint64_t)place, handle);
}

CUresult sim_share_open(const char text[SIM_SHARE_TEXT], sim_handle_t **handle)
{
    struct stat status;
    address_t address;

    memcpy(&address, text, sizeof address);
    if (address.magic != MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (address.process == getpid())
        return CUDA_ERROR_INVALID_CONTEXT; // as the real one says it
    int file = sim_foreign_reopen(address.process, address.file);
    if (file < 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (fstat(file, &status) == 0 && status.st_ino == address.inode)
        result = import_at(file, address.label, handle);
    close(file);
    return result;
}
