/* types.h - what all of the C API speaks of: statuses, addresses, streams, pools. */
#pragma once
#include <stdint.h>

enum { OOMPH_ABI = 3, OOMPH_DEVICE_MAX = 64 };

typedef enum oomph_status {
    OOMPH_OK = 0,
    OOMPH_ERR_INVALID,   // an argument is wrong; a bug in the caller
    OOMPH_ERR_NO_MEMORY, // memory is exhausted, after every rung of the ladder
    OOMPH_ERR_DRIVER,    // CUDA failed; oomph_error_detail() has its message
    OOMPH_ERR_STATE,     // not started, already started, or after a fork
} oomph_status_t;

typedef uint64_t oomph_addr_t;
typedef struct CUstream_st *oomph_stream_t; // a CUstream, never dereferenced here
typedef struct oomph_event *oomph_event_t;  // a CUevent, likewise

// The pool that PyTorch names for a graph capture or a MemPool; {0, 0} is the default.
typedef struct oomph_pool_id {
    uint64_t first, second;
} oomph_pool_id_t;

// A line of source that allocates, numbered; 0: unknown. OOMPH_SITE_INFERRED marks a
// line that did not allocate itself: its backward did.
typedef uint32_t oomph_site_t;
#define OOMPH_SITE_INFERRED ((oomph_site_t)1 << 31)

// Text of the last failure of this thread; never NULL, valid until its next failure.
const char *oomph_error_detail(void);

typedef enum oomph_tier {
    OOMPH_TIER_DEVICE,
    OOMPH_TIER_HOST,
    OOMPH_TIERS
} oomph_tier_t;

// Which kind of host memory backs a block that falls back to the host.
typedef enum oomph_host_kind {
    OOMPH_HOST_AUTO,   // the first of the kinds below that works on this machine
    OOMPH_HOST_NUMA,   // pages on the GPU's NUMA node, mapped into a segment
    OOMPH_HOST_PLAIN,  // host pages without a node, mapped into a segment (CUDA 13)
    OOMPH_HOST_PINNED, // page-locked allocations, each with its own address
    OOMPH_HOST_OFF,    // none works, or none is wanted
} oomph_host_kind_t;
