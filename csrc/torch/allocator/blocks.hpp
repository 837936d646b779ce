// blocks.hpp - the core's blocks as PyTorch's snapshots have them.
#pragma once
#include "torch/base/core.hpp"

#include <algorithm>
#include <vector>

namespace oomph_torch
{

struct Walk {
    MempoolId_t pool;
    std::vector<oomph_block_info_t> blocks;
    std::vector<Context> contexts;
};

// Copies what it sees: the core's lock is held.
inline void visit(const oomph_block_info_t *block, void *context) noexcept
{
    auto *walk = static_cast<Walk *>(context);
    if (walk->pool != MempoolId_t{0, 0} && walk->pool != from_core(block->pool))
        return;
    keep_exception([&] {
        walk->blocks.push_back(*block);
        walk->contexts.push_back(
            block->user != nullptr ? *static_cast<Context *>(block->user) : nullptr);
    });
}

inline Walk walk(int device, const MempoolId_t &pool)
{
    Walk walk{pool, {}, {}};
    check(core->walk(device, &visit, &walk));
    return walk;
}

inline std::vector<oomph_block_info_t> live_blocks(int device, const MempoolId_t &pool)
{
    std::vector<oomph_block_info_t> blocks = walk(device, pool).blocks;
    blocks.erase(std::remove_if(blocks.begin(), blocks.end(),
                                [&](const oomph_block_info_t &block) {
                                    return block.state != OOMPH_BLOCK_USED ||
                                           from_core(block.pool) != pool;
                                }),
                 blocks.end());
    return blocks;
}

inline native::SegmentInfo new_segment(const oomph_block_info_t &block)
{
    native::SegmentInfo segment;
    segment.device = static_cast<DeviceIndex>(block.device);
    segment.address = block.addr;
    segment.stream = static_cast<TraceStream>(block.stream);
    segment.is_large = !block.small;
    segment.is_expandable = !block.adopted;
    segment.owner_private_pool_id = from_core(block.pool);
    return segment;
}

inline void add_block(native::SegmentInfo &segment, const oomph_block_info_t &block,
                      const Context &context)
{
    native::BlockInfo info;
    info.size = block.bytes;
    info.requested_size = block.requested_bytes;
    info.allocated = block.state == OOMPH_BLOCK_USED;
    info.active = block.state != OOMPH_BLOCK_FREE;
    info.context_when_allocated = context;
    segment.total_size += block.bytes;
    segment.requested_size += block.requested_bytes;
    segment.allocated_size += info.allocated ? block.bytes : 0;
    segment.active_size += info.active ? block.bytes : 0;
    segment.blocks.push_back(std::move(info));
}

// As for PyTorch's expandable segments: one entry for each range that is mapped
// without a gap.
inline std::vector<native::SegmentInfo> segments_of(int device, const MempoolId_t &pool)
{
    std::vector<native::SegmentInfo> segments;
    Walk seen = walk(device, pool);
    oomph_addr_t range = 0, end = 0;
    for (size_t i = 0; i < seen.blocks.size(); i++) {
        const oomph_block_info_t &block = seen.blocks[i];
        if (segments.empty() || block.segment_addr != range || block.addr != end)
            segments.push_back(new_segment(block));
        add_block(segments.back(), block, seen.contexts[i]);
        range = block.segment_addr;
        end = block.addr + block.bytes;
    }
    std::sort(segments.begin(), segments.end(),
              [](const auto &a, const auto &b) { return a.address < b.address; });
    return segments;
}

} // namespace oomph_torch
