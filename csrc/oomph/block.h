/* block.h - what is known of a block, and which blocks there are. */
#pragma once
#include "oomph/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum oomph_block_state {
    OOMPH_BLOCK_HOLE,     // address space without pages
    OOMPH_BLOCK_FREE,     // backed and free
    OOMPH_BLOCK_USED,     // handed out
    OOMPH_BLOCK_DEFERRED, // freed, but another stream may still use it
} oomph_block_state_t;

typedef struct oomph_block_info {
    int device;
    oomph_addr_t addr;
    size_t bytes;           // what the block occupies
    size_t requested_bytes; // what was asked for; 0 unless USED or DEFERRED
    oomph_block_state_t state;
    oomph_tier_t tier;
    size_t host_bytes; // of the block, on host: none or all, unless it shares pages
    bool small;        // of the pools for blocks up to 1 MiB
    oomph_stream_t stream;
    oomph_pool_id_t pool;
    oomph_addr_t segment_addr; // the reserved range that it lies in
    size_t segment_bytes;
    bool adopted; // the range is not made of pages: a source's, or page-locked memory
    void *user;
    oomph_site_t site; // who asked for it; 0: unknown, or FREE
} oomph_block_info_t;

// The block that contains `addr`. Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_lookup(oomph_addr_t addr, oomph_block_info_t *info);

typedef void (*oomph_visit_t)(const oomph_block_info_t *block, void *context);

// Calls `visit` for every block of a device in order of address, segment by segment,
// under the device lock: `visit` must not call oomph. Holes are left out. Never fails:
// a device that was never used has none.
oomph_status_t oomph_walk(int device, oomph_visit_t visit, void *context);

// Walks every record and says whether they agree with each other.
// Errors: OOMPH_ERR_INVALID, with what is wrong in oomph_error_detail().
oomph_status_t oomph_check(int device);

// Every block in use of a device, in columns.
typedef struct oomph_block_list {
    size_t count;
    oomph_addr_t *addrs;
    uint64_t *bytes;
    oomph_site_t *sites;
    uint8_t *marks; // OOMPH_MARK_*
} oomph_block_list_t;

enum {
    OOMPH_MARK_HOST = 1,    // it lies on the host
    OOMPH_MARK_POOL = 2,    // it is of a CUDA graph or a MemPool
    OOMPH_MARK_WAITING = 4, // it is freed, but other streams may still use it
};

// Lists them. The columns are one piece of memory: free(blocks->addrs).
// Errors: OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_list_blocks(int device, oomph_block_list_t *blocks);
