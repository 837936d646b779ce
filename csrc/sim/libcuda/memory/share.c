#include "libcuda/memory/share.h"

#include "libcuda/memory/address.h"
#include "libcuda/memory/device.h"
#include "libcuda/session/config.h"
#include "libcuda/session/visible.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// What a label says. It lies at `sim_handle_t.label` in the file.
typedef struct label {
    uint64_t magic;
    uint64_t offset, bytes; // of the memory, in the file
    uint64_t handle;        // its value in the process that exported it
    int32_t device;         // in the machine (visible.h)
    int32_t is_real;        // whether there are bytes
} label_t;

// What cudaIpcMemHandle_t holds.
typedef struct address {
    uint64_t magic;
    uint64_t inode, label;
    int32_t process, file;
} address_t;

// The file of another process, open as long as anything of it is in use.
typedef struct foreign {
    struct foreign *next;
    dev_t device;
    ino_t inode;
    int file;
    size_t user_count;
} foreign_t;

static const uint64_t MAGIC = 0x6f6f6d706869706cull;
static const uint64_t LABELS = 1ull << 61; // in the file, behind all bytes

static uint64_t label_count;
static foreign_t *foreigners;

static bool lock(int file, uint64_t label, short type)
{
    struct flock wanted = {
        .l_type = type,
        .l_whence = SEEK_SET,
        .l_start = (off_t)label,
        .l_len = sizeof(label_t),
    };

    return fcntl(file, F_OFD_SETLK, &wanted) == 0;
}

int sim_share_reopen(int process, int file)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, file);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* ---- Exporting */

static bool write_label(sim_handle_t *handle)
{
    const label_t label = {
        .magic = MAGIC,
        .offset = handle->bytes_at.offset,
        .bytes = handle->bytes,
        .handle = sim_handle_value(handle),
        .device = sim_visible_at(handle->prop.location.id),
        .is_real = sim_memory_is_real(),
    };
    uint64_t place = LABELS + label_count * sizeof label;

    if (handle->label != 0)
        return true;
    if (pwrite(sim_bytes_file(), &label, sizeof label, (off_t)place) != sizeof label)
        return false;
    label_count++;
    handle->label = place;
    return true;
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
    int file = sim_share_reopen(getpid(), sim_bytes_file());
    if (file < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (lseek(file, (off_t)handle->label, SEEK_SET) < 0 ||
        !lock(file, handle->label, F_RDLCK)) {
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

bool sim_share_is_used(const sim_handle_t *handle)
{
    struct flock found = {
        .l_type = F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = (off_t)handle->label,
        .l_len = sizeof(label_t),
    };

    return handle->label != 0 && handle->bytes_at.file < 0 &&
           fcntl(sim_bytes_file(), F_OFD_GETLK, &found) == 0 && found.l_type != F_UNLCK;
}

/* ---- Importing */

static foreign_t *find_foreign(const struct stat *status)
{
    foreign_t *found = foreigners;

    while (found != NULL &&
           (found->device != status->st_dev || found->inode != status->st_ino))
        found = found->next;
    return found;
}

// The file that `descriptor` refers to, open on its own; with one user more.
static foreign_t *take_foreign(int descriptor, const struct stat *status)
{
    foreign_t *found = find_foreign(status);

    if (found == NULL) {
        found = calloc(1, sizeof *found);
        if (found == NULL)
            return NULL;
        found->device = status->st_dev;
        found->inode = status->st_ino;
        found->file = sim_share_reopen(getpid(), descriptor);
        if (found->file < 0) {
            free(found);
            return NULL;
        }
        found->next = foreigners;
        foreigners = found;
    }
    found->user_count++;
    return found;
}

static void give_foreign(foreign_t *foreign)
{
    foreign_t **link = &foreigners;

    if (--foreign->user_count > 0)
        return;
    while (*link != foreign)
        link = &(*link)->next;
    *link = foreign->next;
    close(foreign->file);
    free(foreign);
}

static int visible_device(int device)
{
    for (int i = 0; sim_device(i) != NULL; i++)
        if (sim_visible_at(i) == device)
            return i;
    return -1;
}

static CUresult import_foreign(int descriptor, const struct stat *status,
                               uint64_t place, const label_t *label,
                               sim_handle_t **handle)
{
    int device = visible_device(label->device);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (label->is_real != sim_memory_is_real())
        return CUDA_ERROR_INVALID_VALUE;

    foreign_t *foreign = take_foreign(descriptor, status);
    if (foreign == NULL)
        return CUDA_ERROR_OPERATING_SYSTEM;
    const sim_bytes_t bytes_at = {.file = foreign->file, .offset = label->offset};
    *handle = sim_handle_find_imported(&bytes_at, place);
    if (*handle != NULL) {
        give_foreign(foreign);
        (*handle)->reference_count++;
        return CUDA_SUCCESS;
    }
    if (!lock(foreign->file, place, F_RDLCK)) {
        give_foreign(foreign);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *handle = sim_handle_adopt(device, label->bytes, &bytes_at, place);
    if (*handle != NULL)
        return CUDA_SUCCESS;
    lock(foreign->file, place, F_UNLCK);
    give_foreign(foreign);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult import_at(int descriptor, uint64_t place, sim_handle_t **handle)
{
    struct stat status, own;
    label_t label;

    if (place < LABELS || fstat(descriptor, &status) != 0 ||
        pread(descriptor, &label, sizeof label, (off_t)place) != sizeof label ||
        label.magic != MAGIC)
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
    int file = sim_share_reopen(address.process, address.file);
    if (file < 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (fstat(file, &status) == 0 && status.st_ino == address.inode)
        result = import_at(file, address.label, handle);
    close(file);
    return result;
}

void sim_share_drop(sim_handle_t *handle)
{
    foreign_t *foreign = foreigners;

    while (foreign->file != handle->bytes_at.file)
        foreign = foreign->next;
    lock(foreign->file, handle->label, F_UNLCK);
    give_foreign(foreign);
}

void sim_share_reset(void)
{
    while (foreigners != NULL) {
        foreigners->user_count = 1;
        give_foreign(foreigners);
    }
    label_count = 0;
}
