/* site.h - call sites: which line of source holds the memory. */
#pragma once
#include "oomph/types.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct oomph_site_info {
    const char *file, *function; // UTF-8; they live as long as the process
    int line;
} oomph_site_info_t;

typedef struct oomph_site_bytes {
    oomph_site_t site;
    size_t bytes, count; // of its blocks
} oomph_site_bytes_t;

// The number of a line; 0 if there is no host memory for it. Equal lines have equal
// numbers, as long as the process lives.
oomph_site_t oomph_site(const char *file, const char *function, int line);

// What the number stands for, inferred or not. Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_site_info(oomph_site_t site, oomph_site_info_t *info);

// The line of the user's code that this thread executes, as the hook knows it; 0 if
// none does. With `in_backward`, 0 also where autograd and no code of the user asks.
oomph_site_t oomph_call_site(bool in_backward);

// The sites that hold blocks on the device, or held them when all sites together held
// most since peaks were reset: at most `capacity` of them; `count` is how many there
// are. Blocks of unknown sites are left out. Never fails.
oomph_status_t oomph_live_sites(int device, bool at_peak, oomph_site_bytes_t *rows,
                                size_t capacity, size_t *count);

// Smaller requests need no site: nobody asks for it.
size_t oomph_site_min_bytes(void);
