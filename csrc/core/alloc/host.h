/* host.h - blocks that fall back to the host. */
#pragma once
#include "core/alloc/request.h"

// Backs the request by host pages: gives the block, or what happened.
oomph_rung_result_t oomph_rung_host(oomph_request_context_t *ctx,
                                    oomph_block_t **block);
// Makes host pages until `count` are spare, or no more are to be had. That is slow, so
// the lock is given up. Errors: OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER; what was made by
// then is spare.
oomph_status_t oomph_make_host_pages(oomph_device_t *device, size_t count);
