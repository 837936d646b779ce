/* site.h - what the blocks of each call site take. Pure; the caller holds the device
 * lock. The names of sites (oomph.h) have a lock of their own, below all others.
 */
#pragma once
#include "core/base/util.h"

typedef struct oomph_site_counter {
    int64_t bytes, count;           // of blocks in use
    int64_t peak_bytes, peak_count; // at the peak of all, if it has changed since then
    int64_t changed_after;          // which peak it has changed after
} oomph_site_counter_t;

typedef struct oomph_site_counters {
    oomph_site_counter_t *list; // two for each site: its own, and what is inferred
    size_t capacity;
    int64_t bytes, peak_bytes; // of all sites; the peak since it was reset
    int64_t peak;              // counts the peaks: each new one, and resets
} oomph_site_counters_t;

// Makes the list long enough for the site. Errors: OOMPH_ERR_NO_MEMORY (host).
oomph_status_t oomph_site_counters_grow(oomph_site_counters_t *counters,
                                        oomph_site_t site);
// Makes sure that a block of the site can be counted. Errors: OOMPH_ERR_NO_MEMORY
// (host).
static inline oomph_status_t
oomph_site_counters_reserve(oomph_site_counters_t *counters, oomph_site_t site)
{
    return (size_t)(site & ~OOMPH_SITE_INFERRED) * 2 + 1 < counters->capacity
               ? OOMPH_OK
               : oomph_site_counters_grow(counters, site);
}
// Counts a block of the site in, or with negative bytes out.
void oomph_site_count(oomph_site_counters_t *counters, oomph_site_t site,
                      int64_t bytes);
// Starts a new peak at what is held now.
void oomph_site_reset_peak(oomph_site_counters_t *counters);
// The sites that hold blocks, or held them at the peak of all sites together: at most
// `capacity` of them; gives how many there are.
size_t oomph_site_counters_report(const oomph_site_counters_t *counters, bool at_peak,
                                  oomph_site_bytes_t *rows, size_t capacity);
