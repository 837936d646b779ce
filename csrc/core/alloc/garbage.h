/* garbage.h - the rung of the ladder on which the program's garbage is collected. */
#pragma once
#include "core/alloc/request.h"

// Has the embedder collect garbage; `last`: an error comes next.
oomph_rung_result_t oomph_rung_garbage(oomph_request_context_t *ctx, bool last);
// Notes that the request found its memory after that.
void oomph_garbage_helped(const oomph_request_context_t *ctx);
