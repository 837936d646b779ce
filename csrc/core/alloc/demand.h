/* demand.h - what steps need, as captures want to know it. Bytes of blocks in use. */
#pragma once
#include "core/alloc/request.h"

// Notes what was asked for, and the block; NULL: there was none.
void oomph_demand_note(const oomph_request_context_t *ctx, oomph_block_t *block);
// A capture begins.
void oomph_demand_begin(oomph_device_t *device);
// A step has ended, with so many bytes of blocks in use at its peak.
void oomph_demand_end_step(oomph_device_t *device, int64_t high);

// Whether not all that steps needed lately had room on the device.
bool oomph_demand_was_short(const oomph_device_t *device);
// The largest block that they asked for.
size_t oomph_demand_largest(const oomph_device_t *device);
// What a step is taken to have in use at its peak.
int64_t oomph_demand_expected(oomph_device_t *device);
// Free bytes that pools in use keep from `group`. Of its own, those in pieces that are
// too small for what it has asked for, where that matters.
size_t oomph_demand_locked(const oomph_device_t *device, const oomph_group_t *group);
// Of the device's room, the bytes that are not for blocks which return to it: a step
// needs them at its peak, captures will, or graphs keep them.
size_t oomph_demand_kept(oomph_device_t *device, int64_t device_peak);
