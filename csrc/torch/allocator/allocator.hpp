// allocator.hpp - PyTorch's allocator class: every call about memory, handed to the
// core or to the part of csrc/torch whose business it is. What it reports is
// reports.hpp.
//
// No lock is held while calling the core or what PyTorch handed us (pool filters,
// observers, trackers).
#pragma once
#include "torch/allocator/ipc.hpp"
#include "torch/allocator/reports.hpp"

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
class Allocator final : public Reports
{
    std::atomic<bool> enabled_{true};
    std::atomic<bool> was_disabled_{false}; // some memory may be the driver's own
    Imports imports_;

  public:
    using Reports::Reports;

    /* ---- Start */

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

    void emptyCache(MempoolId_t pool = {0, 0}) override
    {
        const Context caller = history_.gather(RecordContext::ALL);
        const History::Acting acting(caller);
        for (int device = 0; device < device_count_; device++) {
            size_t freed = 0;
            check(core->empty_cache(device, to_core(pool), &freed));
        }
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

    void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) // from 2.11 on
    {
        check(core->pool_set_flag(device, to_core(pool), OOMPH_POOL_ON_OOM, use));
    }

    void setUseOnOOM(DeviceIndex device, MempoolId_t pool)
    {
        setUseOnOOM(device, pool, true);
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
