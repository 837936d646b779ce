/* guard.h - what guard unmapped. */
#pragma once
#include "oomph/types.h"

#include <stddef.h>
#include <stdint.h>

typedef struct oomph_unmapped {
    oomph_addr_t addr;
    size_t bytes, requested_bytes;
    oomph_stream_t stream;
    oomph_tier_t tier;
    oomph_site_t taken_at, freed_at; // 0: unknown
    int64_t freed_ns, unmapped_ns;   // of CLOCK_MONOTONIC
} oomph_unmapped_t;

enum { OOMPH_UNMAPPED_KEPT = 1024 }; // of each device

// The blocks unmapped last on a device, the newest first, at most `capacity` of them;
// `count` is how many are known. Asks nothing of the driver, which may have failed.
// Never fails.
oomph_status_t oomph_unmapped(int device, oomph_unmapped_t *rows, size_t capacity,
                              size_t *count);
