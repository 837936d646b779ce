/* traffic.h - copies between host and devices: where bytes lie, how much was copied.
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

// The device that the bytes at an address lie on; SIM_ON_HOST: the host's own, pinned
// or host-located pages.
enum { SIM_ON_HOST = -1 };
int sim_traffic_place(uint64_t addr);

void sim_traffic_count(uint64_t dst, uint64_t src, uint64_t bytes);
uint64_t sim_traffic_bytes(sim_direction_t direction);

void sim_traffic_reset(void);
