/* clock.h - the virtual time. The caller holds the driver's lock. */
#pragma once
#include <stdint.h>

// In nanoseconds since the start.
uint64_t sim_clock_ns(void);

// The clock never goes back.
void sim_clock_move_to(uint64_t ns);

void sim_clock_reset(void);
