/* foresee.h - the large blocks of a step that the device had no room for.
 *
 * What a planner cannot make room for comes again in the next step: a block that one
 * operator needs and that the card cannot hold. It is then put on the host at once,
 * without waiting for what will not be enough.
 *
 * Pure: no driver, no lock, no clock. The caller holds the device lock.
 */
#pragma once
#include "core/base/util.h"

enum { OOMPH_FORESEE_MAX = 32 };

typedef struct oomph_foresight {
    size_t min_bytes; // of blocks that are meant; 0: none
    size_t count;
    struct {
        size_t bytes;
        // Blocks of this size born on host: in this step, in the one before, and the
        // most of the last two.
        uint32_t now, before, expected;
    } sizes[OOMPH_FORESEE_MAX];
} oomph_foresight_t;

// Whether a block of `bytes` that is not to be had at once is one of those.
bool oomph_foresees(const oomph_foresight_t *foresight, size_t bytes);
// A block of `bytes` was born on host. Sizes beyond OOMPH_FORESEE_MAX are not noted.
void oomph_foresight_note(oomph_foresight_t *foresight, size_t bytes);
// A step has ended.
void oomph_foresight_turn(oomph_foresight_t *foresight);
