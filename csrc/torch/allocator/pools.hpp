// pools.hpp - the pools of graph captures and of MemPools: whose requests go to
// which, where the memory of one comes from, and what lived in one at a checkpoint.
#pragma once
#include "torch/allocator/history.hpp"

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oomph_torch
{

using PoolFilter = std::function<bool(cudaStream_t)>;

// The memory of a MemPool that has an allocator of its own. Whoever watches hears of
// each segment, once it is there and before it goes: NCCL registers them so.
class Source
{
    struct Segment {
        size_t bytes;
        oomph_stream_t stream;
    };

    InnerAllocator inner_;
    DeviceIndex device_;
    MempoolId_t pool_;
    History &history_;
    std::mutex mutex_;
    std::unordered_map<oomph_addr_t, Segment> segments_; // by address

  public:
    Source(InnerAllocator inner, DeviceIndex device, const MempoolId_t &pool,
           History &history)
        : inner_(std::move(inner)), device_(device), pool_(pool), history_(history)
    {
    }

    static oomph_addr_t take(void *context, size_t bytes, oomph_stream_t stream)
    {
        oomph_addr_t addr = 0;
        keep_exception([&] {
            addr = static_cast<Source *>(context)->take_segment(bytes, stream);
        });
        return addr;
    }

    static void give(void *context, oomph_addr_t addr)
    {
        auto *source = static_cast<Source *>(context);
        keep_exception([&] { source->report_free(addr); });
        keep_exception([&] { source->inner_->raw_delete(pointer(addr)); });
    }

  private:
    oomph_addr_t take_segment(size_t bytes, oomph_stream_t stream)
    {
        c10::cuda::CUDAGuard guard(device_);
        oomph_addr_t addr = address(inner_->raw_alloc(bytes));
        oomph_block_info_t info;
        if (addr != 0 && core->lookup(addr, &info) == OOMPH_OK) {
            // Behind it is oomph (plain.c): no detour then.
            const oomph_source_t none = {};
            inner_->raw_delete(pointer(addr));
            check(core->pool_set_source(device_, to_core(pool_), &none));
            return 0;
        }
        if (addr == 0)
            return 0;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            segments_[addr] = {bytes, stream};
        }
        history_.add_done(TraceEntry::SEGMENT_ALLOC, device_, addr, bytes, stream,
                          pool_);
        return addr;
    }

    void report_free(oomph_addr_t addr)
    {
        Segment segment = {};
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (auto found = segments_.extract(addr))
                segment = found.mapped();
        }
        history_.add_done(TraceEntry::SEGMENT_FREE, device_, addr, segment.bytes,
                          segment.stream, pool_);
    }
};

// The live blocks of a pool when a graph was captured (cudagraph trees).
struct Checkpoint final : native::AllocatorState {
    MempoolId_t pool;
    std::vector<oomph_block_info_t> live;
};

// Which pool a request goes to: the newest whose filter wants the stream. A filter is
// PyTorch's: it is called with no lock held.
class Routes
{
    struct Route {
        DeviceIndex device;
        MempoolId_t pool;
        PoolFilter filter;
    };

    mutable std::mutex mutex_;
    std::vector<Route> routes_; // newest last

  public:
    void add(DeviceIndex device, const MempoolId_t &pool, PoolFilter filter)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        routes_.push_back({device, pool, std::move(filter)});
    }

    void remove(DeviceIndex device, const MempoolId_t &pool)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        auto found =
            std::find_if(routes_.begin(), routes_.end(), [&](const Route &route) {
                return route.device == device && route.pool == pool;
            });
        TORCH_CHECK(found != routes_.end(),
                    "endAllocatePool: not currently recording to mempool_id");
        routes_.erase(found);
    }

    bool any() const
    {
        std::lock_guard<std::mutex> guard(mutex_);
        return !routes_.empty();
    }

    MempoolId_t find(int device, cudaStream_t stream) const
    {
        std::vector<Route> routes;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            routes = routes_;
        }
        for (auto i = routes.rbegin(); i != routes.rend(); ++i)
            if (i->device == device && i->filter(stream))
                return i->pool;
        return {0, 0};
    }
};

} // namespace oomph_torch
