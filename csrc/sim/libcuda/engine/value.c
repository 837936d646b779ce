#include "libcuda/engine/value.h"

#include "libcuda/memory/address.h"
#include "libcuda/memory/space.h"
#include "libcuda/objects/mark.h"
#include "libcuda/objects/stream.h"

#include <string.h>

enum { CELLS = 64 };

// A value in device memory that is not real: waits for values need it all the same.
typedef struct cell {
    uint64_t addr; // 0: not in use
    uint64_t value;
} cell_t;

static cell_t cells[CELLS];
static size_t next_cell;

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

void sim_value_store(uint64_t addr, uint64_t value, unsigned value_bytes)
{
    if (!sim_space_has_bytes(addr))
        write_cell(addr, value);
    else if (value_bytes == 4)
        __atomic_store_n((uint32_t *)sim_pointer(addr), (uint32_t)value,
                         __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)sim_pointer(addr), value, __ATOMIC_RELEASE);
}

static uint64_t load(uint64_t addr, unsigned value_bytes)
{
    const cell_t *cell = sim_space_has_bytes(addr) ? NULL : find_cell(addr);

    if (!sim_space_has_bytes(addr))
        return cell ? cell->value : 0;
    if (value_bytes == 4)
        return __atomic_load_n((const uint32_t *)sim_pointer(addr), __ATOMIC_ACQUIRE);
    return __atomic_load_n((const uint64_t *)sim_pointer(addr), __ATOMIC_ACQUIRE);
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

// Nobody can be met before the stream has come.
static bool is_met(const sim_operation_t *operation)
{
    const sim_work_t *work = &operation->work;
    uint64_t met_ns;

    return operation->has_come &&
           sim_work_meeting(work)->is_met(work->compute->what.argument, &met_ns) != 0;
}

bool sim_operation_may_start(const sim_operation_t *operation)
{
    const sim_work_t *work = &operation->work;
    const int device = operation->stream->context->device;
    uint64_t bad;

    if (!sim_work_waits_outside(work))
        return true;
    if (work->kind == SIM_WORK_WAIT)
        return sim_mark_is_done(&work->mark);
    if (sim_work_meeting(work) != NULL)
        return is_met(operation);
    if (sim_space_check(work->dst, work->bytes, device, false, &bad) > SIM_CHECK_GOOD)
        return true; // it will fault
    return holds(load(work->dst, work->value_bytes), work);
}

void sim_value_reset(void)
{
    memset(cells, 0, sizeof cells);
    next_cell = 0;
}
