/* batch.h - which blocks move, and with which pages. The caller holds the device lock.
 */
#pragma once
#include "core/control/move.h"

// Addresses that were announced to watchers as about to be unmapped.
typedef struct oomph_announced {
    oomph_addr_t addr;
    size_t bytes;
    oomph_stream_t stream;
} oomph_announced_t;

typedef struct oomph_batch {
    oomph_device_t *device;
    oomph_tier_t tier;
    oomph_move_limits_t limits;
    oomph_move_t *moves;
    size_t count;
    oomph_block_t **blocks; // of each move; NULL: it has none
    size_t *host_bytes;     // of each block, before it moves
    oomph_swap_run_t *runs; // of the pages chosen
    size_t run_count, page_count;
    oomph_announced_t *announced;
    size_t announced_count;
} oomph_batch_t;

// The block in use that contains the address and is the program's, or NULL.
oomph_block_t *oomph_block_at(const oomph_device_t *device, oomph_addr_t addr);
// Whether it lies elsewhere, and nothing in the block itself keeps it there.
bool oomph_block_may_move(const oomph_block_t *block, oomph_tier_t tier);

// Chooses what moves if there is room for `room` pages, and marks it as moving.
void oomph_batch_choose(oomph_batch_t *batch, size_t room);
// Takes the marks off again; what was chosen stays in `runs`.
void oomph_batch_forget(const oomph_batch_t *batch);
