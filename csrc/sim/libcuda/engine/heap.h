/* heap.h - the operations that run, the one that ends first on top. The caller holds
 * the driver's lock.
 */
#pragma once
#include "libcuda/engine/pending.h"

// False when the host has no memory.
bool sim_heap_push(sim_operation_t *operation);

// The operation that ends first, or NULL.
sim_operation_t *sim_heap_top(void);
sim_operation_t *sim_heap_pop(void);

void sim_heap_clear(void);
