#include "libcuda/memory/shadow.h"

#include "libcuda/base/ranges.h"

#include <stddef.h>
#include <string.h>

enum { WRITES = 64 };

typedef struct write {
    uint64_t addr, bytes;
    char data[SIM_SHADOW_BYTES_MAX];
} write_t;

static write_t writes[WRITES]; // those in use come first
static size_t write_count;
static size_t next_victim;

void sim_shadow_forget_all(void)
{
    write_count = 0;
}

static uint64_t end_of(const write_t *write)
{
    return write->addr + write->bytes;
}

// A place for a new write, which may be that of another one.
static write_t *place_of_new(void)
{
    return write_count < WRITES ? &writes[write_count++]
                                : &writes[next_victim++ % WRITES];
}

static write_t *find(uint64_t addr)
{
    for (size_t i = 0; i < write_count; i++)
        if (writes[i].addr <= addr && addr < end_of(&writes[i]))
            return &writes[i];
    return NULL;
}

static void add(uint64_t addr, const void *source, uint64_t bytes)
{
    write_t *write = place_of_new();

    write->addr = addr;
    write->bytes = bytes;
    memmove(write->data, source, bytes);
}

void sim_shadow_forget(uint64_t addr, uint64_t bytes)
{
    const uint64_t end = addr + bytes;

    for (size_t i = 0; i < write_count;) {
        write_t *write = &writes[i];
        if (!sim_overlap(write->addr, write->bytes, addr, bytes)) {
            i++;
            continue;
        }
        if (end_of(write) > end)
            add(end, write->data + (end - write->addr), end_of(write) - end);
        if (write->addr < addr)
            write->bytes = addr - write->addr;
        else
            *write = writes[--write_count];
    }
}

void sim_shadow_write(uint64_t addr, const void *source, uint64_t bytes)
{
    write_t *around = find(addr);

    if (around != NULL && addr + bytes <= end_of(around)) {
        memcpy(around->data + (addr - around->addr), source, bytes);
        return;
    }
    sim_shadow_forget(addr, bytes);
    if (bytes <= SIM_SHADOW_BYTES_MAX)
        add(addr, source, bytes);
}

// The part of a write that lies in a range.
typedef struct part {
    uint64_t addr, bytes; // 0: none does
    const char *data;
} part_t;

static part_t part_of(const write_t *write, uint64_t addr, uint64_t bytes)
{
    const uint64_t begin = write->addr > addr ? write->addr : addr;
    const uint64_t end = end_of(write) < addr + bytes ? end_of(write) : addr + bytes;

    return (part_t){begin, end > begin ? end - begin : 0,
                    write->data + (begin - write->addr)};
}

uint64_t sim_shadow_read(uint64_t addr, void *out, uint64_t bytes)
{
    uint64_t known = 0;

    memset(out, 0, bytes);
    for (size_t i = 0; i < write_count; i++) {
        const part_t part = part_of(&writes[i], addr, bytes);
        if (part.bytes > 0)
            memcpy((char *)out + (part.addr - addr), part.data, part.bytes);
        known += part.bytes;
    }
    return known;
}

void sim_shadow_copy(uint64_t dst, uint64_t src, uint64_t bytes)
{
    sim_shadow_forget(dst, bytes);
    const size_t count = write_count;
    for (size_t i = 0; i < count; i++) {
        const part_t part = part_of(&writes[i], src, bytes);
        if (part.bytes > 0)
            add(dst + (part.addr - src), part.data, part.bytes);
    }
}
