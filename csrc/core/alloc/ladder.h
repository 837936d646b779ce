/* ladder.h - where a block comes from when no quick list has one. */
#pragma once
#include "core/alloc/request.h"

// A block without any driver call: its planned place, or the best fit. NULL: a miss.
oomph_block_t *oomph_take(oomph_request_context_t *ctx);

// After a miss: climbs the ladder until there is a block, or no rung helps. Errors:
// OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER.
oomph_status_t oomph_reclaim(oomph_request_context_t *ctx, oomph_block_t **block);
