/* oom.h - who held the memory when it was short. */
#pragma once
#include "oomph/block.h"
#include "oomph/memory.h"
#include "oomph/stats.h"

#include <stdbool.h>
#include <stddef.h>

// An allocation that failed, as whoever throws the error knows it.
typedef struct oomph_oom {
    oomph_request_t request;
    char message[1024]; // the error's text
    char doing[128];    // autograd's node; "": none
    bool autocast;      // was on in the thread
    bool grad;          // forward was recorded in the thread
    size_t free_bytes, total_bytes;
    oomph_stats_t stats;
    oomph_block_list_t blocks; // by oomph_keep_oom()
} oomph_oom_t;

// Keeps the failure, with the blocks in use of its device, in place of the last one;
// not one of a pool whose memory comes from elsewhere, nor one of anything else than
// device memory (oom_missing_bytes is 0). Takes neither the GIL nor device
// memory; without host memory the list is empty.
void oomph_keep_oom(const oomph_oom_t *oom);

// Hands out what was kept last, once: free(oom->blocks.addrs). False: none.
bool oomph_take_oom(oomph_oom_t *oom);
