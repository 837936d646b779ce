#include "libcuda/engine/effects.h"

#include "libcuda/base/lock.h"
#include "libcuda/engine/fault.h"
#include "libcuda/engine/pending.h"
#include "libcuda/engine/record.h"
#include "libcuda/engine/value.h"
#include "libcuda/memory/address.h"
#include "libcuda/memory/allocation.h"
#include "libcuda/memory/shadow.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/event.h"
#include "libcuda/objects/stream.h"
#include "libcuda/session/report.h"
#include "libcuda/session/session.h"
#include "sim.h"

#include <string.h>

enum {
    KERNEL_FILL = 0xAB,
    LARGE_COPY = 64 << 10, // bytes, from which on it is worth to look what was written
};

static uint64_t copied[SIM_DIRECTIONS];

// Bytes that are not real arrive at the host from the shadow, or else as a value
// followed by zeros.
static void read_unreal(void *place, uint64_t src, uint64_t bytes, uint64_t value,
                        bool is_known)
{
    if (is_known && sim_shadow_read(src, place, bytes) > 0)
        return;
    memset(place, 0, bytes);
    memcpy(place, &value, bytes < sizeof value ? bytes : sizeof value);
}

static void copy_unreal(uint64_t dst, uint64_t src, uint64_t bytes, bool is_known)
{
    if (is_known)
        sim_shadow_copy(dst, src, bytes);
    else
        sim_shadow_forget(dst, bytes);
}

// Leaves out what neither side was ever written to, and so is zero on both: to touch a
// page costs more than to copy it.
static void copy_written(uint64_t to, uint64_t from, uint64_t bytes)
{
    while (bytes > 0) {
        uint64_t zeros = sim_space_unwritten(from, sim_space_unwritten(to, bytes));
        to += zeros, from += zeros, bytes -= zeros;
        uint64_t written = sim_space_written(from, bytes);
        if (written == 0)
            written = sim_space_written(to, bytes);
        memcpy(sim_pointer(to), sim_pointer(from), written);
        to += written, from += written, bytes -= written;
    }
}

// A sanitizer's memmove goes byte by byte: it is left to what overlaps.
static void copy_real(uint64_t to, uint64_t from, uint64_t bytes)
{
    if (from + bytes > to && to + bytes > from)
        memmove(sim_pointer(to), sim_pointer(from), bytes);
    else if (bytes < LARGE_COPY)
        memcpy(sim_pointer(to), sim_pointer(from), bytes);
    else
        copy_written(to, from, bytes);
}

static void copy_bytes(uint64_t dst, uint64_t src, const sim_work_t *work)
{
    const uint64_t bytes = work->bytes;
    bool to_real = sim_space_has_bytes(dst), from_real = sim_space_has_bytes(src);

    if (to_real && from_real)
        copy_real(dst, src, bytes);
    else if (to_real)
        read_unreal(sim_pointer(dst), src, bytes, work->value, !work->is_part);
    else if (from_real && bytes <= SIM_SHADOW_COPY_MAX)
        sim_shadow_write(dst, sim_pointer(src), bytes);
    else if (from_real)
        sim_shadow_forget(dst, bytes);
    else
        copy_unreal(dst, src, bytes, !work->is_part);
}

static void count_copy(uint64_t dst, uint64_t src, uint64_t bytes)
{
    bool to_host = sim_space_place(dst) == SIM_ON_HOST;
    bool from_host = sim_space_place(src) == SIM_ON_HOST;

    if (from_host && !to_host)
        copied[SIM_H2D] += bytes;
    else if (to_host && !from_host)
        copied[SIM_D2H] += bytes;
    else if (!to_host)
        copied[SIM_D2D] += bytes;
}

static void copy(const sim_work_t *work, CUstream stream)
{
    uint64_t src = work->staging ? (uint64_t)(uintptr_t)work->staging : work->src;

    if (work->checksum != 0 &&
        sim_checksum(sim_pointer(work->src), work->bytes) != work->checksum)
        sim_misuse(CUDA_SUCCESS, "the source of a pending %s, at %#llx, was written to",
                   work->call, (unsigned long long)work->src);
    for (uint64_t row = 0; row < work->rows; row++) {
        uint64_t to = work->dst + row * work->dst_pitch;
        uint64_t from = src + row * work->src_pitch;
        if ((!work->is_read && !sim_fault_check(work, stream, from, false)) ||
            !sim_fault_check(work, stream, to, true))
            return;
        copy_bytes(to, from, work);
    }
    count_copy(work->dst, work->src, work->bytes * work->rows);
}

static void fill(char *place, uint64_t bytes, uint64_t value, unsigned value_bytes)
{
    if (value_bytes == 1) {
        memset(place, (int)value, bytes);
        return;
    }
    for (uint64_t i = 0; i + value_bytes <= bytes; i += value_bytes)
        memcpy(place + i, &value, value_bytes);
}

static void fill_unreal(uint64_t addr, uint64_t bytes, uint64_t value,
                        unsigned value_bytes)
{
    char data[SIM_SHADOW_FILL_MAX];

    if (bytes > sizeof data) {
        sim_shadow_forget(addr, bytes);
        return;
    }
    fill(data, bytes, value, value_bytes);
    sim_shadow_write(addr, data, bytes);
}

static void set(const sim_work_t *work, CUstream stream)
{
    bool is_one_value = work->bytes == work->value_bytes && work->value_bytes >= 4;

    for (uint64_t row = 0; row < work->rows; row++) {
        uint64_t to = work->dst + row * work->dst_pitch;
        if (!sim_fault_check(work, stream, to, true))
            return;
        if (is_one_value)
            sim_value_store(to, work->value, work->value_bytes);
        if (!sim_space_has_bytes(to))
            fill_unreal(to, work->bytes, work->value, work->value_bytes);
        else if (!is_one_value)
            fill(sim_pointer(to), work->bytes, work->value, work->value_bytes);
    }
}

static void touch(const sim_work_t *work, CUstream stream)
{
    if (work->bytes == 0 || !sim_fault_check(work, stream, work->dst, work->writes) ||
        !sim_space_has_bytes(work->dst))
        return;
    if (work->writes)
        fill(sim_pointer(work->dst), work->bytes, KERNEL_FILL, 1);
    else
        (void)*(volatile uint64_t *)sim_pointer(work->dst & ~7ull);
}

// Of what is not real, what was known is not there any more.
static void forget_written(const sim_work_t *work)
{
    const oomph_sim_cost_t *cost = work->cost != NULL ? &work->cost->what : NULL;

    if (cost == NULL && !work->is_part)
        sim_shadow_forget_all();
    for (size_t i = 0; cost != NULL && !cost->is_followed && i < cost->use_count; i++)
        if (cost->uses[i].written_bytes > 0)
            sim_shadow_forget(cost->uses[i].addr, cost->uses[i].bytes);
}

static void compute(const sim_work_t *work, CUstream stream)
{
    const oomph_sim_compute_t what = work->compute->what;

    if (!sim_work_may_use_memory(work, stream))
        return;
    if (what.makes_calls)
        sim_unlock();
    int failed = what.run(what.argument);
    if (what.makes_calls)
        sim_lock();
    if (failed != 0)
        stream->context->sticky = CUDA_ERROR_ASSERT;
}

static void free_pooled(uint64_t addr)
{
    sim_reservation_t *allocation = sim_memory_find(addr);

    if (allocation == NULL) {
        sim_misuse(CUDA_SUCCESS, "cuMemFreeAsync: %#llx was freed before",
                   (unsigned long long)addr);
        return;
    }
    const sim_operation_t *user =
        sim_pending_find_user(addr, allocation->range.bytes, NULL);
    if (allocation->graph_count > 0 || allocation->is_graph_used) {
        sim_memory_graph_use(addr, false);
        return;
    }
    if (user != NULL)
        sim_misuse(CUDA_SUCCESS,
                   "cuMemFreeAsync: %#llx is in use by a pending %s of stream %llu",
                   (unsigned long long)addr, user->work.call,
                   (unsigned long long)user->stream->id);
    sim_memory_unplace(allocation);
}

void sim_work_execute(const sim_work_t *work, CUstream stream, uint64_t now_ns)
{
    bool is_broken = stream->context->sticky != CUDA_SUCCESS;

    switch (work->kind) {
    case SIM_WORK_KERNEL:
        forget_written(work);
        if (!is_broken)
            touch(work, stream);
        break;
    case SIM_WORK_COMPUTE:
        compute(work, stream);
        break;
    case SIM_WORK_COPY:
        if (work->is_dry && sim_space_find(work->dst) == NULL)
            memset(sim_pointer(work->dst), 0, work->bytes);
        else if (!is_broken && !work->is_dry)
            copy(work, stream);
        break;
    case SIM_WORK_SET:
        if (!is_broken && !work->is_dry)
            set(work, stream);
        break;
    case SIM_WORK_WAIT_VALUE:
        if (!is_broken)
            sim_fault_check(work, stream, work->dst, false);
        break;
    case SIM_WORK_RECORD:
        sim_event_complete(work->event, work->generation, now_ns);
        if (work->mark.board != NULL)
            sim_record_end(&work->mark);
        break;
    case SIM_WORK_FREE:
        free_pooled(work->dst);
        break;
    case SIM_WORK_GRAPH_ALLOC:
        sim_memory_graph_use(work->dst, true);
        break;
    case SIM_WORK_GRAPH_FREE:
        sim_memory_graph_use(work->dst, false);
        break;
    case SIM_WORK_MOVE:
    case SIM_WORK_CALL:
    case SIM_WORK_SLEEP:
    case SIM_WORK_WAIT:
        break;
    }
}

// ---- what runs apart

static sim_operation_t *first, *last; // due, by `next_due`
static uint64_t due_count;            // the one that is running included
static bool thread_is_running;
static __thread bool is_in_function; // a computation may call the driver, no function

static void call_function(const sim_work_t *work)
{
    CUhostFn function = work->function;
    void *argument = work->argument;

    sim_unlock();
    is_in_function = true;
    function(argument);
    is_in_function = false;
    sim_lock();
}

static void call(sim_operation_t *operation)
{
    if (operation->work.kind == SIM_WORK_CALL)
        call_function(&operation->work);
    else
        compute(&operation->work, operation->stream);
    due_count--;
    operation->done(operation);
}

static void *run(void *nothing)
{
    (void)nothing;
    sim_lock();
    while (first != NULL) {
        sim_operation_t *operation = first;
        first = operation->next_due;
        operation->next_due = NULL;
        call(operation);
    }
    thread_is_running = false;
    sim_unlock();
    return NULL;
}

void sim_callback_run(sim_operation_t *operation, void (*done)(sim_operation_t *))
{
    operation->done = done;
    due_count++;
    if (!sim_start_thread(&thread_is_running, run)) {
        call(operation);
        return;
    }
    operation->next_due = NULL;
    if (first == NULL)
        first = operation;
    else
        last->next_due = operation;
    last = operation;
}

uint64_t sim_callback_count(void)
{
    return due_count;
}

bool sim_callback_is_this_thread(void)
{
    return is_in_function;
}

uint64_t sim_copied_bytes(sim_direction_t direction)
{
    return copied[direction];
}

void sim_effects_reset(void)
{
    memset(copied, 0, sizeof copied);
}
