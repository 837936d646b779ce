/* split.h - blocks that lie on the device as far as there are pages, and then on the
 * host. The caller holds the device lock.
 */
#pragma once
#include "core/alloc/request.h"

// Whether the block may be split.
bool oomph_splits(const oomph_request_context_t *ctx);
// How many device pages it is to begin on; 0: it lies on the host alone. Waits for
// those whose work has not finished: kernels would wait longer for the host.
size_t oomph_split_pages(const oomph_request_context_t *ctx);
// Whether so many device pages can be had now. If not, frees some, or has the block lie
// on the host alone (ctx->whole): ask anew.
bool oomph_split_have_pages(oomph_request_context_t *ctx, size_t count);
// Maps both parts into a hole, which has room for them, and takes the block from there.
// The host pages are spare. What fails leaves pages mapped and free.
oomph_rung_result_t oomph_split_map(oomph_request_context_t *ctx,
                                    const oomph_block_t *hole, size_t on_device,
                                    size_t on_host, oomph_block_t **block);
