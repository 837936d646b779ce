#include "traffic.h"

#include "config.h"
#include "space.h"

#include <string.h>

enum { START_NS = 1000 };

static const uint64_t DEVICE_BYTES_PER_S = 1000000000000; // within a device
static uint64_t copied[SIM_DIRECTIONS];

// Whether the bytes at an address lie on the host: its own, pinned or host-located
// pages.
static bool is_on_host(uint64_t addr)
{
    const sim_mapping_t *mapping = sim_space_mapping(addr);

    return mapping == NULL || sim_handle_is_on_host(mapping->handle);
}

static uint64_t duration_ns(uint64_t bytes, uint64_t bytes_per_s)
{
    return START_NS + (uint64_t)((double)bytes * 1e9 / (double)bytes_per_s);
}

static bool crosses_link(uint64_t dst, uint64_t src)
{
    const sim_mapping_t *to = sim_space_mapping(dst), *from = sim_space_mapping(src);

    return is_on_host(dst) || is_on_host(src) ||
           to->handle->prop.location.id != from->handle->prop.location.id;
}

uint64_t sim_traffic_copy_ns(uint64_t dst, uint64_t src, uint64_t bytes)
{
    return duration_ns(bytes, crosses_link(dst, src) ? sim_config.link_bytes_per_s
                                                     : DEVICE_BYTES_PER_S);
}

uint64_t sim_traffic_set_ns(uint64_t bytes)
{
    return duration_ns(bytes, DEVICE_BYTES_PER_S);
}

void sim_traffic_count(uint64_t dst, uint64_t src, uint64_t bytes)
{
    bool to_host = is_on_host(dst), from_host = is_on_host(src);

    if (from_host && !to_host)
        copied[SIM_H2D] += bytes;
    else if (to_host && !from_host)
        copied[SIM_D2H] += bytes;
    else if (!to_host)
        copied[SIM_D2D] += bytes;
}

uint64_t sim_traffic_bytes(sim_direction_t direction)
{
    return copied[direction];
}

void sim_traffic_reset(void)
{
    memset(copied, 0, sizeof copied);
}
