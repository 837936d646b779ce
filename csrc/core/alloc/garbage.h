/* garbage.h - the rung of the ladder on which the program's garbage is collected. */
#pragma once
#include "core/alloc/claim.h"

// Has the embedder collect garbage; `last`: an error comes next.
oomph_gain_t oomph_rung_garbage(oomph_claim_t *claim, bool last);
// Notes that the request found its memory after that.
void oomph_garbage_helped(const oomph_claim_t *claim);
