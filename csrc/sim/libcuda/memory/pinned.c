#include "libcuda/memory/pinned.h"

#include <stdlib.h>
#include <sys/mman.h>

static sim_ranges_t buffers;
static uint64_t next_id = 1;

sim_pinned_t *sim_pinned_find(uint64_t addr)
{
    return (sim_pinned_t *)sim_ranges_find(&buffers, addr);
}

bool sim_pinned_overlaps(uint64_t addr, uint64_t bytes)
{
    return sim_ranges_overlap(&buffers, addr, bytes);
}

static sim_host_memory_t host_kind(sim_pinned_kind_t kind)
{
    return kind == SIM_PINNED_MANAGED ? SIM_HOST_MANAGED : SIM_HOST_PINNED;
}

CUresult sim_pinned_add(CUcontext context, void *place, size_t bytes,
                        sim_pinned_kind_t kind, unsigned flags)
{
    if (!sim_host_take(host_kind(kind), bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_pinned_t *buffer = malloc(sizeof *buffer);
    if (buffer == NULL)
        goto undo_host;
    *buffer = (sim_pinned_t){
        .range = {.base = (uint64_t)(uintptr_t)place, .bytes = bytes},
        .context = context,
        .kind = kind,
        .flags = flags,
        .buffer_id = next_id++,
        .guest = {.bytes = bytes},
    };
    if (!sim_ranges_add(&buffers, &buffer->range))
        goto undo_buffer;
    return CUDA_SUCCESS;

undo_buffer:
    free(buffer);
undo_host:
    sim_host_give(host_kind(kind), bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_pinned_allocate(CUcontext context, size_t bytes, sim_pinned_kind_t kind,
                             unsigned flags, void **place)
{
    void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sim_pinned_add(context, made, bytes, kind, flags);
    if (result == CUDA_SUCCESS)
        *place = made;
    else
        munmap(made, bytes);
    return result;
}

void sim_pinned_remove(sim_pinned_t *buffer)
{
    sim_host_give(host_kind(buffer->kind), buffer->range.bytes);
    sim_device_dismiss(&buffer->guest);
    sim_ranges_remove(&buffers, &buffer->range);
    if (buffer->kind != SIM_PINNED_REGISTERED)
        munmap((void *)(uintptr_t)buffer->range.base, buffer->range.bytes);
    free(buffer);
}

void sim_pinned_reset(void)
{
    while (buffers.count > 0)
        sim_pinned_remove((sim_pinned_t *)buffers.items[0]);
}
