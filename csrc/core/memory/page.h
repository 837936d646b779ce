/* page.h - physical pages of one device, on the device and on the host: created, kept
 * spare for reuse, limited. The caller holds the device lock; the limit of host bytes
 * is shared by all devices.
 */
#pragma once
#include "core/base/counter.h"
#include "core/base/notice.h"
#include "driver/driver.h"

#include <stdatomic.h>

// Host bytes that all devices of the process may take together.
typedef struct oomph_host_limit {
    _Atomic(uint64_t) used_bytes;
    uint64_t limit_bytes;
} oomph_host_limit_t;

// Takes bytes from the limit if it has them; gives them back.
static inline bool oomph_host_limit_take(oomph_host_limit_t *host, uint64_t bytes)
{
    if (atomic_fetch_add(&host->used_bytes, bytes) + bytes <= host->limit_bytes)
        return true;
    atomic_fetch_sub(&host->used_bytes, bytes);
    return false;
}

static inline void oomph_host_limit_give(oomph_host_limit_t *host, uint64_t bytes)
{
    atomic_fetch_sub(&host->used_bytes, bytes);
}

// What of the reserve stays free when pages are taken, in halves.
typedef enum oomph_reserve {
    OOMPH_RESERVE_SPENT, // before the error
    OOMPH_RESERVE_HALF,  // for small blocks, and workspaces of libraries
    OOMPH_RESERVE_WHOLE,
} oomph_reserve_t;

typedef struct oomph_page_stack {
    oomph_handle_t *spare; // created, mapped nowhere
    size_t spare_count;
    oomph_handle_t *retired; // mapped nowhere, to be released, never to be used again
    size_t retired_count;
    size_t capacity; // of `spare` and of `retired`: at least `count`
    size_t count;    // pages that exist: mapped, spare or retired
} oomph_page_stack_t;

// Address space of our own that the driver would not unmap: what lies there, released
// since, exists until it does.
typedef struct oomph_stuck {
    struct oomph_stuck *next;
    oomph_addr_t addr;
    size_t bytes, mapped_bytes;
} oomph_stuck_t;

typedef struct oomph_pages {
    const oomph_driver_t *driver;
    int device;
    size_t page_bytes;
    uint64_t devices;            // mask of the devices that may access them
    oomph_host_kind_t host_kind; // NUMA or PLAIN, once probed
    oomph_host_limit_t *host;
    uint64_t host_pages_max_bytes; // of host pages that may be mapped; UINT64_MAX: any
    size_t limit_bytes;            // most device bytes; SIZE_MAX: what the driver gives
    size_t reserve_bytes;          // device bytes left to others
    size_t known_free_bytes;       // what the driver last said, less what we took since
    size_t unchecked_bytes;        // taken since the driver was asked
    int64_t create_count, release_count; // of device pages
    size_t retired_bytes;                // released when they were retired
    oomph_stuck_t *stuck;
    oomph_page_stack_t tiers[OOMPH_TIERS];
    bool splits; // blocks may lie on pages of both tiers: a copy went across (spill.h)
    size_t adopted_bytes[OOMPH_TIERS]; // memory in use that is no page of ours
    size_t peak_bytes[OOMPH_TIERS];    // of pages and adopted memory together
    // What the segments hold (segment.h), by size class of their blocks.
    oomph_counter_t segment, mapped_bytes;
    oomph_notices_t notices;
} oomph_pages_t;

void oomph_pages_init(oomph_pages_t *pages, const oomph_driver_t *driver, int device,
                      size_t page_bytes, oomph_host_limit_t *host);

// How many of `want` pages could be taken now, if so much of the reserve stays free.
// On the host there is none.
size_t oomph_pages_available(oomph_pages_t *pages, oomph_tier_t tier, size_t want,
                             oomph_reserve_t reserve);

// A spare page, or a new one. Limits are the caller's business (see above).
// Errors: OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER.
oomph_status_t oomph_page_take(oomph_pages_t *pages, oomph_tier_t tier,
                               oomph_handle_t *handle);
// Keeps the page as a spare. Cannot fail.
void oomph_page_give(oomph_pages_t *pages, oomph_tier_t tier, oomph_handle_t handle);

// Releases a page that nobody may have again, since others know it. If the driver
// refuses, it is released later.
void oomph_page_retire(oomph_pages_t *pages, oomph_tier_t tier, oomph_handle_t handle);

// Address space that begins at a multiple of `alignment`, which is at least a page.
// Errors: OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER (also if the driver aligned it less).
oomph_status_t oomph_pages_reserve(const oomph_pages_t *pages, size_t bytes,
                                   size_t alignment, oomph_addr_t *addr);

// Gives address space back, of which the first bytes are mapped. Where the driver does
// not unmap them, tries again later: then it gives false, and the pages that are mapped
// there are the caller's to retire.
bool oomph_pages_unreserve(oomph_pages_t *pages, oomph_addr_t addr, size_t bytes,
                           size_t mapped_bytes);

// Keeps a page made elsewhere as a spare. Errors: OOMPH_ERR_NO_MEMORY (host memory).
oomph_status_t oomph_page_adopt(oomph_pages_t *pages, oomph_tier_t tier,
                                oomph_handle_t handle);

// Releases spare pages until at most `keep` are left; gives the bytes released.
size_t oomph_pages_trim(oomph_pages_t *pages, oomph_tier_t tier, size_t keep);

// Bytes that are ours: pages, mapped or spare, and adopted memory.
static inline size_t oomph_pages_bytes(const oomph_pages_t *pages, oomph_tier_t tier)
{
    return pages->tiers[tier].count * pages->page_bytes + pages->adopted_bytes[tier];
}

static inline void oomph_pages_note_peak(oomph_pages_t *pages, oomph_tier_t tier)
{
    pages->peak_bytes[tier] =
        oomph_max(pages->peak_bytes[tier], oomph_pages_bytes(pages, tier));
}
