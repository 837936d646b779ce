/* memory.h - taking and freeing memory, and which streams use it. */
#pragma once
#include "oomph/block.h"
#include "oomph/types.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct oomph_request {
    int device;
    size_t bytes;
    size_t block_bytes; // the block shall occupy at least so many; 0: as many as asked
    oomph_stream_t stream;
    bool stream_lives;    // the stream is never destroyed, so its handle names it
    bool may_use_reserve; // a library's workspace: may use half of the headroom
    oomph_pool_id_t pool;
    void *user;        // kept with the block, returned when it is freed
    oomph_site_t site; // who asks; 0: unknown
} oomph_request_t;

// Gives a block of at least `bytes` that may be used on `stream` at once, aligned to
// 512 bytes. `bytes` 0 gives address 0. Where no device page can be had the block is
// put on the host, if the settings allow it: it is used like any other.
// Errors: OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER, OOMPH_ERR_INVALID (no such device).
oomph_status_t oomph_malloc(const oomph_request_t *request, oomph_addr_t *addr);

// Takes the block back; it is reused on its own stream at once, and elsewhere when all
// work that the device has been given so far has finished. Waits for the GPU only if
// guard is SYNC, and for the lock only if guard is UNMAP or `freed` is wanted (may be
// NULL): the block as it was, with FREE or DEFERRED as its state. `user` is the
// caller's again, a DEFERRED block has none. Address 0 is ignored. Errors:
// OOMPH_ERR_INVALID if no such block is in use; nothing is freed.
oomph_status_t oomph_free(oomph_addr_t addr, oomph_block_info_t *freed);

// What this thread frees from now on, until the end, is garbage that was collected: the
// embedder's hook says so, in one thread at a time. The end gives the bytes.
void oomph_collection_begin(void);
size_t oomph_collection_end(void);

// Whether what this thread asks for from now on is an attempt, whose caller does
// without where there is no memory: garbage is then collected before an error as seldom
// as before a block falls back to the host. Gives what held before.
bool oomph_set_attempt(bool on);
bool oomph_is_attempt(void);

// Says that `stream`, of this or another device, uses the block too: once freed, it is
// reused only when the work queued there at that time has finished. `stream_lives` as
// in oomph_request_t. A foreign address is ignored. Errors: OOMPH_ERR_NO_MEMORY (host
// memory), OOMPH_ERR_DRIVER, OOMPH_ERR_INVALID (no such device).
oomph_status_t oomph_record_stream(oomph_addr_t addr, int stream_device,
                                   oomph_stream_t stream, bool stream_lives);

// Says that work is queued on a stream, which is never destroyed if it `lives`, though
// nothing may ever be allocated on it. Errors: OOMPH_ERR_DRIVER, OOMPH_ERR_NO_MEMORY
// (host memory), OOMPH_ERR_INVALID (no such device).
oomph_status_t oomph_know_stream(int device, oomph_stream_t stream, bool lives);
