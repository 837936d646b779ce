/* spill.h - host memory in place of device memory: which kind works, and pages made
 * ahead of need, since making them is slow.
 */
#pragma once
#include "core/memory/page.h"

#include <pthread.h>

// Speeds of the link between device and host, in bytes per second; 0: not measured.
typedef struct oomph_link {
    int64_t to_host, to_device;
} oomph_link_t;

// Finds the first kind of host memory that works, by using it, and measures the link.
// `wanted` is a kind to insist on, or OOMPH_HOST_AUTO. Sets pages->host_kind, to
// OOMPH_HOST_OFF if none works, and pages->splits. The caller holds the device lock.
// Waits for its own copies only.
void oomph_spill_probe(oomph_pages_t *pages, oomph_host_kind_t wanted,
                       oomph_link_t *link);

// Host pages that a thread makes ahead. Has a lock of its own.
typedef struct oomph_ahead {
    pthread_mutex_t lock;
    pthread_cond_t wanted, made;
    pthread_t thread;
    bool running, stopping, making;
    const oomph_pages_t *pages; // of which only what never changes is read
    size_t target;              // pages to have ready
    size_t count, capacity;
    oomph_handle_t *handles; // ready
} oomph_ahead_t;

// A new host page within the limit. Slow; needs no lock, since it reads only what
// never changes once a kind of pages is known. Errors: OOMPH_ERR_NO_MEMORY,
// OOMPH_ERR_DRIVER.
oomph_status_t oomph_host_page_make(const oomph_pages_t *pages, oomph_handle_t *handle);
// Gives one back that is not among the pages yet.
void oomph_host_page_drop(const oomph_pages_t *pages, oomph_handle_t handle);

void oomph_ahead_init(oomph_ahead_t *ahead, const oomph_pages_t *pages);
// Asks for `count` pages to be ready soon; starts the thread the first time.
void oomph_ahead_want(oomph_ahead_t *ahead, size_t count);
// Moves up to `count` ready pages to the spare ones; gives how many. The caller holds
// the device lock.
size_t oomph_ahead_take(oomph_ahead_t *ahead, oomph_pages_t *pages, size_t count);
// Has none ready any more: waits for the page that is being made, and moves all to the
// spare ones; gives how many. Before memory is refused: what is made ahead counts, too.
// The caller holds the device lock.
size_t oomph_ahead_recall(oomph_ahead_t *ahead, oomph_pages_t *pages);
// Releases what is ready, and has no more made until some is wanted again. The caller
// holds the device lock.
void oomph_ahead_drop(oomph_ahead_t *ahead);
// Ends the thread and releases what it had ready.
void oomph_ahead_stop(oomph_ahead_t *ahead);
