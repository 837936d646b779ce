/* move.h - moving blocks in use.
 *
 * A block in use changes its tier while its address stays. Its pages are unmapped for a
 * moment, in which nothing may use them; no allocator can know who launches. So blocks
 * move only when the caller says that nobody launches work that uses them until the
 * call has returned: work that was queued before is waited for.
 *
 * A block moves with the pages that it has for itself. A page that it shares with
 * another block in use, at either end, follows once both are moved: then nothing may
 * use the other either. A block that has no page for itself moves together with those
 * that it shares its pages with, or not at all.
 */
#pragma once
#include "oomph/types.h"

#include <stdbool.h>
#include <stddef.h>

// What became of a block that was to be moved.
typedef enum oomph_outcome {
    OOMPH_OUTCOME_THERE,     // it lies where it was wanted, since now or before
    OOMPH_OUTCOME_UNKNOWN,   // it is not a block in use on the device
    OOMPH_OUTCOME_SMALL,     // it shares its pages with others of at most 1 MiB
    OOMPH_OUTCOME_NEIGHBOUR, // it shares its pages with blocks that do not move
    OOMPH_OUTCOME_POOL,      // it is of a CUDA graph or a MemPool
    OOMPH_OUTCOME_ADOPTED,   // it is not made of pages: a pinned block, or a source's
    OOMPH_OUTCOME_EXPORTED,  // other processes have its pages mapped
    OOMPH_OUTCOME_PINNED,    // it is to stay on the device
    OOMPH_OUTCOME_NO_ROOM,   // there are not enough pages for it
    OOMPH_OUTCOMES
} oomph_outcome_t;

typedef struct oomph_move {
    oomph_addr_t addr;       // anywhere in the block
    oomph_outcome_t outcome; // set where the call returns OOMPH_OK
} oomph_move_t;

// Moves blocks of one device to a tier, after waiting for the device once: those for
// which there is room, the first before the others. `moved_bytes` are those of the
// blocks that lay elsewhere before. A block moved to the host stays there, until it is
// moved back; others may return by themselves (oomph_mark_idle).
// Errors: OOMPH_ERR_STATE (the device is not open, something captures, no host pages
// can be mapped here), OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER. Then no block has moved;
// if the driver refuses even to undo, some may have moved with their contents
// (oomph_lookup() says which), and what could not be mapped again at all the error
// calls lost.
oomph_status_t oomph_move(int device, oomph_tier_t tier, oomph_move_t *moves,
                          size_t count, size_t *moved_bytes);

// The same to the host, of blocks that are idle between steps (oomph_mark_idle), by the
// thread that ends steps: they return by themselves once there is room. Errors: the
// same.
oomph_status_t oomph_move_idle(int device, oomph_move_t *moves, size_t count,
                               size_t *moved_bytes);

// The outcome in words, such as "it is of a CUDA graph or a MemPool".
const char *oomph_outcome_text(oomph_outcome_t outcome);

// Says that the block in use that contains `addr` is to stay on the device, or no
// longer. It is moved nowhere by this. Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_pin(oomph_addr_t addr, bool on);

// Says that the block in use that contains `addr` is idle between steps, until it is
// freed: whoever uses it does so in work that was queued before the thread that ends
// steps calls oomph_step(), or queues it after that has returned; and likewise with any
// call of that thread's to oomph_pool_begin(). So do parameters, gradients and the
// state of optimizers; a buffer that another thread fills does not. Only such
// blocks return to the device by themselves. Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_mark_idle(oomph_addr_t addr);

// Takes that back: the block stays where it is, as if nothing had been said of it.
// Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_unmark_idle(oomph_addr_t addr);

// Says that the block in use that contains `addr` and lies on the host was, in the step
// that goes on, worked on in copies alone. Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_mark_copied(oomph_addr_t addr);
