/* access.h - who may use the pages that are mapped: the CPU, captures, other devices.
 *
 * The caller holds the device lock.
 */
#pragma once
#include "core/heap/heap.h"
#include "core/memory/page.h"

// Lets the CPU use those pages of a block that lie on the host. Errors:
// OOMPH_ERR_DRIVER.
oomph_status_t oomph_segment_open_to_cpu(const oomph_block_t *block,
                                         const oomph_pages_t *pages);

// Notes that a capture has used the memory of a block on host pages.
void oomph_segment_capture(const oomph_block_t *block);
// Of a segment, the bytes that captures have used so.
size_t oomph_segment_captured_bytes(const oomph_segment_t *segment);

// Gives the devices in pages->devices access to all that is mapped. Errors:
// OOMPH_ERR_DRIVER; blocks before the one that failed keep the access.
oomph_status_t oomph_segment_set_access(const oomph_segment_t *segment,
                                        const oomph_pages_t *pages);
