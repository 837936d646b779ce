#include "libcuda/memory/address.h"

#include "libcuda/session/config.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BINS = 1024 };

static const uint64_t WINDOW_BYTES = 64ull << 30;
static const uint64_t FILE_BYTES = 1ull << 62; // sparse

// Free addresses of one size, to be used again.
typedef struct bin {
    uint64_t bytes; // 0: not in use
    uint64_t *addresses;
    size_t count, capacity;
} bin_t;

static bin_t bins[BINS];
static uint64_t window, window_end; // the part of the current window that is free
static int file = -1;
static uint64_t file_used;

static uint64_t round_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

static uint64_t map_nothing(uint64_t bytes)
{
    void *place = mmap(NULL, bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return place == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)place;
}

// The bin of a size, or the free one where it would be; NULL if all are taken.
static bin_t *find_bin(uint64_t bytes)
{
    size_t place = bytes / SIM_PAGE % BINS;

    for (size_t i = 0; i < BINS; i++) {
        bin_t *bin = &bins[(place + i) % BINS];
        if (bin->bytes == bytes || bin->bytes == 0)
            return bin;
    }
    return NULL;
}

static uint64_t take_recycled(uint64_t bytes, uint64_t alignment)
{
    bin_t *bin = find_bin(bytes);

    if (bin == NULL || bin->bytes != bytes || bin->count == 0)
        return 0;
    uint64_t addr = bin->addresses[bin->count - 1];
    if (addr % alignment != 0)
        return 0;
    bin->count--;
    return addr;
}

static uint64_t take_own_window(uint64_t bytes, uint64_t alignment)
{
    uint64_t place = map_nothing(bytes + alignment);

    return place == 0 ? 0 : round_up(place, alignment);
}

static uint64_t take_from_window(uint64_t bytes, uint64_t alignment)
{
    uint64_t addr = round_up(window, alignment);

    if (window == 0 || addr + bytes > window_end) {
        uint64_t size = WINDOW_BYTES;
        window = map_nothing(size);
        // Under a debugger or a limit there may be room only for less, and the process
        // needs some of it.
        while (window == 0 && size / 2 >= bytes + alignment)
            window = map_nothing(size /= 2);
        if (window == 0)
            return 0;
        if (size < WINDOW_BYTES && size / 2 >= bytes + alignment &&
            munmap(sim_pointer(window + size / 2), size / 2) == 0)
            size /= 2;
        window_end = window + size;
        addr = round_up(window, alignment);
    }
    window = addr + bytes;
    return addr;
}

uint64_t sim_address_take(uint64_t bytes, uint64_t alignment)
{
    if (alignment < SIM_PAGE)
        alignment = SIM_PAGE;
    uint64_t addr = take_recycled(bytes, alignment);
    if (addr != 0)
        return addr;
    if (bytes + alignment > WINDOW_BYTES / 8)
        return take_own_window(bytes, alignment);
    return take_from_window(bytes, alignment);
}

// What cannot be remembered is lost: address space is plentiful.
void sim_address_give(uint64_t addr, uint64_t bytes)
{
    bin_t *bin = find_bin(bytes);

    if (bin == NULL)
        return;
    if (bin->count == bin->capacity) {
        size_t capacity = bin->capacity ? bin->capacity * 2 : 8;
        uint64_t *addresses = realloc(bin->addresses, capacity * sizeof *addresses);
        if (addresses == NULL)
            return;
        bin->addresses = addresses;
        bin->capacity = capacity;
    }
    bin->bytes = bytes;
    bin->addresses[bin->count++] = addr;
}

static bool open_file(void)
{
    if (file >= 0)
        return true;
    file = memfd_create("oomph simulated memory", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)FILE_BYTES) == 0)
        return true;
    sim_address_reset();
    return false;
}

int sim_bytes_file(void)
{
    return open_file() ? file : -1;
}

bool sim_bytes_take(uint64_t bytes, sim_bytes_t *taken)
{
    if (sim_memory_is_real() && !open_file())
        return false;
    *taken = (sim_bytes_t){.file = -1, .offset = file_used};
    file_used += bytes;
    return true;
}

void sim_bytes_give(const sim_bytes_t *taken, uint64_t bytes)
{
    if (sim_memory_is_real())
        fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)taken->offset, (off_t)bytes);
}

// How far it is to the next data, or to the next hole, of the file.
static uint64_t distance(const sim_bytes_t *at, uint64_t bytes, int to)
{
    off_t end = lseek(at->file >= 0 ? at->file : file, (off_t)at->offset, to);
    uint64_t found = (uint64_t)end - at->offset;

    return end < 0 || found > bytes ? bytes : found;
}

uint64_t sim_bytes_unwritten(const sim_bytes_t *at, uint64_t bytes)
{
    return distance(at, bytes, SEEK_DATA);
}

uint64_t sim_bytes_written(const sim_bytes_t *at, uint64_t bytes)
{
    return distance(at, bytes, SEEK_HOLE);
}

bool sim_bytes_map(uint64_t addr, uint64_t bytes, const sim_bytes_t *shown)
{
    return !sim_memory_is_real() ||
           mmap(sim_pointer(addr), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                shown->file >= 0 ? shown->file : file,
                (off_t)shown->offset) != MAP_FAILED;
}

bool sim_bytes_allow(uint64_t addr, uint64_t bytes, bool read, bool write)
{
    int protection = (read ? PROT_READ : 0) | (write ? PROT_READ | PROT_WRITE : 0);

    return !sim_memory_is_real() || mprotect(sim_pointer(addr), bytes, protection) == 0;
}

bool sim_bytes_unmap(uint64_t addr, uint64_t bytes)
{
    return !sim_memory_is_real() ||
           mmap(sim_pointer(addr), bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) != MAP_FAILED;
}

void sim_address_reset(void)
{
    if (file >= 0)
        close(file);
    file = -1;
    file_used = 0;
}
