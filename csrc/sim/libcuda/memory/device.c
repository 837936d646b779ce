#include "libcuda/memory/device.h"

#include "libcuda/session/config.h"
#include "libcuda/session/visible_devices.h"

#include <string.h>

static struct CUctx_st devices[SIM_DEVICES_MAX];
static uint64_t host_used[SIM_HOST_KINDS], host_peak[SIM_HOST_KINDS];

CUcontext sim_device(int device)
{
    if (device < 0 || device >= sim_visible_device_count())
        return NULL;
    if (devices[device].device != device) // else threads may be reading it
        devices[device].device = device;
    return &devices[device];
}

void sim_device_reset(void)
{
    memset(devices, 0, sizeof devices);
    memset(host_used, 0, sizeof host_used);
    memset(host_peak, 0, sizeof host_peak);
}

static uint64_t host_used_bytes(void)
{
    uint64_t used = 0;

    for (int kind = 0; kind < SIM_HOST_KINDS; kind++)
        used += host_used[kind];
    return used;
}

uint64_t sim_device_free_bytes(const struct CUctx_st *context)
{
    uint64_t taken = context->used_bytes;

    if (context->retain_count > 0)
        taken += sim_config.context_bytes;
    if (sim_config.is_integrated)
        taken += host_used_bytes();
    return taken < sim_config.capacity_bytes ? sim_config.capacity_bytes - taken : 0;
}

bool sim_device_dismiss(sim_guest_t *guest)
{
    if (guest->context == NULL)
        return false;
    sim_guest_t **link = &guest->context->guests;
    while (*link != guest)
        link = &(*link)->next;
    *link = guest->next;
    guest->context->used_bytes -= guest->bytes;
    guest->context = NULL;
    return true;
}

bool sim_device_take(CUcontext context, uint64_t bytes)
{
    while (bytes > sim_device_free_bytes(context) && context->guests != NULL)
        sim_device_dismiss(context->guests);
    if (bytes > sim_device_free_bytes(context))
        return false;
    context->used_bytes += bytes;
    if (context->used_bytes > context->peak_used_bytes)
        context->peak_used_bytes = context->used_bytes;
    return true;
}

void sim_device_give(CUcontext context, uint64_t bytes)
{
    context->used_bytes -= bytes;
}

bool sim_device_welcome(CUcontext context, sim_guest_t *guest)
{
    const CUcontext before = guest->context;
    sim_guest_t **last;

    sim_device_dismiss(guest); // else it would be in its own way
    if (!sim_device_take(context, guest->bytes))
        return before != NULL;
    for (last = &context->guests; *last != NULL; last = &(*last)->next)
        continue;
    *last = guest;
    guest->next = NULL;
    guest->context = context;
    return before != context;
}

bool sim_host_take(sim_host_memory_t kind, uint64_t bytes)
{
    if (bytes > sim_config.host_bytes - host_used_bytes() ||
        (sim_config.is_integrated && bytes > sim_device_free_bytes(&devices[0])))
        return false;
    host_used[kind] += bytes;
    if (host_used[kind] > host_peak[kind])
        host_peak[kind] = host_used[kind];
    return true;
}

void sim_host_give(sim_host_memory_t kind, uint64_t bytes)
{
    host_used[kind] -= bytes;
}

uint64_t sim_host_used_bytes(sim_host_memory_t kind)
{
    return host_used[kind];
}

uint64_t sim_host_peak_bytes(sim_host_memory_t kind)
{
    return host_peak[kind];
}
