#include "libcuda/memory/shadow.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { WRITES = 1024 };

static const uint64_t KEPT_BYTES = 256ull << 20; // of all writes

typedef struct write {
    uint64_t addr, bytes;
    uint64_t room;     // bytes of `data`
    uint64_t last_use; // the later, the larger
    char *data;        // NULL: zeros
} write_t;

static write_t writes[WRITES]; // by address; none overlaps another
static size_t write_count;
static uint64_t kept_bytes, uses;

static void drop(size_t place)
{
    kept_bytes -= writes[place].room;
    free(writes[place].data);
    write_count--;
    memmove(&writes[place], &writes[place + 1],
            (write_count - place) * sizeof writes[0]);
}

static void drop_idle(void)
{
    size_t idle = 0;

    for (size_t i = 1; i < write_count; i++)
        if (writes[i].last_use < writes[idle].last_use)
            idle = i;
    drop(idle);
}

void sim_shadow_forget_all(void)
{
    while (write_count > 0)
        drop(write_count - 1);
}

static uint64_t end_of(const write_t *write)
{
    return write->addr + write->bytes;
}

// The place of the first write that ends behind an address.
static size_t first_behind(uint64_t addr)
{
    size_t low = 0, high = write_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (end_of(&writes[middle]) <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// That of the first write that may have some of a range.
static size_t first_in(uint64_t addr, uint64_t bytes)
{
    return bytes > 0 ? first_behind(addr) : write_count;
}

static write_t *find(uint64_t addr)
{
    const size_t place = first_behind(addr);

    return place < write_count && writes[place].addr <= addr ? &writes[place] : NULL;
}

// A write that is in no place yet, of zeros if `source` is NULL. It has no bytes if the
// host has no memory.
static write_t made(uint64_t addr, const void *source, uint64_t bytes)
{
    if (source == NULL)
        return (write_t){addr, bytes, 0, 0, NULL};
    write_t write = {addr, bytes, bytes, 0, malloc(bytes)};

    if (write.data != NULL)
        memcpy(write.data, source, bytes);
    else
        write.bytes = 0;
    return write;
}

static void keep(write_t write)
{
    if (write.bytes == 0)
        return;
    while (write_count == WRITES ||
           (write_count > 0 && kept_bytes + write.room > KEPT_BYTES))
        drop_idle();
    const size_t place = first_behind(write.addr);
    memmove(&writes[place + 1], &writes[place],
            (write_count - place) * sizeof writes[0]);
    write.last_use = ++uses;
    kept_bytes += write.room;
    writes[place] = write;
    write_count++;
}

void sim_shadow_forget(uint64_t addr, uint64_t bytes)
{
    const uint64_t end = addr + bytes;

    for (size_t i = first_in(addr, bytes); i < write_count && writes[i].addr < end;) {
        write_t *write = &writes[i];
        const uint64_t write_end = end_of(write);
        const uint64_t tail = write_end > end ? write_end - end : 0;
        char *from = write->data != NULL ? write->data + (write->bytes - tail) : NULL;
        if (write->addr < addr) {
            write->bytes = addr - write->addr;
            i++;
            if (tail > 0) { // the range lies within this write: there is no other
                keep(made(end, from, tail));
                return;
            }
        } else if (tail > 0) {
            if (from != NULL)
                memmove(write->data, from, tail);
            write->addr = end;
            write->bytes = tail;
            i++;
        } else {
            drop(i);
        }
    }
}

void sim_shadow_write(uint64_t addr, const void *source, uint64_t bytes)
{
    write_t *around = find(addr);

    if (around != NULL && around->data != NULL && addr + bytes <= end_of(around)) {
        memcpy(around->data + (addr - around->addr), source, bytes);
        return;
    }
    sim_shadow_forget(addr, bytes);
    if (bytes <= SIM_SHADOW_BYTES_MAX)
        keep(made(addr, source, bytes));
}

void sim_shadow_zero(uint64_t addr, uint64_t bytes)
{
    sim_shadow_forget(addr, bytes);
    keep(made(addr, NULL, bytes));
}

// The part of a write that lies in a range, as some of it does.
typedef struct part {
    uint64_t addr, bytes;
    const char *data; // NULL: zeros
} part_t;

static part_t part_of(const write_t *write, uint64_t addr, uint64_t bytes)
{
    const uint64_t begin = write->addr > addr ? write->addr : addr;
    const uint64_t end = end_of(write) < addr + bytes ? end_of(write) : addr + bytes;

    return (part_t){begin, end - begin,
                    write->data != NULL ? write->data + (begin - write->addr) : NULL};
}

uint64_t sim_shadow_read(uint64_t addr, void *out, uint64_t bytes)
{
    uint64_t known = 0;

    memset(out, 0, bytes);
    for (size_t i = first_in(addr, bytes);
         i < write_count && writes[i].addr < addr + bytes; i++) {
        const part_t part = part_of(&writes[i], addr, bytes);
        if (part.data != NULL)
            memcpy((char *)out + (part.addr - addr), part.data, part.bytes);
        known += part.bytes;
        writes[i].last_use = ++uses;
    }
    return known;
}

// The bytes from a tensor's first item to its last.
static uint64_t span_of(const oomph_sim_view_t *view)
{
    int64_t last = 0;

    for (size_t i = 0; i < view->dimensions; i++)
        last += (view->sizes[i] - 1) * view->strides[i];
    return ((uint64_t)last + 1) * view->item_bytes;
}

static char *gather(const oomph_sim_view_t *view, size_t dimension, const char *from,
                    char *to)
{
    const int64_t count = view->sizes[dimension];
    const bool is_last = dimension + 1 == view->dimensions;

    if (is_last && view->strides[dimension] == 1) {
        memcpy(to, from, (uint64_t)count * view->item_bytes);
        return to + (uint64_t)count * view->item_bytes;
    }
    const int64_t step = view->strides[dimension] * (int64_t)view->item_bytes;
    for (int64_t i = 0; i < count; i++, from += step)
        if (is_last) {
            memcpy(to, from, view->item_bytes);
            to += view->item_bytes;
        } else {
            to = gather(view, dimension + 1, from, to);
        }
    return to;
}

bool sim_shadow_read_view(const oomph_sim_view_t *view, void *out)
{
    const uint64_t bytes = span_of(view);
    write_t *around = find(view->addr);

    if (around == NULL)
        return false;
    if (around->data != NULL && view->addr + bytes <= end_of(around)) {
        gather(view, 0, around->data + (view->addr - around->addr), out);
        around->last_use = ++uses;
        return true;
    }
    char *span = malloc(bytes); // it may lie in several writes
    const bool is_known =
        span != NULL && sim_shadow_read(view->addr, span, bytes) == bytes;
    if (is_known)
        gather(view, 0, span, out);
    free(span);
    return is_known;
}

void sim_shadow_copy(uint64_t dst, uint64_t src, uint64_t bytes)
{
    write_t copies[WRITES]; // to keep one may cost another its place
    size_t count = 0;

    sim_shadow_forget(dst, bytes);
    for (size_t i = first_in(src, bytes);
         i < write_count && writes[i].addr < src + bytes; i++) {
        const part_t part = part_of(&writes[i], src, bytes);
        copies[count++] = made(dst + (part.addr - src), part.data, part.bytes);
    }
    for (size_t i = 0; i < count; i++)
        keep(copies[i]);
}
