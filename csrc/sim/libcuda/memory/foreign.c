#include "libcuda/memory/foreign.h"

#include "libcuda/memory/address.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// The file of another process, open as long as anything of it is in use.
typedef struct foreign {
    struct foreign *next;
    dev_t device;
    ino_t inode;
    int file;
    size_t user_count;
} foreign_t;

static foreign_t *foreigners;

// What a label says, as it lies in the file.
typedef struct stored {
    uint64_t magic;
    sim_label_t label;
} stored_t;

static const uint64_t MAGIC = 0x6f6f6d706869706cull;
static const uint64_t LABELS = 1ull << 61; // in the file, behind all bytes

static uint64_t label_count;

// ---- files

int sim_foreign_reopen(int process, int file)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, file);
    return open(path, O_RDWR | O_CLOEXEC);
}

static foreign_t *find_foreign(const struct stat *status)
{
    foreign_t *found = foreigners;

    while (found != NULL &&
           (found->device != status->st_dev || found->inode != status->st_ino))
        found = found->next;
    return found;
}

int sim_foreign_take(int descriptor, const struct stat *status)
{
    foreign_t *found = find_foreign(status);

    if (found == NULL) {
        found = calloc(1, sizeof *found);
        if (found == NULL)
            return -1;
        found->device = status->st_dev;
        found->inode = status->st_ino;
        found->file = sim_foreign_reopen(getpid(), descriptor);
        if (found->file < 0) {
            free(found);
            return -1;
        }
        found->next = foreigners;
        foreigners = found;
    }
    found->user_count++;
    return found->file;
}

void sim_foreign_give(int file)
{
    foreign_t **link = &foreigners;

    while ((*link)->file != file)
        link = &(*link)->next;
    foreign_t *foreign = *link;
    if (--foreign->user_count > 0)
        return;
    *link = foreign->next;
    close(foreign->file);
    free(foreign);
}

// ---- labels

uint64_t sim_label_add(const sim_label_t *label)
{
    const stored_t stored = {.magic = MAGIC, .label = *label};
    uint64_t place = LABELS + label_count * sizeof stored;

    if (pwrite(sim_bytes_file(), &stored, sizeof stored, (off_t)place) != sizeof stored)
        return 0;
    label_count++;
    return place;
}

bool sim_label_read(int file, uint64_t place, sim_label_t *label)
{
    stored_t stored;

    if (place < LABELS ||
        pread(file, &stored, sizeof stored, (off_t)place) != sizeof stored ||
        stored.magic != MAGIC)
        return false;
    *label = stored.label;
    return true;
}

static struct flock lock_of(uint64_t place, short type)
{
    return (struct flock){
        .l_type = type,
        .l_whence = SEEK_SET,
        .l_start = (off_t)place,
        .l_len = sizeof(stored_t),
    };
}

bool sim_label_lock(int file, uint64_t place)
{
    struct flock lock = lock_of(place, F_RDLCK);

    return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

void sim_label_unlock(int file, uint64_t place)
{
    struct flock lock = lock_of(place, F_UNLCK);

    fcntl(file, F_OFD_SETLK, &lock);
}

bool sim_label_is_used(uint64_t place)
{
    struct flock lock = lock_of(place, F_WRLCK);

    return fcntl(sim_bytes_file(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void sim_foreign_reset(void)
{
    while (foreigners != NULL) {
        foreigners->user_count = 1;
        sim_foreign_give(foreigners->file);
    }
    label_count = 0;
}
