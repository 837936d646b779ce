#include "libcuda/memory/traffic.h"

#include "libcuda/memory/handle.h"
#include "libcuda/memory/space.h"

#include <string.h>

static uint64_t copied[SIM_DIRECTIONS];

int sim_traffic_place(uint64_t addr)
{
    const sim_mapping_t *mapping = sim_space_mapping(addr);

    if (mapping == NULL || sim_handle_is_on_host(mapping->handle))
        return SIM_ON_HOST;
    return mapping->handle->prop.location.id;
}

void sim_traffic_count(uint64_t dst, uint64_t src, uint64_t bytes)
{
    bool to_host = sim_traffic_place(dst) == SIM_ON_HOST;
    bool from_host = sim_traffic_place(src) == SIM_ON_HOST;

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
