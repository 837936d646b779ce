/* page.c - the physical pages of a device, within its limit and beside its reserve.
 *
 * They come one by one from the driver and go back one by one, so that each can be
 * mapped anywhere. That costs a call to make a page and one to release it; so a page
 * that nothing is mapped to is kept on a stack, the newest on top, and taking a spare
 * one costs no call. What the driver would still give is asked for seldom, as that
 * would be another call for each page: when the last answer, less what was taken since,
 * might not be enough, and after each GiB.
 */
#include "core/memory/page.h"

#include <stdlib.h>
#include <sys/resource.h>

#define RECHECK_BYTES ((size_t)1 << 30) // taken before the driver is asked again

void oomph_pages_init(oomph_pages_t *pages, const oomph_driver_t *driver, int device,
                      size_t page_bytes, oomph_host_limit_t *host)
{
    *pages = (oomph_pages_t){.driver = driver,
                             .device = device,
                             .page_bytes = page_bytes,
                             .devices = 1ull << device,
                             .host_kind = OOMPH_HOST_AUTO,
                             .host = host,
                             .host_pages_max_bytes = UINT64_MAX,
                             .limit_bytes = SIZE_MAX};
}

// Bytes that the driver would still give beyond what is kept free. Asks it when the
// answer may decide, or has grown old.
static size_t driver_room(oomph_pages_t *pages, size_t want_bytes, size_t kept_bytes)
{
    size_t total;

    if (pages->known_free_bytes < kept_bytes + want_bytes ||
        pages->unchecked_bytes >= RECHECK_BYTES) {
        if (pages->driver->memory_info(pages->device, &pages->known_free_bytes,
                                       &total) != OOMPH_OK)
            pages->known_free_bytes = 0;
        pages->unchecked_bytes = 0;
    }
    return pages->known_free_bytes - oomph_min(pages->known_free_bytes, kept_bytes);
}

static size_t host_room(const oomph_pages_t *pages)
{
    uint64_t used = atomic_load(&pages->host->used_bytes);
    uint64_t limit = pages->host->limit_bytes;

    if (limit > pages->host_pages_max_bytes)
        limit = pages->host_pages_max_bytes;
    if (pages->host_kind == OOMPH_HOST_OFF || used >= limit)
        return 0;
    return (size_t)(limit - used);
}

size_t oomph_pages_available(oomph_pages_t *pages, oomph_tier_t tier, size_t want,
                             oomph_reserve_t reserve)
{
    const oomph_page_stack_t *stack = &pages->tiers[tier];
    if (stack->spare_count >= want)
        return want;

    size_t want_bytes = (want - stack->spare_count) * pages->page_bytes;
    size_t room;
    if (tier == OOMPH_TIER_HOST) {
        room = host_room(pages);
    } else {
        size_t taken = oomph_pages_bytes(pages, tier);
        room = pages->limit_bytes > taken ? pages->limit_bytes - taken : 0;
        size_t kept_bytes = pages->reserve_bytes / OOMPH_RESERVE_WHOLE * reserve;
        room = oomph_min(room, driver_room(pages, want_bytes, kept_bytes));
    }
    return oomph_min(want, stack->spare_count + room / pages->page_bytes);
}

// Makes sure that every page that exists, and one more, may become spare or retired.
static oomph_status_t make_room(oomph_page_stack_t *stack)
{
    if (stack->count < stack->capacity)
        return OOMPH_OK;

    size_t capacity = stack->capacity == 0 ? 256 : stack->capacity * 2;
    oomph_handle_t *spare = realloc(stack->spare, capacity * sizeof *spare);
    if (spare == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for page records");
    stack->spare = spare;
    oomph_handle_t *retired = realloc(stack->retired, capacity * sizeof *retired);
    if (retired == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for page records");
    stack->retired = retired;
    stack->capacity = capacity;
    return OOMPH_OK;
}

oomph_status_t oomph_page_take(oomph_pages_t *pages, oomph_tier_t tier,
                               oomph_handle_t *handle)
{
    oomph_page_stack_t *stack = &pages->tiers[tier];

    if (stack->spare_count > 0) {
        *handle = stack->spare[--stack->spare_count];
        return OOMPH_OK;
    }
    oomph_status_t status = make_room(stack);
    if (status != OOMPH_OK)
        return status;
    if (tier == OOMPH_TIER_HOST &&
        !oomph_host_limit_take(pages->host, pages->page_bytes))
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "the host limit is reached");
    status = pages->driver->create(pages->device, tier, pages->host_kind,
                                   pages->page_bytes, handle);
    if (status != OOMPH_OK) {
        if (tier == OOMPH_TIER_HOST)
            oomph_host_limit_give(pages->host, pages->page_bytes);
        else
            pages->known_free_bytes = 0;
        return status;
    }
    stack->count++;
    oomph_pages_note_peak(pages, tier);
    if (tier == OOMPH_TIER_DEVICE) {
        pages->create_count++;
        pages->unchecked_bytes += pages->page_bytes;
        pages->known_free_bytes -=
            oomph_min(pages->known_free_bytes, pages->page_bytes);
    }
    return OOMPH_OK;
}

void oomph_page_give(oomph_pages_t *pages, oomph_tier_t tier, oomph_handle_t handle)
{
    oomph_page_stack_t *stack = &pages->tiers[tier];

    oomph_assert(stack->spare_count < stack->capacity);
    stack->spare[stack->spare_count++] = handle;
}

// The driver has more addresses than any card has memory: a limit of the process is
// the reason, if it has one.
static oomph_status_t no_addresses(size_t bytes)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return OOMPH_ERR_NO_MEMORY;
    return oomph_fail(OOMPH_ERR_NO_MEMORY,
                      "no address space is left for %s: this process may use %s of it "
                      "(ulimit -v), which PyTorch and the card share: raise that limit",
                      oomph_size_text(bytes).text,
                      oomph_size_text((size_t)limit.rlim_cur).text);
}

oomph_status_t oomph_pages_reserve(const oomph_pages_t *pages, size_t bytes,
                                   size_t alignment, oomph_addr_t *addr)
{
    oomph_addr_t found;

    oomph_status_t status = pages->driver->reserve(bytes, alignment, &found);
    if (status == OOMPH_ERR_NO_MEMORY)
        return no_addresses(bytes);
    if (status != OOMPH_OK)
        return status;
    if (found % alignment != 0) {
        pages->driver->unreserve(found, bytes);
        return oomph_fail(OOMPH_ERR_DRIVER,
                          "the driver reserved addresses at 0x%llx, which is not "
                          "aligned to %s as requested",
                          (unsigned long long)found, oomph_size_text(alignment).text);
    }
    *addr = found;
    return OOMPH_OK;
}

static bool unreserve(const oomph_pages_t *pages, const oomph_stuck_t *range)
{
    const oomph_driver_t *driver = pages->driver;

    if (range->mapped_bytes > 0 &&
        driver->unmap(range->addr, range->mapped_bytes) != OOMPH_OK)
        return false;
    driver->unreserve(range->addr, range->bytes); // if it fails: there is plenty
    return true;
}

bool oomph_pages_unreserve(oomph_pages_t *pages, oomph_addr_t addr, size_t bytes,
                           size_t mapped_bytes)
{
    oomph_stuck_t range = {pages->stuck, addr, bytes, mapped_bytes};

    if (unreserve(pages, &range))
        return true;
    oomph_stuck_t *stuck = malloc(sizeof *stuck);
    if (stuck != NULL) { // or else it is never tried again, and stays mapped
        *stuck = range;
        pages->stuck = stuck;
    }
    return false;
}

static void unreserve_stuck(oomph_pages_t *pages)
{
    for (oomph_stuck_t **link = &pages->stuck; *link != NULL;) {
        oomph_stuck_t *stuck = *link;
        if (!unreserve(pages, stuck)) {
            link = &stuck->next;
            continue;
        }
        *link = stuck->next;
        free(stuck);
    }
}

static bool release(oomph_pages_t *pages, oomph_tier_t tier, oomph_handle_t handle)
{
    if (pages->driver->release(handle) != OOMPH_OK)
        return false;
    pages->tiers[tier].count--;
    if (tier == OOMPH_TIER_DEVICE) {
        pages->release_count++;
        pages->known_free_bytes += pages->page_bytes;
    } else {
        oomph_host_limit_give(pages->host, pages->page_bytes);
    }
    return true;
}

static void release_retired(oomph_pages_t *pages, oomph_tier_t tier)
{
    oomph_page_stack_t *stack = &pages->tiers[tier];

    while (stack->retired_count > 0 &&
           release(pages, tier, stack->retired[stack->retired_count - 1])) {
        stack->retired_count--;
        pages->retired_bytes += pages->page_bytes;
    }
}

void oomph_page_retire(oomph_pages_t *pages, oomph_tier_t tier, oomph_handle_t handle)
{
    oomph_page_stack_t *stack = &pages->tiers[tier];

    oomph_assert(stack->retired_count < stack->capacity);
    stack->retired[stack->retired_count++] = handle;
    release_retired(pages, tier);
}

oomph_status_t oomph_page_adopt(oomph_pages_t *pages, oomph_tier_t tier,
                                oomph_handle_t handle)
{
    oomph_status_t status = make_room(&pages->tiers[tier]);
    if (status != OOMPH_OK)
        return status;
    pages->tiers[tier].count++;
    oomph_pages_note_peak(pages, tier);
    oomph_page_give(pages, tier, handle);
    return OOMPH_OK;
}

size_t oomph_pages_trim(oomph_pages_t *pages, oomph_tier_t tier, size_t keep)
{
    oomph_page_stack_t *stack = &pages->tiers[tier];
    size_t freed_bytes = 0;

    unreserve_stuck(pages);
    release_retired(pages, tier);
    while (stack->spare_count > keep &&
           release(pages, tier, stack->spare[stack->spare_count - 1])) {
        stack->spare_count--; // or else it stays a spare
        freed_bytes += pages->page_bytes;
    }
    return freed_bytes;
}
