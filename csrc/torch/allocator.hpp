// allocator.hpp - PyTorch's allocator class: every call that it may make, handed
// to the core or to the part of csrc/torch whose business it is.
//
// No lock is held while calling the core or what PyTorch handed us (pool filters,
// observers, trackers).
#pragma once
#include "torch/blocks.hpp"
#include "torch/ipc.hpp"
#include "torch/nccl.hpp"
#include "torch/requests.hpp"

#include <c10/cuda/CUDAGuard.h>

#include <unordered_set>

namespace oomph_torch
{

using c10::DataPtr;

// From here on a size is a mistake, which PyTorch says in words of its own.
inline constexpr size_t EXABYTE = size_t{1} << 60;

class Allocator;
inline Allocator
    *self; // made once, never destroyed: tensors outlive static destructors
inline void delete_block(void *pointer);

// PyTorch's interface. Requests become the core's, statuses exceptions, blocks
// snapshots, notices traces.
class Allocator final : public native::CUDAAllocator
{
    std::atomic<int> device_count_{-1}; // -1: not initialised
    std::atomic<bool> enabled_{true};
    std::atomic<bool> was_disabled_{false}; // some memory may be the driver's own
    Settings settings_;
    History history_;
    Requests requests_{history_};
    Imports imports_;

  public:
    /* ---- Start */

    // `replaced` is the name of the allocator in whose place this one comes.
    explicit Allocator(std::string replaced) : settings_(std::move(replaced))
    {
        settings_.follow([this] {
            Settings::update();
            requests_.update_involved();
        });
    }

    void init(int device_count) override
    {
        int found = 0;
        settings_.read();
        requests_.update_involved();
        check(core->start(&found));
        if (Settings::memory_fraction() < 1)
            for (int device = 0; device < device_count; device++)
                check(core->set_fraction(device, Settings::memory_fraction()));
        history_.start(device_count);
        device_count_ = device_count;
    }

    bool initialized() override
    {
        return device_count_ >= 0;
    }

    std::string name() override
    {
        return settings_.name();
    }

    // PyTorch's switch for debugging: without, each tensor is memory of its own.
    void enable(bool value) override
    {
        enabled_ = value;
        was_disabled_ = was_disabled_ || !value;
    }

    bool isEnabled() const override
    {
        return enabled_;
    }

    /* ---- Giving and taking memory */

    DataPtr allocate(size_t bytes) override
    {
        TORCH_CHECK_WITH(OutOfMemoryError, bytes < EXABYTE,
                         "CUDA out of memory. Tried to allocate more than 1EB memory.");
        DeviceIndex device = current_device();
        if (C10_UNLIKELY(!enabled_.load(std::memory_order_relaxed)))
            return from_driver(take_from_driver(bytes), device);
        void *block = requests_.take_on_current_stream(device, bytes);
        return {block, block, &delete_block, cuda_device(device)};
    }

    void *raw_alloc(size_t bytes) override
    {
        if (C10_UNLIKELY(!isEnabled()))
            return bytes == 0 ? nullptr : take_from_driver(bytes);
        return requests_.take_on_current_stream(current_device(), bytes);
    }

    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override
    {
        if (bytes == 0)
            return nullptr;
        if (C10_UNLIKELY(!isEnabled()))
            return take_from_driver(bytes);
        return requests_.take(current_device(), bytes, stream, false);
    }

    void raw_delete(void *block) override
    {
        if (block == nullptr)
            return;
        if (C10_UNLIKELY(was_disabled_) && !is_ours(block))
            give_to_driver(block);
        else
            requests_.give(block);
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
            check(core->record_stream(address(block.get()), stream.device_index(),
                                      stream.stream(),
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
        const Context caller = history_.gather(RecordContext::ALL);
        const History::Acting acting(caller);
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
        check_device(device);
        return stats_of(device);
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
        if (pool == MempoolId_t{0, 0})
            check_no_registration();
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
        result.config_metadata = Settings::describe();
        return result;
    }

    /* ---- Pools of graph captures and MemPools */

    void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                             PoolFilter filter) override
    {
        CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
        check(core->pool_begin(device, to_core(pool), stream.stream(),
                               lives_for_ever(stream, stream.stream())));
        requests_.route(device, pool, std::move(filter));
    }

    void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override
    {
        requests_.unroute(device, pool);
        CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
        check(core->pool_end(device, stream.stream(),
                             lives_for_ever(stream, stream.stream())));
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
        if (!inner || &*inner == this)
            return; // the memory is ours
        // Lives as long as the process: memory may come back to it at any time.
        auto *source = new Source(std::move(inner), device, pool, history_);
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
            request.block_bytes = block.bytes;
            request.stream = block.stream;
            request.pool = block.pool;
            request.site = block.site;
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

    // Also to memory that is not ours: of libraries, and of MemPools' own allocators.
    void enablePeerAccess(DeviceIndex device, DeviceIndex device_to_access) override
    {
        c10::cuda::CUDAGuard guard(device);
        cudaError_t error = cudaDeviceEnablePeerAccess(device_to_access, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled)
            cudaGetLastError(); // it is no error, and must not stay the last one
        else
            C10_CUDA_CHECK(error);
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
        requests_.observe_oom(std::move(observer));
    }

    void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override
    {
        note_tracker();
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
        history_.add_done(TraceEntry::SEGMENT_UNMAP, device, addr, bytes, stream,
                          {0, 0});
    }

    void on_notice(const oomph_notice_t &notice)
    {
        if (notice.kind == OOMPH_NOTICE_FREED) {
            history_.add_completed(notice);
            return;
        }
        // Pages are mapped below the layer that knows whose they are.
        oomph_block_info_t owner = {};
        core->lookup(notice.addr, &owner);
        history_.add_done(TraceEntry::SEGMENT_MAP, notice.device, notice.addr,
                          notice.bytes, owner.stream, from_core(owner.pool));
    }

  private:
    static DataPtr from_driver(void *block, DeviceIndex device)
    {
        return {block, block, &give_to_driver, cuda_device(device)};
    }

    static bool is_ours(void *block)
    {
        oomph_block_info_t info;
        return core->lookup(address(block), &info) == OOMPH_OK;
    }

    // PyTorch's own error for a device that is not there.
    void check_device(DeviceIndex device) const
    {
        TORCH_CHECK(device >= 0 && device < device_count_, "Invalid device argument ",
                    static_cast<int>(device), ": did you call init?");
    }

    void update_watch()
    {
        core->watch(history_.is_watched());
        requests_.update_involved();
    }
};

// Called by destructors: what goes wrong must not leave here.
inline void delete_block(void *block)
{
    try {
        self->raw_delete(block);
    } catch (const std::exception &error) {
        TORCH_WARN(error.what());
    }
}

} // namespace oomph_torch
