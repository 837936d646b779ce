/* traffic.h - copies between host and devices: how long they take, how much was copied.
 * The caller holds the driver's lock.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef enum sim_direction {
    SIM_H2D,
    SIM_D2H,
    SIM_D2D,
    SIM_DIRECTIONS
} sim_direction_t;

// Whether the bytes at an address lie on the host: its own, pinned or host-located
// pages.
bool sim_traffic_is_host(uint64_t addr);

// What a copy takes on the simulated card's link, or within a device.
uint64_t sim_traffic_copy_ns(uint64_t dst, uint64_t src, uint64_t bytes);
uint64_t sim_traffic_set_ns(uint64_t bytes);

void sim_traffic_count(uint64_t dst, uint64_t src, uint64_t bytes);
uint64_t sim_traffic_bytes(sim_direction_t direction);

void sim_traffic_reset(void);
