/* steal.h - free pages on their way from one hole to another. */
#pragma once
#include "core/device/reach.h"

typedef struct oomph_survey {
    size_t now;   // pages whose work has finished
    size_t later; // pages whose work has not, and can be waited for:
    size_t own;   // of these, those that the thief's stream may have at once
} oomph_survey_t;

// Looks which epochs have passed; gives the newest epoch that can be waited for.
uint64_t oomph_newest_epoch(oomph_device_t *device);
// Counts the free pages within reach.
oomph_survey_t oomph_steal_survey(oomph_device_t *device, const oomph_reach_t *reach);
// Unmaps up to `want` free pages whose work has finished; they become spare. Gives how
// many. May give up the lock for a while to announce what is unmapped. `thief` is the
// stream that wants them; NULL: the driver.
size_t oomph_steal(oomph_device_t *device, const oomph_reach_t *reach, size_t want,
                   const oomph_stream_state_t *thief);
// Maps up to `want` of the pages that the thief's stream may have at once into the span
// that is kept (alias.h). Gives how many.
size_t oomph_steal_own(oomph_device_t *device, const oomph_reach_t *reach, size_t want);
// From now on frees are stamped; what was freed before counts as freed now.
void oomph_note_pressure(oomph_device_t *device);
// Stamps the pages of a block that is being freed.
void oomph_stamp(const oomph_block_t *block);
