/* event_queue.h - the operations that run, the one that ends first on top: the event
 * queue of a discrete-event simulation. A binary heap, as each operation is put in and
 * taken out once, O(log n) each, and nothing else is asked of it. Equal ends come out
 * in the order in which they went in, so runs repeat. The caller holds the driver's
 * lock.
 */
#pragma once
#include "libcuda/engine/pending.h"

// False when the host has no memory.
bool sim_event_queue_push(sim_operation_t *operation);

// The operation that ends first, or NULL.
sim_operation_t *sim_event_queue_top(void);
sim_operation_t *sim_event_queue_pop(void);

void sim_event_queue_clear(void);
