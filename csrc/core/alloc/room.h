/* room.h - the rung of the ladder on which others leave to make room. */
#pragma once
#include "core/alloc/request.h"

// Has the embedder send away as much as is missing.
oomph_rung_result_t oomph_rung_room(oomph_request_context_t *ctx);
