#include "libcuda/objects/work.h"

#include "libcuda/engine/answer.h"
#include "libcuda/memory/allocation.h"
#include "libcuda/memory/device.h"
#include "libcuda/memory/known.h"
#include "libcuda/memory/space.h"
#include "libcuda/memory/traffic.h"
#include "libcuda/objects/event.h"
#include "libcuda/session/config.h"
#include "libcuda/session/report.h"
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { CELLS = 64, KERNEL_FILL = 0xAB };

// A value in device memory that is not real: waits for values need it all the same.
typedef struct cell {
    uint64_t addr; // 0: not in use
    uint64_t value;
} cell_t;

static cell_t cells[CELLS];
static size_t next_cell;

static void *as_pointer(uint64_t addr)
{
    return (void *)(uintptr_t)addr;
}

// Whether the bytes at an accessible address exist: the host's own always do.
static bool has_bytes(uint64_t addr)
{
    return sim_memory_is_real() || sim_space_find(addr) == NULL;
}

static cell_t *find_cell(uint64_t addr)
{
    for (size_t i = 0; i < CELLS; i++) {
        if (cells[i].addr == addr)
            return &cells[i];
    }
    return NULL;
}

static void write_cell(uint64_t addr, uint64_t value)
{
    cell_t *cell = find_cell(addr);

    if (cell == NULL)
        cell = &cells[next_cell++ % CELLS];
    *cell = (cell_t){.addr = addr, .value = value};
}

void sim_work_reset(void)
{
    memset(cells, 0, sizeof cells);
    next_cell = 0;
    sim_known_forget_all();
}

// ---- faults

// A kernel needs peer access to use what another device allocated; copies do not.
static bool lacks_peer_access(const struct CUctx_st *context, uint64_t addr)
{
    const sim_reservation_t *reservation = sim_space_find(addr);

    return reservation != NULL && reservation->owner != NULL &&
           reservation->owner != context &&
           !(context->peers >> reservation->owner->device & 1);
}

static void fault(const sim_work_t *work, CUcontext context, uint64_t addr, bool write,
                  const char *why)
{
    context->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    sim_misuse(CUDA_SUCCESS, "%s of device %d %s %#llx, which %s", work->call,
               context->device, write ? "writes" : "reads", (unsigned long long)addr,
               why);
}

// Whether the stream's device may touch the range; breaks the context if not.
static bool may_touch(const sim_work_t *work, CUstream stream, uint64_t addr,
                      bool write)
{
    CUcontext context = stream->context;
    uint64_t bad = addr;

    if ((work->kind == SIM_WORK_KERNEL || work->kind == SIM_WORK_COMPUTE) &&
        lacks_peer_access(context, addr)) {
        fault(work, context, addr, write, "is another device's");
        return false;
    }
    switch (sim_space_check(addr, work->bytes, context->device, write, &bad)) {
    case SIM_CHECK_NOT_MAPPED:
        fault(work, context, bad, write, "is not mapped");
        return false;
    case SIM_CHECK_NO_ACCESS:
        fault(work, context, bad, write, "the device has no access to");
        return false;
    default:
        return true;
    }
}

// ---- what work does

// Bytes that are not real arrive at the host if they are known, and else as a value
// followed by zeros.
static void read_unreal(void *place, uint64_t src, uint64_t bytes, uint64_t value)
{
    if (sim_known_read(src, place, bytes))
        return;
    memset(place, 0, bytes);
    memcpy(place, &value, bytes < sizeof value ? bytes : sizeof value);
}

static void copy_unreal(uint64_t dst, uint64_t src, uint64_t bytes)
{
    char data[SIM_KNOWN_BYTES_MAX];

    if (bytes <= sizeof data && sim_known_read(src, data, bytes))
        sim_known_write(dst, data, bytes);
    else
        sim_known_forget(dst, bytes);
}

static void copy_bytes(uint64_t dst, uint64_t src, uint64_t bytes, uint64_t value)
{
    bool to_real = has_bytes(dst), from_real = has_bytes(src);

    if (to_real && from_real)
        memmove(as_pointer(dst), as_pointer(src), bytes);
    else if (to_real)
        read_unreal(as_pointer(dst), src, bytes, value);
    else if (from_real)
        sim_known_write(dst, as_pointer(src), bytes);
    else
        copy_unreal(dst, src, bytes);
}

static void copy(const sim_work_t *work, CUstream stream)
{
    uint64_t src = work->staging ? (uint64_t)(uintptr_t)work->staging : work->src;

    if (work->checksum != 0 &&
        sim_checksum(as_pointer(work->src), work->bytes) != work->checksum)
        sim_misuse(CUDA_SUCCESS, "the source of a pending %s, at %#llx, was written to",
                   work->call, (unsigned long long)work->src);
    for (uint64_t row = 0; row < work->rows; row++) {
        uint64_t to = work->dst + row * work->dst_pitch;
        uint64_t from = src + row * work->src_pitch;
        if (!may_touch(work, stream, from, false) || !may_touch(work, stream, to, true))
            return;
        copy_bytes(to, from, work->bytes, work->value);
    }
    sim_traffic_count(work->dst, work->src, work->bytes * work->rows);
}

static void fill(uint64_t addr, uint64_t bytes, uint64_t value, unsigned value_bytes)
{
    char *place = as_pointer(addr);

    if (value_bytes == 1) {
        memset(place, (int)value, bytes);
        return;
    }
    for (uint64_t i = 0; i + value_bytes <= bytes; i += value_bytes)
        memcpy(place + i, &value, value_bytes);
}

// One value may be polled by the program: it appears at once.
static void store(uint64_t addr, uint64_t value, unsigned value_bytes)
{
    if (!has_bytes(addr))
        write_cell(addr, value);
    else if (value_bytes == 4)
        __atomic_store_n((uint32_t *)as_pointer(addr), (uint32_t)value,
                         __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)as_pointer(addr), value, __ATOMIC_RELEASE);
}

static void set(const sim_work_t *work, CUstream stream)
{
    bool is_one_value = work->bytes == work->value_bytes && work->value_bytes >= 4;

    for (uint64_t row = 0; row < work->rows; row++) {
        uint64_t to = work->dst + row * work->dst_pitch;
        if (!may_touch(work, stream, to, true))
            return;
        if (!has_bytes(to))
            sim_known_forget(to, work->bytes);
        if (is_one_value)
            store(to, work->value, work->value_bytes);
        else if (has_bytes(to))
            fill(to, work->bytes, work->value, work->value_bytes);
    }
}

static void touch(const sim_work_t *work, CUstream stream)
{
    if (work->bytes == 0 || !may_touch(work, stream, work->dst, work->writes) ||
        !has_bytes(work->dst))
        return;
    if (work->writes)
        fill(work->dst, work->bytes, KERNEL_FILL, 1);
    else
        (void)*(volatile uint64_t *)as_pointer(work->dst & ~7ull);
}

bool sim_work_may_compute(const sim_work_t *work, CUstream stream)
{
    const oomph_sim_compute_t *what = &work->compute->what;

    if (stream->context->sticky != CUDA_SUCCESS)
        return false;
    for (size_t i = 0; i < what->range_count; i++) {
        sim_work_t touched = *work;
        touched.bytes = what->ranges[i].bytes;
        if (!may_touch(&touched, stream, what->ranges[i].addr, what->ranges[i].writes))
            return false;
    }
    return true;
}

static void compute(const sim_work_t *work, CUstream stream)
{
    const oomph_sim_compute_t *what = &work->compute->what;

    if (sim_work_may_compute(work, stream) && what->run(what->argument) != 0)
        stream->context->sticky = CUDA_ERROR_ASSERT;
}

void sim_work_execute(const sim_work_t *work, CUstream stream, uint64_t now_ns)
{
    bool is_broken = stream->context->sticky != CUDA_SUCCESS;

    switch (work->kind) {
    case SIM_WORK_KERNEL:
        sim_known_forget_all();
        if (!is_broken)
            touch(work, stream);
        break;
    case SIM_WORK_COMPUTE:
        compute(work, stream);
        break;
    case SIM_WORK_COPY:
        if (work->is_dry && sim_space_find(work->dst) == NULL)
            memset(as_pointer(work->dst), 0, work->bytes);
        else if (!is_broken && !work->is_dry)
            copy(work, stream);
        break;
    case SIM_WORK_SET:
        if (!is_broken && !work->is_dry)
            set(work, stream);
        break;
    case SIM_WORK_WAIT_VALUE:
        if (!is_broken)
            may_touch(work, stream, work->dst, false);
        break;
    case SIM_WORK_RECORD:
        sim_event_complete(work->event, work->generation, now_ns);
        if (work->mark.board != NULL)
            sim_answer_end(&work->mark);
        break;
    case SIM_WORK_FREE:
        sim_memory_free_pooled(work->dst);
        break;
    case SIM_WORK_GRAPH_ALLOC:
        sim_memory_graph_use(work->dst, true);
        break;
    case SIM_WORK_GRAPH_FREE:
        sim_memory_graph_use(work->dst, false);
        break;
    case SIM_WORK_CALL:
    case SIM_WORK_SLEEP:
    case SIM_WORK_WAIT:
        break;
    }
}

// ---- waits for what happens outside of streams

static uint64_t load(uint64_t addr, unsigned value_bytes)
{
    const cell_t *cell = has_bytes(addr) ? NULL : find_cell(addr);

    if (!has_bytes(addr))
        return cell ? cell->value : 0;
    if (value_bytes == 4)
        return __atomic_load_n((const uint32_t *)as_pointer(addr), __ATOMIC_ACQUIRE);
    return __atomic_load_n((const uint64_t *)as_pointer(addr), __ATOMIC_ACQUIRE);
}

static bool holds(uint64_t found, const sim_work_t *work)
{
    unsigned shift = 64 - 8 * work->value_bytes; // compares the lower bytes alone

    switch (work->wait_flags & 3) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return found << shift == work->value << shift;
    case CU_STREAM_WAIT_VALUE_AND:
        return (found & work->value) << shift != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
        return ~(found | work->value) << shift != 0;
    default: // GEQ, cyclic
        return (int64_t)((found - work->value) << shift) >= 0;
    }
}

bool sim_work_may_start(const sim_work_t *work, CUstream stream)
{
    uint64_t bad;

    if (!sim_work_waits_outside(work))
        return true;
    if (work->kind == SIM_WORK_WAIT)
        return sim_mark_is_done(&work->mark);
    int device = stream->context->device;
    if (sim_space_check(work->dst, work->bytes, device, false, &bad) > SIM_CHECK_GOOD)
        return true; // it will fault
    return holds(load(work->dst, work->value_bytes), work);
}

// ---- questions

static bool overlaps(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

bool sim_work_writes(const sim_work_t *work, uint64_t addr, uint64_t bytes)
{
    if (work->compute != NULL)
        return sim_compute_touches(work->compute, addr, bytes, true);
    if (work->bytes == 0 || work->rows == 0 ||
        (work->kind == SIM_WORK_KERNEL && !work->writes))
        return false;
    return overlaps(work->dst, (work->rows - 1) * work->dst_pitch + work->bytes, addr,
                    bytes);
}

bool sim_work_touches(const sim_work_t *work, uint64_t addr, uint64_t bytes)
{
    if (work->compute != NULL)
        return sim_compute_touches(work->compute, addr, bytes, false);
    if (work->bytes == 0 || work->rows == 0)
        return false;
    uint64_t dst_bytes = (work->rows - 1) * work->dst_pitch + work->bytes;
    uint64_t src_bytes = (work->rows - 1) * work->src_pitch + work->bytes;
    return overlaps(work->dst, dst_bytes, addr, bytes) ||
           (work->src != 0 && work->staging == NULL &&
            overlaps(work->src, src_bytes, addr, bytes));
}

// The memory that work uses. Work of several rows is left out, since rows may lie
// between each other, and so are waits for values, which make the order of others.
static size_t ranges_of(const sim_work_t *work, oomph_sim_range_t own[2],
                        const oomph_sim_range_t **ranges)
{
    size_t count = 0;

    *ranges = own;
    if (work->compute != NULL) {
        *ranges = work->compute->what.ranges;
        return work->compute->what.range_count;
    }
    if (work->kind == SIM_WORK_WAIT_VALUE || work->bytes == 0 || work->rows != 1)
        return 0;
    own[count++] = (oomph_sim_range_t){work->dst, work->bytes,
                                       work->kind != SIM_WORK_KERNEL || work->writes};
    if (work->src != 0 && work->staging == NULL)
        own[count++] = (oomph_sim_range_t){work->src, work->bytes, 0};
    return count;
}

bool sim_work_conflicts(const sim_work_t *a, const sim_work_t *b, uint64_t *addr)
{
    oomph_sim_range_t own_a[2], own_b[2];
    const oomph_sim_range_t *of_a, *of_b;
    size_t count_a = ranges_of(a, own_a, &of_a), count_b = ranges_of(b, own_b, &of_b);

    if (a->is_dry || b->is_dry)
        return false;
    for (size_t i = 0; i < count_a; i++)
        for (size_t k = 0; k < count_b; k++)
            if ((of_a[i].writes || of_b[k].writes) &&
                overlaps(of_a[i].addr, of_a[i].bytes, of_b[k].addr, of_b[k].bytes)) {
                *addr = of_a[i].addr > of_b[k].addr ? of_a[i].addr : of_b[k].addr;
                return true;
            }
    return false;
}

void sim_work_check_memory(const sim_work_t *work, CUstream stream)
{
    oomph_sim_range_t own[2];
    const oomph_sim_range_t *ranges;
    size_t count = ranges_of(work, own, &ranges);
    bool good = stream->context->sticky == CUDA_SUCCESS && !work->is_dry;

    for (size_t i = 0; i < count && good; i++) {
        sim_work_t touched = *work;
        touched.bytes = ranges[i].bytes;
        good = may_touch(&touched, stream, ranges[i].addr, ranges[i].writes);
    }
}

void sim_work_share(const sim_work_t *work)
{
    sim_compute_share(work->compute);
    sim_cost_share(work->cost);
}

void sim_work_unshare(const sim_work_t *work)
{
    sim_compute_drop(work->compute);
    sim_cost_drop(work->cost);
}

void sim_work_discard(const sim_work_t *work)
{
    free(work->staging);
    sim_work_unshare(work);
}

uint64_t sim_checksum(const void *bytes, size_t count)
{
    const unsigned char *place = bytes;
    uint64_t sum = 1, word; // never 0, which means none

    for (; count >= sizeof word; count -= sizeof word, place += sizeof word) {
        memcpy(&word, place, sizeof word);
        sum = sum * 31 + word;
    }
    for (; count > 0; count--)
        sum = sum * 31 + *place++;
    return sum | 1;
}
