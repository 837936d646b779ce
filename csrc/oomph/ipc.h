/* ipc.h - blocks that other processes and other devices use.
 *
 * The exporter keeps the block until every importer has dropped it; nobody but the
 * caller knows when that is. The pages of a block that was exported never serve another
 * address: once free, they serve the same one or are returned to the driver.
 */
#pragma once
#include "oomph/types.h"

#include <stddef.h>

// What names the pages of a block to another process: plain bytes to be sent there.
typedef struct oomph_ticket {
    void *data; // of malloc(), the caller's to free()
    size_t bytes;
} oomph_ticket_t;

// Names the pages of the block in use that contains `addr`, which lies `offset` bytes
// behind the first of them. Each page takes a file descriptor for as long as it exists.
// Errors: OOMPH_ERR_INVALID (no block in use, or one on the host), OOMPH_ERR_NO_MEMORY
// (host memory, descriptors), OOMPH_ERR_DRIVER.
oomph_status_t oomph_export(oomph_addr_t addr, oomph_ticket_t *ticket, size_t *offset);

// Maps pages that another process named, while it still has them, for use on `device`,
// theirs. Errors: OOMPH_ERR_INVALID (no ticket), OOMPH_ERR_DRIVER (also if the system
// does not give us the process's descriptors), OOMPH_ERR_NO_MEMORY.
oomph_status_t oomph_import(int device, const oomph_ticket_t *ticket,
                            oomph_addr_t *addr);
// Unmaps them after waiting for the device; while a stream captures, later.
// Errors: OOMPH_ERR_INVALID.
oomph_status_t oomph_unimport(int device, oomph_addr_t addr);

// Makes all memory of `device` accessible to `peer`, now and in future. Where it fails,
// some of it is accessible already; it may be tried again. Errors: of opening, for
// either device, and OOMPH_ERR_DRIVER.
oomph_status_t oomph_enable_peer(int device, int peer);
