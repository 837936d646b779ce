// reports.hpp - the part of PyTorch's interface that reports and does not allocate:
// limits and statistics, snapshots, history, who hears of what happens.
#pragma once
#include "torch/allocator/blocks.hpp"
#include "torch/allocator/nccl.hpp"
#include "torch/allocator/requests.hpp"

namespace oomph_torch
{

// The base of the class that allocates (allocator.hpp), with what both need.
class Reports : public native::CUDAAllocator
{
  protected:
    std::atomic<int> device_count_{-1}; // -1: not initialised
    Settings settings_;
    History history_;
    Requests requests_{history_};

    // PyTorch's own error for a device that is not there.
    void check_device(DeviceIndex device) const
    {
        TORCH_CHECK(device >= 0 && device < device_count_, "Invalid device argument ",
                    static_cast<int>(device), ": did you call init?");
    }

  public:
    // `replaced` is the name of the allocator in whose place this one comes.
    explicit Reports(std::string replaced) : settings_(std::move(replaced))
    {
    }

    // From now on it hears of PyTorch's settings.
    void follow_settings()
    {
        settings_.follow([this] {
            Settings::update();
            requests_.update_involved();
        });
    }

    std::string name() override
    {
        return settings_.name();
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

    void cacheInfo(DeviceIndex device, size_t *largest) override
    {
        size_t free_bytes = 0;
        check(core->largest_free(device, &free_bytes));
        // 0 asks for a guess; otherwise the largest known so far comes in.
        *largest = std::max(*largest, free_bytes);
    }

    /* ---- Snapshots */

    native::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) // from 2.11 on
    {
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

    native::SnapshotInfo snapshot(MempoolId_t pool)
    {
        return snapshot(pool, true);
    }

    /* ---- History, observers, trackers */

    bool isHistoryEnabled() override
    {
        return history_.is_recording();
    }

    void recordHistory(bool enabled, CreateContextFn recorder, size_t trace_max,
                       RecordContext when, bool clear,
                       const std::vector<std::string> &skipped_actions) // from 2.11 on
    {
        history_.record({enabled, recorder, trace_max, when, clear, skipped_actions});
        update_watch();
    }

    void recordHistory(bool enabled, CreateContextFn recorder, size_t trace_max,
                       RecordContext when, bool clear)
    {
        recordHistory(enabled, recorder, trace_max, when, clear, {});
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

    // From 2.12 on. Nothing is ever rejected before the ladder has been climbed.
    void attachOomRejectionObserver(OomRejectionObserver)
    {
    }

    Context getContextForPointer(const void *block)
    {
        oomph_block_info_t info;
        if (core->lookup(address(block), &info) != OOMPH_OK || info.user == nullptr)
            return nullptr;
        return *static_cast<Context *>(info.user);
    }

    bool supportsUserMetadata() // from 2.14 on
    {
        return true;
    }

    void annotateMemory(const void *block, const std::string &note) // likewise
    {
        if (!isHistoryEnabled())
            return;
        oomph_block_info_t info;
        TORCH_CHECK(core->lookup(address(block), &info) == OOMPH_OK &&
                        info.state == OOMPH_BLOCK_USED && info.addr == address(block),
                    "annotateMemory() was given no address of a block in use: ", block);
        history_.add(annotating<TraceEntry>(), info.device, info.addr,
                     info.requested_bytes, info.stream, from_core(info.pool),
                     history_.gather(RecordContext::ALLOC), note);
    }

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
    void update_watch()
    {
        core->watch(history_.is_watched());
        requests_.update_involved();
    }
};

} // namespace oomph_torch
