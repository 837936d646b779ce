/* spill.c - each kind of host memory is tried with one page, mapped and copied to.
 *
 * Only a try tells: some platforms refuse what their attributes promise. The first kind
 * that works is taken, and tried no more. It costs a few dozen copies of a page.
 *
 * A thread makes pages ahead, up to a target, since the system takes seconds to make
 * and lock tens of GiB. They count as used host memory meanwhile, so they are called
 * back before memory is refused.
 */
#include "core/memory/spill.h"

#include <stdlib.h>

enum { COPIES = 16, AHEAD_MAX = 1 << 20 };

/* ---- Probing */

// A page mapped alone, in address space of its own.
typedef struct lone_page {
    oomph_addr_t addr;
    oomph_handle_t handle;
} lone_page_t;

// What cannot be undone stays as it is: address space that is still mapped is not
// freed.
static bool unmap_at(const oomph_pages_t *pages, const lone_page_t *page)
{
    bool unmapped = pages->driver->unmap(page->addr, pages->page_bytes) == OOMPH_OK;

    pages->driver->release(page->handle);
    return unmapped;
}

static void unmap_page(const oomph_pages_t *pages, const lone_page_t *page)
{
    if (unmap_at(pages, page))
        pages->driver->unreserve(page->addr, pages->page_bytes);
}

// Makes a page and maps it at page->addr. What fails is undone, but for the map that
// cannot be, which `stuck` says.
static oomph_status_t map_at(const oomph_pages_t *pages, oomph_tier_t tier,
                             oomph_host_kind_t kind, lone_page_t *page, bool *stuck)
{
    const oomph_driver_t *driver = pages->driver;
    size_t bytes = pages->page_bytes;

    oomph_status_t status =
        driver->create(pages->device, tier, kind, bytes, &page->handle);
    if (status != OOMPH_OK)
        return status;
    status = driver->map(page->addr, bytes, page->handle);
    if (status != OOMPH_OK) {
        driver->release(page->handle);
        return status;
    }
    status = driver->set_access(page->addr, bytes, 1ull << pages->device,
                                tier == OOMPH_TIER_HOST);
    if (status != OOMPH_OK)
        *stuck = !unmap_at(pages, page);
    return status;
}

static oomph_status_t map_page(const oomph_pages_t *pages, oomph_tier_t tier,
                               oomph_host_kind_t kind, lone_page_t *page)
{
    bool stuck = false;

    oomph_status_t status =
        oomph_pages_reserve(pages, pages->page_bytes, pages->page_bytes, &page->addr);
    if (status != OOMPH_OK)
        return status;
    status = map_at(pages, tier, kind, page, &stuck);
    if (status != OOMPH_OK && !stuck)
        pages->driver->unreserve(page->addr, pages->page_bytes);
    return status;
}

static int64_t speed(const oomph_pages_t *pages, oomph_addr_t to, oomph_addr_t from)
{
    int64_t ns = 0;

    if (pages->driver->time_copy(pages->device, to, from, pages->page_bytes, COPIES,
                                 &ns) != OOMPH_OK ||
        ns <= 0)
        return 0;
    return (int64_t)((double)pages->page_bytes * COPIES * 1e9 / (double)ns);
}

// Copies both ways between the host page and a device page, which may not be had; then
// the link stays unmeasured, and only the mapping has been proved.
static void measure(const oomph_pages_t *pages, oomph_addr_t host, oomph_link_t *link)
{
    lone_page_t page;

    if (map_page(pages, OOMPH_TIER_DEVICE, OOMPH_HOST_AUTO, &page) != OOMPH_OK)
        return;
    link->to_host = speed(pages, host, page.addr);
    link->to_device = speed(pages, page.addr, host);
    unmap_page(pages, &page);
}

static bool try_pages(const oomph_pages_t *pages, oomph_host_kind_t kind,
                      oomph_link_t *link)
{
    lone_page_t page;

    if (map_page(pages, OOMPH_TIER_HOST, kind, &page) != OOMPH_OK)
        return false;
    measure(pages, page.addr, link);
    unmap_page(pages, &page);
    return true;
}

// Whether copies go across from a device page to a host page behind it, both ways. A
// page that cannot be had, or a driver that refuses, is a no.
static bool copies_across(const oomph_pages_t *pages, oomph_host_kind_t kind)
{
    size_t bytes = pages->page_bytes;
    lone_page_t other, parts[OOMPH_TIERS];
    bool stuck = false, works = false;
    oomph_addr_t base;
    int mapped = 0;

    if (map_page(pages, OOMPH_TIER_HOST, kind, &other) != OOMPH_OK)
        return false;
    if (oomph_pages_reserve(pages, 2 * bytes, bytes, &base) != OOMPH_OK)
        goto undo_other;
    for (; mapped < 2; mapped++) {
        oomph_tier_t tier = mapped == 0 ? OOMPH_TIER_DEVICE : OOMPH_TIER_HOST;
        parts[mapped].addr = base + (size_t)mapped * bytes;
        if (map_at(pages, tier, kind, &parts[mapped], &stuck) != OOMPH_OK)
            break;
    }
    works = mapped == 2 && speed(pages, other.addr, base + bytes / 2) > 0 &&
            speed(pages, base + bytes / 2, other.addr) > 0;
    while (mapped-- > 0)
        stuck |= !unmap_at(pages, &parts[mapped]);
    if (!stuck)
        pages->driver->unreserve(base, 2 * bytes);
undo_other:
    unmap_page(pages, &other);
    return works;
}

static bool try_pinned(const oomph_pages_t *pages, oomph_link_t *link)
{
    oomph_addr_t addr;

    if (pages->driver->pinned_alloc(pages->device, pages->page_bytes, &addr) !=
        OOMPH_OK)
        return false;
    measure(pages, addr, link);
    pages->driver->pinned_free(pages->device, addr);
    return true;
}

void oomph_spill_probe(oomph_pages_t *pages, oomph_host_kind_t wanted,
                       oomph_link_t *link)
{
    for (int kind = OOMPH_HOST_NUMA; kind < OOMPH_HOST_OFF; kind++) {
        if (wanted != OOMPH_HOST_AUTO && wanted != (oomph_host_kind_t)kind)
            continue;
        bool works = kind == OOMPH_HOST_PINNED
                         ? try_pinned(pages, link)
                         : try_pages(pages, (oomph_host_kind_t)kind, link);
        if (works) {
            pages->host_kind = (oomph_host_kind_t)kind;
            pages->splits = kind != OOMPH_HOST_PINNED &&
                            copies_across(pages, (oomph_host_kind_t)kind);
            return;
        }
    }
    pages->host_kind = OOMPH_HOST_OFF;
}

/* ---- Making pages */

oomph_status_t oomph_host_page_make(const oomph_pages_t *pages, oomph_handle_t *handle)
{
    uint64_t bytes = pages->page_bytes;

    if (!oomph_host_limit_take(pages->host, bytes))
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "the host limit is reached");
    oomph_status_t status = pages->driver->create(pages->device, OOMPH_TIER_HOST,
                                                  pages->host_kind, bytes, handle);
    if (status != OOMPH_OK)
        oomph_host_limit_give(pages->host, bytes);
    return status;
}

void oomph_host_page_drop(const oomph_pages_t *pages, oomph_handle_t handle)
{
    pages->driver->release(handle);
    oomph_host_limit_give(pages->host, pages->page_bytes);
}

/* ---- Pages made ahead */

void oomph_ahead_init(oomph_ahead_t *ahead, const oomph_pages_t *pages)
{
    *ahead = (oomph_ahead_t){.pages = pages};
    pthread_mutex_init(&ahead->lock, NULL);
    pthread_cond_init(&ahead->wanted, NULL);
    pthread_cond_init(&ahead->made, NULL);
}

static void *work(void *argument)
{
    oomph_ahead_t *ahead = argument;
    oomph_handle_t handle = 0;

    pthread_mutex_lock(&ahead->lock);
    while (!ahead->stopping) {
        if (ahead->count >= ahead->target) {
            pthread_cond_wait(&ahead->wanted, &ahead->lock);
            continue;
        }
        ahead->making = true;
        pthread_mutex_unlock(&ahead->lock);
        oomph_status_t status = oomph_host_page_make(ahead->pages, &handle);
        pthread_mutex_lock(&ahead->lock);
        ahead->making = false;
        pthread_cond_broadcast(&ahead->made);
        if (status == OOMPH_OK)
            ahead->handles[ahead->count++] = handle;
        else
            ahead->target = ahead->count; // until somebody asks again
    }
    pthread_mutex_unlock(&ahead->lock);
    return NULL;
}

static bool have_room(oomph_ahead_t *ahead, size_t count)
{
    if (count <= ahead->capacity)
        return true;
    oomph_handle_t *handles = realloc(ahead->handles, count * sizeof *handles);
    if (handles == NULL)
        return false;
    ahead->handles = handles;
    ahead->capacity = count;
    return true;
}

void oomph_ahead_want(oomph_ahead_t *ahead, size_t count)
{
    pthread_mutex_lock(&ahead->lock);
    count = oomph_min(count, AHEAD_MAX);
    // The thread writes at `count` without looking at `capacity`, so `target` stays
    // within.
    if (have_room(ahead, count + 1))
        ahead->target = count;
    if (!ahead->running && !ahead->stopping && count > 0)
        ahead->running = pthread_create(&ahead->thread, NULL, work, ahead) == 0;
    pthread_cond_signal(&ahead->wanted);
    pthread_mutex_unlock(&ahead->lock);
}

size_t oomph_ahead_take(oomph_ahead_t *ahead, oomph_pages_t *pages, size_t count)
{
    size_t taken = 0;

    pthread_mutex_lock(&ahead->lock);
    while (taken < count && ahead->count > 0 &&
           oomph_page_adopt(pages, OOMPH_TIER_HOST, ahead->handles[ahead->count - 1]) ==
               OOMPH_OK) {
        ahead->count--;
        taken++;
    }
    pthread_mutex_unlock(&ahead->lock);
    return taken;
}

// Has no more made: waits for the page that is being made.
static void make_no_more(oomph_ahead_t *ahead)
{
    pthread_mutex_lock(&ahead->lock);
    ahead->target = 0;
    while (ahead->making)
        pthread_cond_wait(&ahead->made, &ahead->lock);
    pthread_mutex_unlock(&ahead->lock);
}

size_t oomph_ahead_recall(oomph_ahead_t *ahead, oomph_pages_t *pages)
{
    make_no_more(ahead);
    return oomph_ahead_take(ahead, pages, SIZE_MAX);
}

void oomph_ahead_drop(oomph_ahead_t *ahead)
{
    make_no_more(ahead);
    pthread_mutex_lock(&ahead->lock);
    while (ahead->count > 0)
        oomph_host_page_drop(ahead->pages, ahead->handles[--ahead->count]);
    pthread_mutex_unlock(&ahead->lock);
}

void oomph_ahead_stop(oomph_ahead_t *ahead)
{
    pthread_mutex_lock(&ahead->lock);
    ahead->stopping = true;
    pthread_cond_signal(&ahead->wanted);
    pthread_mutex_unlock(&ahead->lock);
    if (ahead->running)
        pthread_join(ahead->thread, NULL);
    ahead->running = false;
    oomph_ahead_drop(ahead);
    free(ahead->handles);
    ahead->handles = NULL;
    ahead->capacity = 0;
}
