#include "libcuda/memory/label.h"

#include "libcuda/memory/address.h"

#include <fcntl.h>
#include <unistd.h>

static const uint64_t MAGIC = 0x6f6f6d706869706cull;
static const uint64_t LABELS = 1ull << 61; // in the file, behind all bytes

static uint64_t label_count;

// What a label says, as it lies in the file.
typedef struct stored {
    uint64_t magic;
    sim_label_t label;
} stored_t;

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

void sim_label_reset(void)
{
    label_count = 0;
}
