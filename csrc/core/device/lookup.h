/* lookup.h - the blocks and segments of a device, found and described. Under its lock.
 */
#pragma once
#include "core/device/device.h"

// The segment that contains `addr`, or NULL.
oomph_segment_t *oomph_device_segment(const oomph_device_t *device, oomph_addr_t addr);

void oomph_describe(const oomph_block_t *block, oomph_block_info_t *info);

// Shows every block of a device, whatever its state.
typedef void (*oomph_each_t)(const oomph_block_t *block, void *context);
void oomph_device_each(const oomph_device_t *device, oomph_each_t each, void *context);
