/* value.h - values in memory that streams write and wait for, also where memory is not
 * real: there the last 64 are kept. The caller holds the driver's lock.
 */
#pragma once
#include "libcuda/engine/pending.h"

// Writes one value of 4 or 8 bytes, which may be polled by the program: it appears at
// once.
void sim_value_store(uint64_t addr, uint64_t value, unsigned value_bytes);

// Whether the operation may start, if it waits for what happens outside of all streams.
bool sim_operation_may_start(const sim_operation_t *operation);

// Forgets the values that were written to memory which is not real.
void sim_value_reset(void);
