// requests.hpp - taking and giving blocks, for whoever asks: where the pool, the
// stack of the caller and what others hear of it come from.
//
// `mutex_` guards the observers; it is not held while one is called, nor the core.
#pragma once
#include "torch/allocator/forked.hpp"
#include "torch/allocator/history.hpp"
#include "torch/allocator/pools.hpp"
#include "torch/allocator/settings.hpp"
#include "torch/allocator/sites.hpp"
#include "torch/allocator/stats.hpp"
#include "torch/allocator/workspaces.hpp"

#include <c10/cuda/CUDAFunctions.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace oomph_torch
{

using c10::cuda::CUDAStream;

inline c10::Device cuda_device(int index)
{
    return {c10::DeviceType::CUDA, static_cast<DeviceIndex>(index)};
}

inline DeviceIndex current_device()
{
    DeviceIndex device = 0;
    cudaError_t error = c10::cuda::GetDevice(&device);
    if (C10_UNLIKELY(error != cudaSuccess))
        C10_CUDA_CHECK(error);
    return device;
}

// PyTorch's own streams are never destroyed; the id of any other is its handle.
inline bool lives_for_ever(const CUDAStream &stream, cudaStream_t handle)
{
    return stream.id() != reinterpret_cast<c10::StreamId>(handle);
}

inline void announce_alloc(oomph_addr_t addr)
{
    if (const auto *interpreter = c10::impl::GPUTrace::get_trace())
        (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, addr);
}

inline void announce_free(void *block)
{
    if (const auto *interpreter = c10::impl::GPUTrace::get_trace())
        (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, address(block));
}

/* ---- Memory that no allocator has a part in */

inline void give_to_driver(void *block)
{
    announce_free(block);
    if (cudaError_t error = cudaFree(block); error != cudaSuccess) {
        TORCH_WARN("cudaFree: ", cudaGetErrorString(error));
    }
}

inline void *take_from_driver(size_t bytes)
{
    void *block = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&block, bytes));
    announce_alloc(address(block));
    return block;
}

class Requests
{
    History &history_;
    Routes routes_;
    // More than memory is asked for: pools, history, sizes that are rounded.
    std::atomic<bool> involved_{false};
    Workspaces workspaces_;
    std::mutex mutex_; // also of changes of involved_
    std::vector<native::OutOfMemoryObserver> oom_observers_;

  public:
    explicit Requests(History &history) : history_(history)
    {
    }

    void route(DeviceIndex device, const MempoolId_t &pool, PoolFilter filter)
    {
        routes_.add(device, pool, std::move(filter));
        update_involved();
    }

    void unroute(DeviceIndex device, const MempoolId_t &pool)
    {
        routes_.remove(device, pool);
        update_involved();
    }

    void observe_oom(native::OutOfMemoryObserver observer)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        oom_observers_.push_back(std::move(observer));
    }

    // To be called when the history has begun or ceased to be watched, or sizes to be
    // rounded.
    void update_involved()
    {
        std::lock_guard<std::mutex> guard(mutex_);
        involved_ = history_.is_watched() || routes_.any() || Settings::rounds();
    }

    void *take_on_current_stream(DeviceIndex device, size_t bytes)
    {
        CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
        cudaStream_t handle = stream.stream();
        return take(device, bytes, handle, lives_for_ever(stream, handle));
    }

    void *take(DeviceIndex device, size_t bytes, cudaStream_t stream, bool stream_lives)
    {
        oomph_request_t request = {};
        oomph_addr_t addr = 0;

        if (bytes == 0)
            return nullptr;
        request.device = static_cast<int>(device);
        request.bytes = bytes;
        request.stream = stream;
        request.stream_lives = stream_lives;
        request.may_use_reserve = workspaces_.asks(bytes);
        request.site = Sites::of_request(bytes);
        if (C10_UNLIKELY(involved_))
            return take_involved(request);
        oomph_status_t status = core->malloc(&request, &addr);
        if (C10_UNLIKELY(status != OOMPH_OK || is_pending()))
            fail(status, request, addr, nullptr);
        announce_alloc(addr);
        profile_alloc(addr, device);
        return pointer(addr);
    }

    void give(void *block)
    {
        announce_free(block);
        if (C10_UNLIKELY(history_.wants_frees() || has_profiler()))
            free_involved(block);
        else
            check_free(core->free(address(block), nullptr), block);
    }

  private:
    static void check_free(oomph_status_t status, const void *block)
    {
        if (C10_LIKELY(status == OOMPH_OK))
            return;
        if (status != OOMPH_ERR_STATE)
            check(status);
        else if (has_left_cuda) // in a forked child the memory is the parent's
            freed_since.push_back(address(block));
    }

    void free_involved(void *block)
    {
        Context freer = history_.gather(RecordContext::ALL);
        const History::Acting acting(freer);
        oomph_block_info_t freed = {};
        check_free(core->free(address(block), &freed), block);
        const std::unique_ptr<Context> taker(static_cast<Context *>(freed.user));
        history_.add_free(freed, freer, taker ? *taker : nullptr);
        report_to_profiler(freed.addr, -static_cast<int64_t>(freed.bytes),
                           freed.device);
    }

    // The same where pools, stacks, traces or trackers have a part in it.
    void *take_involved(oomph_request_t &request)
    {
        oomph_addr_t addr = 0;

        request.pool = to_core(routes_.find(request.device, request.stream));
        if (Settings::rounds())
            request.block_bytes = Settings::rounded(request.bytes);
        Context context = history_.gather(RecordContext::STATE);
        const History::Acting acting(context);
        auto kept = context ? std::make_unique<Context>(context) : nullptr;
        request.user = kept.get();
        oomph_status_t status = core->malloc(&request, &addr);
        if (status != OOMPH_OK || is_pending())
            fail(status, request, addr, context);
        [[maybe_unused]] Context *owned_by_block = kept.release();
        announce_alloc(addr);
        history_.add(TraceEntry::ALLOC, request.device, addr, request.bytes,
                     request.stream, from_core(request.pool), context);
        profile_alloc(addr, request.device);
        return pointer(addr);
    }

    // A callback threw, or there is no block.
    [[noreturn]] void fail(oomph_status_t status, const oomph_request_t &request,
                           oomph_addr_t addr, const Context &context)
    {
        if (status == OOMPH_OK)
            core->free(addr, nullptr);
        rethrow_pending();
        if (status == OOMPH_ERR_NO_MEMORY)
            fail_out_of_memory(request, context);
        check(status);
        TORCH_INTERNAL_ASSERT(false, "oomph: a failure without a reason");
    }

    [[noreturn]] void fail_out_of_memory(const oomph_request_t &request,
                                         const Context &context)
    {
        const OutOfMemory oom(request);
        history_.add(TraceEntry::OOM, request.device, oom.free_bytes, request.bytes,
                     request.stream, from_core(request.pool), context);
        std::vector<native::OutOfMemoryObserver> observers;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            observers = oom_observers_;
        }
        for (const auto &observer : observers)
            observer(request.device, request.bytes, oom.total_bytes, oom.free_bytes);
        oom.raise();
    }

    /* ---- Telling others */

    // Whether a profiler watches this thread, which may want to hear of memory.
    static bool has_profiler()
    {
        return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) !=
               nullptr;
    }

    // What the block occupies, as it is reported when it is freed.
    static void profile_alloc(oomph_addr_t addr, int device)
    {
        oomph_block_info_t info;
        if (C10_UNLIKELY(has_profiler()) && c10::memoryProfilingEnabled() &&
            core->lookup(addr, &info) == OOMPH_OK)
            report_to_profiler(addr, static_cast<int64_t>(info.bytes), device);
    }

    static void report_to_profiler(oomph_addr_t addr, int64_t bytes, int device)
    {
        oomph_stats_t stats;

        if (!c10::memoryProfilingEnabled() ||
            core->get_stats(device, &stats) != OOMPH_OK)
            return;
        c10::reportMemoryUsageToProfiler(
            pointer(addr), bytes, static_cast<size_t>(stats.allocated_bytes[0].current),
            static_cast<size_t>(stats.reserved_bytes[0].current), cuda_device(device));
    }
};

} // namespace oomph_torch
