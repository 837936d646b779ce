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

void sim_shadow_forget(uint64_t addr, uint64_t bytes)
{
    for (size_t i = 0; i < write_count;) {
        if (sim_overlap(writes[i].addr, writes[i].bytes, addr, bytes))
            writes[i] = writes[--write_count];
        else
            i++;
    }
}

void sim_shadow_write(uint64_t addr, const void *source, uint64_t bytes)
{
    sim_shadow_forget(addr, bytes);
    if (bytes > SIM_SHADOW_BYTES_MAX)
        return;
    write_t *write =
        write_count < WRITES ? &writes[write_count++] : &writes[next_victim++ % WRITES];
    write->addr = addr;
    write->bytes = bytes;
    memcpy(write->data, source, bytes);
}

bool sim_shadow_read(uint64_t addr, void *out, uint64_t bytes)
{
    for (size_t i = 0; i < write_count; i++) {
        const write_t *write = &writes[i];
        if (write->addr <= addr && addr + bytes <= write->addr + write->bytes) {
            memcpy(out, write->data + (addr - write->addr), bytes);
            return true;
        }
    }
    return false;
}
