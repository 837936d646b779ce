// torch.cpp - PyTorch's allocator class over the core.
//
// One final class between c10's CUDAAllocator and the functions of oomph.h, which it
// reaches through a table handed over in a capsule. It translates: requests, statuses
// into exceptions, blocks into snapshots, notices into traces. Memory itself, streams
// and pools are the core's business. What differs between PyTorch versions is handled
// here and in torch_*.hpp; the module remembers which version it was built for.
//
// No lock of the core is ever held here. `mutex_` guards what PyTorch hands us (pool
// filters, observers); it is not held while calling any of these, nor the core. No
// exception crosses a C frame: callbacks keep theirs in `pending`, and the call that
// caused it rethrows.
#include <Python.h>

#include "torch_blocks.hpp"
#include "torch_core.hpp"
#include "torch_history.hpp"
#include "torch_share.hpp"
#include "torch_version.hpp"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace oomph_torch
{
namespace
{

using c10::DataPtr;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::cuda::CUDAStream;
using PoolFilter = std::function<bool(cudaStream_t)>;
#if TORCH_MINOR >= 211
using InnerAllocator = std::shared_ptr<native::CUDAAllocator>;
#else
using InnerAllocator = native::CUDAAllocator *;
#endif

c10::Device cuda_device(int index)
{
    return {c10::DeviceType::CUDA, static_cast<DeviceIndex>(index)};
}

DeviceIndex current_device()
{
    DeviceIndex device = 0;
    cudaError_t error = c10::cuda::GetDevice(&device);
    if (C10_UNLIKELY(error != cudaSuccess))
        C10_CUDA_CHECK(error);
    return device;
}

// PyTorch's own streams are never destroyed; the id of any other is its handle.
bool lives_for_ever(const CUDAStream &stream, cudaStream_t handle)
{
    return stream.id() != reinterpret_cast<c10::StreamId>(handle);
}

std::string format_size(uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    double value = static_cast<double>(bytes);
    int unit = 0;
    char text[32];

    for (; unit < 3 && value >= 1024; unit++)
        value /= 1024;
    std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value,
                  units[unit]);
    return text;
}

void translate(const oomph_stats_by_kind_t &from, StatArray &to)
{
    for (int kind = 0; kind < OOMPH_STAT_KINDS; kind++) {
        Stat &stat = to.at(static_cast<size_t>(kind));
        stat.current = from[kind].current;
        stat.peak = from[kind].peak;
        stat.allocated = from[kind].allocated;
        stat.freed = from[kind].freed;
    }
}

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

class Allocator;
Allocator *self; // made once, never destroyed: tensors outlive static destructors
void delete_block(void *pointer);

class Allocator final : public native::CUDAAllocator
{
    struct Route {
        DeviceIndex device;
        MempoolId_t pool;
        PoolFilter filter;
    };

    std::mutex mutex_;
    std::atomic<int> device_count_{-1}; // -1: not initialised
    std::atomic<bool> enabled_{true};
    std::once_flag workspaces_known_;
    size_t workspace_bytes_[2] = {0, 0}; // of cuBLAS and cuBLASLt

    std::vector<Route> routes_; // newest last

    History history_;
    Imports imports_;
    std::vector<native::OutOfMemoryObserver> oom_observers_;
    std::atomic<bool> involved_{false}; // more than memory is asked for: pools, history

  public:
    /* ---- Start */

    void init(int device_count) override
    {
        int found = 0;
        check(core->start(&found));
        history_.start(device_count);
        device_count_ = device_count;
    }

    bool initialized() override
    {
        return device_count_ >= 0;
    }

    std::string name() override
    {
        return "oomph";
    }

    // PyTorch's switch for debugging. Kept, and without effect, as with expandable
    // segments.
    void enable(bool value) override
    {
        enabled_ = value;
    }

    bool isEnabled() const override
    {
        return enabled_;
    }

    /* ---- Giving and taking memory */

    DataPtr allocate(size_t bytes) override
    {
        DeviceIndex device = current_device();
        void *block = take_on_current_stream(device, bytes);
        return {block, block, &delete_block, cuda_device(device)};
    }

    void *raw_alloc(size_t bytes) override
    {
        return take_on_current_stream(current_device(), bytes);
    }

    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override
    {
        if (bytes == 0)
            return nullptr;
        return take(current_device(), bytes, stream, false);
    }

    void raw_delete(void *block) override
    {
        if (block == nullptr)
            return;
        announce_free(block);
        if (C10_UNLIKELY(history_.has_contexts() || history_.is_watched() ||
                         c10::memoryProfilingEnabled()))
            free_involved(block);
        else
            check_free(core->free(address(block), nullptr));
    }

    c10::DeleterFnPtr raw_deleter() const override
    {
        return &delete_block;
    }

    void copy_data(void *to, const void *from, std::size_t bytes) const override
    {
        C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
    }

    using CUDAAllocator::recordStream;
    void recordStream(const DataPtr &block, CUDAStream stream) override
    {
        // Storages that were shared with another process carry another deleter.
        if (block.get() != nullptr && block.get_deleter() == &delete_block)
            check(core->record_stream(address(block.get()), stream.stream(),
                                      lives_for_ever(stream, stream.stream())));
    }

    void *getBaseAllocation(void *block, size_t *bytes) override
    {
        oomph_block_info_t info;
        TORCH_CHECK(core->lookup(address(block), &info) == OOMPH_OK,
                    "invalid device pointer: ", block);
        if (bytes != nullptr)
            *bytes = info.segment_bytes;
        return pointer(info.segment_addr);
    }

    void cacheInfo(DeviceIndex device, size_t *largest) override
    {
        size_t free_bytes = 0;
        check(core->largest_free(device, &free_bytes));
        // 0 asks for a guess; otherwise the largest known so far comes in.
        *largest = std::max(*largest, free_bytes);
    }

    void emptyCache(MempoolId_t pool = {0, 0}) override
    {
        for (int device = 0; device < device_count_; device++) {
            size_t freed = 0;
            check(core->empty_cache(device, to_core(pool), &freed));
        }
    }

    /* ---- Limits and statistics */

    double getMemoryFraction(DeviceIndex device) override
    {
        check_device(device);
        return core->get_fraction(device);
    }

    void setMemoryFraction(double fraction, DeviceIndex device) override
    {
        check_device(device);
        check(core->set_fraction(device, fraction));
    }

    std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override
    {
        size_t free_bytes = 0, total_bytes = 0;
        check_device(device);
        check(core->memory_info(device, &free_bytes, &total_bytes));
        return {free_bytes, total_bytes};
    }

    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override
    {
        oomph_stats_t from;
        c10::CachingDeviceAllocator::DeviceStats to;

        check_device(device);
        check(core->get_stats(device, &from));
        translate(from.allocation, to.allocation);
        translate(from.segment, to.segment);
        translate(from.active, to.active);
        translate(from.inactive_split, to.inactive_split);
        translate(from.allocated_bytes, to.allocated_bytes);
        translate(from.reserved_bytes, to.reserved_bytes);
        translate(from.active_bytes, to.active_bytes);
        translate(from.inactive_split_bytes, to.inactive_split_bytes);
        translate(from.requested_bytes, to.requested_bytes);
        to.num_alloc_retries = from.retry_count;
        to.num_ooms = from.oom_count;
        to.num_sync_all_streams = from.sync_count;
        to.num_device_alloc = from.device_alloc_count;
        to.num_device_free = from.device_free_count;
        to.max_split_size = -1; // every block may be split
        return to;
    }

    void resetAccumulatedStats(DeviceIndex device) override
    {
        check_device(device);
        check(core->reset_accumulated_stats(device));
    }

    void resetPeakStats(DeviceIndex device) override
    {
        check_device(device);
        check(core->reset_peak_stats(device));
    }

    std::vector<native::StreamSegmentSize>
    getExpandableSegmentSizes(DeviceIndex device) override
    {
        std::vector<native::StreamSegmentSize> sizes;
        for (const native::SegmentInfo &segment : segments_of(device, {0, 0}))
            sizes.emplace_back(static_cast<cudaStream_t>(segment.stream),
                               !segment.is_large, segment.total_size);
        return sizes;
    }

    /* ---- Snapshots */

#if TORCH_MINOR >= 211
    native::SnapshotInfo snapshot(MempoolId_t pool = {0, 0},
                                  bool include_traces = true) override
#else
    native::SnapshotInfo snapshot(MempoolId_t pool = {0, 0}) override
#endif
    {
#if TORCH_MINOR < 211
        const bool include_traces = true;
#endif
        native::SnapshotInfo result;
        result.device_traces = history_.entries(include_traces);
        result.external_annotations = history_.annotations();
        for (int device = 0; device < device_count_; device++) {
            size_t active = 0;
            for (native::SegmentInfo &segment : segments_of(device, pool)) {
                active += segment.active_size;
                result.segments.push_back(std::move(segment));
            }
            history_.add(TraceEntry::SNAPSHOT, device, 0, active, nullptr, pool,
                         nullptr);
        }
        native::AllocatorConfigInfo &config = result.config_metadata;
        config = {};
        config.max_split_size = SIZE_MAX;
        config.expandable_segments = true;
        config.last_allocator_settings = "oomph";
#if TORCH_MINOR >= 213
        config.max_cached_size = SIZE_MAX;
#endif
        return result;
    }

    /* ---- Pools of graph captures and MemPools */

    void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                             PoolFilter filter) override
    {
        check(core->pool_begin(device, to_core(pool)));
        std::lock_guard<std::mutex> guard(mutex_);
        routes_.push_back({device, pool, std::move(filter)});
        update_involved();
    }

    void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override
    {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            auto found =
                std::find_if(routes_.begin(), routes_.end(), [&](const Route &route) {
                    return route.device == device && route.pool == pool;
                });
            TORCH_CHECK(found != routes_.end(),
                        "endAllocatePool: not currently recording to mempool_id");
            routes_.erase(found);
            update_involved();
        }
        check(core->pool_end(device));
    }

    void releasePool(DeviceIndex device, MempoolId_t pool) override
    {
        check(core->pool_release(device, to_core(pool)));
    }

    int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override
    {
        return core->pool_use_count(device, to_core(pool));
    }

    void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                            InnerAllocator inner) override
    {
        check(core->pool_retain(device, to_core(pool)));
        if (!inner)
            return;
        // Lives as long as the process: memory may come back to it at any time.
        auto *source = new Source{std::move(inner), device};
        oomph_source_t calls = {&Source::take, &Source::give, source};
        check(core->pool_set_source(device, to_core(pool), &calls));
    }

#if TORCH_MINOR >= 211
    void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override
#else
    void setUseOnOOM(DeviceIndex device, MempoolId_t pool) override
#endif
    {
#if TORCH_MINOR < 211
        const bool use = true;
#endif
        check(core->pool_set_flag(device, to_core(pool), OOMPH_POOL_ON_OOM, use));
    }

    void setNoSplit(DeviceIndex device, MempoolId_t pool) override
    {
        check(core->pool_set_flag(device, to_core(pool), OOMPH_POOL_NO_SPLIT, true));
    }

    bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                  const std::unordered_set<void *> &expected) override
    {
        std::vector<oomph_block_info_t> live = live_blocks(device, pool);
        return live.size() == expected.size() &&
               std::all_of(live.begin(), live.end(), [&](const auto &block) {
                   return expected.count(pointer(block.addr)) != 0;
               });
    }

    std::shared_ptr<native::AllocatorState>
    getCheckpointState(DeviceIndex device, MempoolId_t pool) override
    {
        auto state = std::make_shared<Checkpoint>();
        state->pool = pool;
        state->live = live_blocks(device, pool);
        return state;
    }

    // Frees what lives in the pool and puts what lived then back at its addresses.
    native::CheckpointDelta
    setCheckpointPoolState(DeviceIndex device,
                           std::shared_ptr<native::AllocatorState> saved) override
    {
        auto state = std::dynamic_pointer_cast<Checkpoint>(saved);
        TORCH_CHECK(state, "the state to restore is not of this allocator");
        native::CheckpointDelta delta;
        for (const oomph_block_info_t &block : live_blocks(device, state->pool)) {
            raw_delete(pointer(block.addr));
            delta.ptrs_freed.push_back(pointer(block.addr));
        }
        for (const oomph_block_info_t &block : state->live) {
            oomph_request_t request = {};
            request.device = static_cast<int>(device);
            request.bytes = block.requested_bytes;
            request.stream = block.stream;
            request.pool = block.pool;
            check(core->revive(&request, block.addr));
            void *at = pointer(block.addr);
            delta.dataptrs_allocd.emplace_back(at, at, &delete_block,
                                               cuda_device(device));
        }
        return delta;
    }

    /* ---- Between processes and devices */

    native::ShareableHandle shareIpcHandle(void *block) override
    {
        return share(block);
    }

    std::shared_ptr<void> getIpcDevPtr(std::string handle) override
    {
        return imports_.open(current_device(), handle);
    }

    void enablePeerAccess(DeviceIndex device, DeviceIndex device_to_access) override
    {
        check(core->enable_peer(device_to_access, device));
    }

    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device,
                            size_t bytes, cudaStream_t stream,
                            bool p2p_enabled) override
    {
        if (to_device == from_device || p2p_enabled)
            return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
        return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
    }

    /* ---- History, observers, trackers */

    bool isHistoryEnabled() override
    {
        return history_.is_recording();
    }

#if TORCH_MINOR >= 211
    void recordHistory(bool enabled, CreateContextFn recorder, size_t trace_max,
                       RecordContext when, bool clear,
                       const std::vector<std::string> &skipped_actions) override
#else
    void recordHistory(bool enabled, CreateContextFn recorder, size_t trace_max,
                       RecordContext when, bool clear) override
#endif
    {
#if TORCH_MINOR < 211
        const std::vector<std::string> skipped_actions;
#endif
        history_.record({enabled, recorder, trace_max, when, clear, skipped_actions});
        update_watch();
    }

    void pushCompileContext(std::string &name) override
    {
        history_.push_region(name);
    }

    void popCompileContext() override
    {
        history_.pop_region();
    }

    void recordAnnotation(
        const std::vector<std::pair<std::string, std::string>> &metadata) override
    {
        history_.annotate(current_device(), metadata);
    }

    void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override
    {
        std::lock_guard<std::mutex> guard(mutex_);
        oom_observers_.push_back(std::move(observer));
    }

    void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override
    {
        history_.add_tracker(std::move(tracker));
        update_watch();
    }

    void setUserMetadata(const std::string &metadata) override
    {
        history_.set_metadata(metadata);
    }

    std::string getUserMetadata() override
    {
        return history_.metadata();
    }

#if TORCH_MINOR >= 212
    // Nothing is ever rejected before the ladder has been climbed.
    void attachOomRejectionObserver(native::OomRejectionObserver) override
    {
    }

    Context getContextForPointer(const void *block) override
    {
        oomph_block_info_t info;
        if (core->lookup(address(block), &info) != OOMPH_OK || info.user == nullptr)
            return nullptr;
        return *static_cast<Context *>(info.user);
    }
#endif
#if TORCH_MINOR >= 214
    bool supportsUserMetadata() override
    {
        return true;
    }
#endif

    /* ---- Called by the core */

    // Pages are about to be unmapped.
    void on_unmapping(int device, oomph_addr_t addr, size_t bytes,
                      oomph_stream_t stream)
    {
        history_.add(TraceEntry::SEGMENT_UNMAP, device, addr, bytes, stream, {0, 0},
                     nullptr);
    }

    void on_notice(const oomph_notice_t &notice)
    {
        if (notice.kind == OOMPH_NOTICE_FREED) {
            history_.add(TraceEntry::FREE_COMPLETED, notice.device, notice.addr,
                         notice.bytes, notice.stream, from_core(notice.pool), nullptr);
            return;
        }
        // Pages are mapped below the layer that knows whose they are.
        oomph_block_info_t owner = {};
        core->lookup(notice.addr, &owner);
        history_.add(TraceEntry::SEGMENT_MAP, notice.device, notice.addr, notice.bytes,
                     owner.stream, from_core(owner.pool), nullptr);
    }

  private:
    static void check_free(oomph_status_t status)
    {
        // In a forked child the memory is the parent's.
        if (C10_UNLIKELY(status != OOMPH_OK && status != OOMPH_ERR_STATE))
            check(status);
    }

    void free_involved(void *block)
    {
        Context context = history_.gather(RecordContext::ALL);
        oomph_block_info_t freed = {};
        check_free(core->free(address(block), &freed));
        delete static_cast<Context *>(freed.user);
        history_.add_free(freed, context);
        report_to_profiler(freed.addr, -static_cast<int64_t>(freed.bytes),
                           freed.device);
    }

    void *take_on_current_stream(DeviceIndex device, size_t bytes)
    {
        CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
        cudaStream_t handle = stream.stream();
        return take(device, bytes, handle, lives_for_ever(stream, handle));
    }

    // PyTorch's own error for a device that is not there.
    void check_device(DeviceIndex device) const
    {
        TORCH_CHECK(device >= 0 && device < device_count_, "Invalid device argument ",
                    static_cast<int>(device), ": did you call init?");
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
        request.essential = is_workspace(bytes);
        if (C10_UNLIKELY(involved_))
            return take_involved(request);
        oomph_status_t status = core->malloc(&request, &addr);
        if (C10_UNLIKELY(status != OOMPH_OK || is_pending()))
            fail(status, request, addr, nullptr);
        announce_alloc(addr);
        profile_alloc(addr, device);
        return pointer(addr);
    }

    // The same where pools, stacks, traces or trackers have a part in it.
    void *take_involved(oomph_request_t &request)
    {
        oomph_addr_t addr = 0;

        request.pool = to_core(route(request.device, request.stream));
        Context context = history_.gather(RecordContext::STATE);
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

    // cuBLAS makes its workspaces when first used, perhaps when memory is short.
    // Nothing but the size tells a workspace.
    bool is_workspace(size_t bytes)
    {
        if (bytes <= (1 << 20))
            return false;
        std::call_once(workspaces_known_, [&] {
            workspace_bytes_[0] = at::cuda::getChosenWorkspaceSize();
            workspace_bytes_[1] = at::cuda::getCUDABlasLtWorkspaceSize();
        });
        return bytes == workspace_bytes_[0] || bytes == workspace_bytes_[1];
    }

    MempoolId_t route(int device, cudaStream_t stream)
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

    [[noreturn]] void fail_out_of_memory(const oomph_request_t &request,
                                         const Context &context)
    {
        std::string reason = core->error_detail();
        size_t free_bytes = 0, total_bytes = 0;
        oomph_stats_t stats;
        check(core->memory_info(request.device, &free_bytes, &total_bytes));
        check(core->get_stats(request.device, &stats));

        history_.add(TraceEntry::OOM, request.device, free_bytes, request.bytes,
                     request.stream, from_core(request.pool), context);
        std::vector<native::OutOfMemoryObserver> observers;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            observers = oom_observers_;
        }
        for (const auto &observer : observers)
            observer(request.device, request.bytes, total_bytes, free_bytes);

        uint64_t allocated = static_cast<uint64_t>(stats.allocated_bytes[0].current);
        uint64_t reserved = static_cast<uint64_t>(stats.reserved_bytes[0].current);
        uint64_t limit = static_cast<uint64_t>(stats.device_limit_bytes);
        uint64_t host = static_cast<uint64_t>(stats.tier_bytes[OOMPH_TIER_HOST]);
        TORCH_CHECK_WITH(
            OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
            format_size(request.bytes), ". GPU ", request.device,
            " has a total capacity of ", format_size(total_bytes),
            limit != 0 ? " (a limit that oomph was given)" : "", " of which ",
            format_size(free_bytes), " is free. Of the allocated memory ",
            format_size(allocated), " is allocated by PyTorch, and ",
            format_size(reserved > allocated ? reserved - allocated : 0),
            " is reserved by PyTorch but unallocated. ",
            host != 0 ? format_size(host) + " of it is on the host. " : "",
            "oomph: ", reason, ".");
    }

    /* ---- Telling others */

    static void announce_alloc(oomph_addr_t addr)
    {
        if (const auto *interpreter = c10::impl::GPUTrace::get_trace())
            (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, addr);
    }

    static void announce_free(void *block)
    {
        if (const auto *interpreter = c10::impl::GPUTrace::get_trace())
            (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, address(block));
    }

    // What the block occupies, as it is told when it is freed.
    static void profile_alloc(oomph_addr_t addr, int device)
    {
        oomph_block_info_t info;
        if (C10_UNLIKELY(c10::memoryProfilingEnabled()) &&
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

    void update_watch()
    {
        core->watch(history_.is_watched());
        std::lock_guard<std::mutex> guard(mutex_);
        update_involved();
    }

    // The caller holds mutex_.
    void update_involved()
    {
        involved_ = history_.is_watched() || !routes_.empty();
    }
};

// Called by destructors: what goes wrong must not leave here.
void delete_block(void *block)
{
    try {
        self->raw_delete(block);
    } catch (const std::exception &error) {
        TORCH_WARN(error.what());
    }
}

/* ---- Hooks of the core */

void free_memory(int)
{
    keep_exception([] {
        for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
            c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    });
}

void unmapping(int device, oomph_addr_t addr, size_t bytes, oomph_stream_t stream)
{
    keep_exception([&] { self->on_unmapping(device, addr, bytes, stream); });
}

void notice(const oomph_notice_t *notice)
{
    keep_exception([&] { self->on_notice(*notice); });
}

/* ---- The module */

// Makes the class PyTorch's allocator. Throws if PyTorch has initialised its own.
void install_allocator()
{
    oomph_hooks_t hooks = {};
    hooks.free_memory = &free_memory;
    hooks.unmapping = &unmapping;
    hooks.notice = &notice;
    core->set_hooks(&hooks);
    if (self == nullptr)
        self = new Allocator;
    std::shared_ptr<native::CUDAAllocator> shared(self, [](native::CUDAAllocator *) {});
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(shared);
    // torch.accelerator.memory_* asks here; a priority of 0 is ignored by some
    // versions.
    c10::SetAllocator(c10::DeviceType::CUDA, self, UINT8_MAX);
}

PyObject *install(PyObject *, PyObject *)
{
    core = static_cast<const oomph_api_t *>(PyCapsule_Import(OOMPH_CAPSULE, 0));
    if (core == nullptr)
        return nullptr;
    if (core->abi != OOMPH_ABI || core->bytes != sizeof(oomph_api_t)) {
        PyErr_SetString(
            PyExc_ImportError,
            "oomph._C and oomph._torch are of different builds; reinstall oomph");
        return nullptr;
    }
    try {
        install_allocator();
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"install", install, METH_NOARGS, "Makes oomph PyTorch's CUDA allocator."},
    {"version_of", version_of, METH_O, "The version counter of a tensor, kept."},
    {"version_now", version_now, METH_O, "What version_of()'s result counts now."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "oomph._torch",
                          "PyTorch's allocator class, over oomph._C.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

} // namespace
} // namespace oomph_torch

PyMODINIT_FUNC PyInit__torch()
{
    PyObject *module = PyModule_Create(&oomph_torch::definition);
    if (module != nullptr &&
        PyModule_AddStringConstant(module, "built_for",
                                   C10_STRINGIZE(TORCH_VERSION_MAJOR) "." C10_STRINGIZE(
                                       TORCH_VERSION_MINOR)) < 0) {
        Py_DECREF(module);
        return nullptr;
    }
    return module;
}
