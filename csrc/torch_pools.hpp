// torch_pools.hpp - the pools of graph captures and of MemPools: whose requests go to
// which, where the memory of one comes from, and what lived in one at a checkpoint.
#pragma once
#include "torch_core.hpp"

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <vector>

namespace oomph_torch
{

using PoolFilter = std::function<bool(cudaStream_t)>;
#if TORCH_MINOR >= 211
using InnerAllocator = std::shared_ptr<native::CUDAAllocator>;
#else
using InnerAllocator = native::CUDAAllocator *;
#endif

// The memory of a MemPool that has an allocator of its own.
struct Source {
    InnerAllocator inner;
    DeviceIndex device;

    static oomph_addr_t take(void *context, size_t bytes, oomph_stream_t)
    {
        auto *source = static_cast<Source *>(context);
        oomph_addr_t addr = 0;
        keep_exception([&] {
            c10::cuda::CUDAGuard guard(source->device);
            addr = address(source->inner->raw_alloc(bytes));
        });
        return addr;
    }

    static void give(void *context, oomph_addr_t addr)
    {
        auto *source = static_cast<Source *>(context);
        keep_exception([&] { source->inner->raw_delete(pointer(addr)); });
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
