// history.hpp - what torch.cuda.memory._record_memory_history() keeps: a ring of
// trace entries for each device, annotations, and the stacks of callers. Trackers hear
// of each entry at once.
//
// `mutex_` guards the lists; it is not held while a tracker or a recorder is called,
// which may take the GIL.
#pragma once
#include "torch/base/core.hpp"

#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oomph_torch
{

using native::CreateContextFn;
using native::RecordContext;
using native::TraceEntry;
using Annotation = decltype(native::SnapshotInfo::external_annotations)::value_type;

class History
{
    // Names of the compiled regions that this thread is in, innermost last.
    static inline thread_local std::vector<std::string> regions;
    // What the program notes on the entries of this thread.
    static inline thread_local std::string noted;
    // The stack of the call that this thread is in; NULL: unknown.
    static inline thread_local const Context *acting = nullptr;

    std::mutex mutex_;
    std::atomic<bool> recording_{false};
    bool contexts_ = false; // blocks in use may carry a context
    std::atomic<bool> watched_{false};
    std::atomic<bool> wants_frees_{false};
    std::atomic<CreateContextFn> recorder_{nullptr};
    std::atomic<RecordContext> record_when_{RecordContext::NEVER};
    size_t max_ = 1; // entries kept of each device, and annotations
    std::vector<TraceEntry::Action> skipped_actions_;
    std::vector<native::AllocatorTraceTracker> trackers_;
    std::vector<std::vector<TraceEntry>> rings_; // by device, oldest first from next
    std::vector<size_t> next_;
    std::deque<Annotation> annotations_; // the newest
    // Who took the blocks that are freed, but still wait for other streams; by address.
    std::unordered_map<size_t, Context> takers_;
    c10::ApproximateClockToUnixTimeConverter clock_;

  public:
    // What is to be kept, as PyTorch's recordHistory() has it.
    struct Wish {
        bool enabled;
        CreateContextFn recorder;
        size_t max;
        RecordContext when;
        bool clear;
        std::vector<std::string> skipped_actions;
    };

    void start(int device_count)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        rings_.resize(static_cast<size_t>(device_count));
        next_.resize(static_cast<size_t>(device_count));
    }

    // Throws at an action that does not exist, and changes nothing.
    void record(const Wish &wish)
    {
        std::vector<TraceEntry::Action> skipped = actions_named(wish.skipped_actions);
        std::lock_guard<std::mutex> guard(mutex_);
        skipped_actions_ = std::move(skipped);
        recording_ = wish.enabled;
        recorder_ = wish.enabled ? wish.recorder : nullptr;
        record_when_ = wish.enabled ? wish.when : RecordContext::NEVER;
        max_ = std::max<size_t>(1, wish.max);
        if (record_when_ > RecordContext::NEVER)
            contexts_ = true;
        if (wish.clear || !wish.enabled)
            clear();
        update();
    }

    void add_tracker(native::AllocatorTraceTracker tracker)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        trackers_.push_back(std::move(tracker));
        update();
    }

    bool is_recording() const
    {
        return recording_;
    }

    // Whether entries are wanted: by the rings or by a tracker.
    bool is_watched() const
    {
        return watched_;
    }

    // Whether whoever frees must say so: entries are wanted, or blocks in use may carry
    // a context.
    bool wants_frees() const
    {
        return wants_frees_;
    }

    void push_region(const std::string &name)
    {
        if (recording_)
            regions.push_back(name);
    }

    void pop_region()
    {
        if (!regions.empty())
            regions.pop_back();
    }

    static void set_metadata(const std::string &metadata)
    {
        noted = metadata;
    }

    static std::string metadata()
    {
        return noted;
    }

    // What the core does for a call happens on account of its stack: who maps, unmaps
    // or completes a free while this lives does so for it.
    class Acting
    {
        const Context *before_;

      public:
        explicit Acting(const Context &context)
            : before_(std::exchange(acting, &context))
        {
        }
        ~Acting()
        {
            acting = before_;
        }
        Acting(const Acting &) = delete;
        Acting &operator=(const Acting &) = delete;
    };

    // The stack of the caller, if somebody wants it. May take the GIL: called with no
    // lock held.
    Context gather(RecordContext level) const
    {
        CreateContextFn recorder = recorder_;
        return recorder != nullptr && record_when_.load() >= level ? recorder()
                                                                   : nullptr;
    }

    void add(TraceEntry::Action action, int device, size_t addr, size_t bytes,
             oomph_stream_t stream, const MempoolId_t &pool, const Context &context,
             const std::string &note = noted)
    {
        if (!watched_)
            return;
        TraceEntry entry(action, static_cast<DeviceIndex>(device), addr, bytes,
                         static_cast<TraceStream>(stream), pool,
                         c10::getApproximateTime(), shown(context),
                         regions.empty() ? "N/A" : regions.back(), note);
        std::vector<native::AllocatorTraceTracker> trackers;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            trackers = trackers_;
        }
        for (const auto &tracker : trackers)
            tracker(entry);
        std::lock_guard<std::mutex> guard(mutex_);
        if (recording_ && !is_skipped(action))
            keep(static_cast<size_t>(device), std::move(entry));
    }

    // An entry for what the core did on account of the call that this thread is in.
    void add_done(TraceEntry::Action action, int device, size_t addr, size_t bytes,
                  oomph_stream_t stream, const MempoolId_t &pool)
    {
        add(action, device, addr, bytes, stream, pool,
            acting != nullptr ? *acting : nullptr);
    }

    // The stack of whoever frees, or else of whoever took the block.
    void add_free(const oomph_block_info_t &freed, const Context &freer,
                  const Context &taker)
    {
        MempoolId_t pool = from_core(freed.pool);
        const Context &context = freer ? freer : taker;
        add(TraceEntry::FREE_REQUESTED, freed.device, freed.addr, freed.requested_bytes,
            freed.stream, pool, context);
        if (freed.state != OOMPH_BLOCK_DEFERRED) {
            add(TraceEntry::FREE_COMPLETED, freed.device, freed.addr,
                freed.requested_bytes, freed.stream, pool, context);
        } else if (recording_) {
            std::lock_guard<std::mutex> guard(mutex_);
            takers_[freed.addr] = taker;
        }
    }

    // A free that had waited for other streams has been completed.
    void add_completed(const oomph_notice_t &freed)
    {
        Context context = acting != nullptr ? *acting : nullptr;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            auto taken = takers_.extract(freed.addr);
            if (context == nullptr && taken)
                context = std::move(taken.mapped());
        }
        add(TraceEntry::FREE_COMPLETED, freed.device, freed.addr, freed.bytes,
            freed.stream, from_core(freed.pool), context);
    }

    // What record_function() marks.
    void annotate(DeviceIndex device,
                  const std::vector<std::pair<std::string, std::string>> &metadata)
    {
        if (!recording_)
            return;
        Annotation entry(device, c10::getApproximateTime());
        for (const auto &[name, value] : metadata)
            entry.recordUserMetadata(name, value);
        std::lock_guard<std::mutex> guard(mutex_);
        if (annotations_.size() == max_)
            annotations_.pop_front();
        annotations_.push_back(std::move(entry));
    }

    // The entries of each device, oldest first; empty lists if they are not wanted.
    std::vector<std::vector<TraceEntry>> entries(bool wanted)
    {
        std::vector<std::vector<TraceEntry>> result;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            result.resize(rings_.size());
            for (size_t i = 0; i < rings_.size() && wanted; i++) {
                const auto &ring = rings_[i];
                auto oldest = ring.begin() + static_cast<std::ptrdiff_t>(next_[i]);
                result[i].assign(oldest, ring.end());
                result[i].insert(result[i].end(), ring.begin(), oldest);
            }
        }
        for (auto &entries : result)
            to_unix_time(entries);
        return result;
    }

    std::vector<Annotation> annotations()
    {
        std::vector<Annotation> result;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            result.assign(annotations_.begin(), annotations_.end());
        }
        to_unix_time(result);
        return result;
    }

  private:
    static std::vector<TraceEntry::Action>
    actions_named(const std::vector<std::string> &names)
    {
        std::vector<TraceEntry::Action> actions;
        std::transform(names.begin(), names.end(), std::back_inserter(actions),
                       &action_named);
        return actions;
    }

    // Blocks may keep a stack that the trace is not to have.
    Context shown(const Context &context) const
    {
        return record_when_.load() >= RecordContext::ALLOC ? context : nullptr;
    }

    template <typename Entry> void to_unix_time(std::vector<Entry> &entries)
    {
        auto to_unix_ns = clock_.makeConverter();
        for (Entry &entry : entries)
            entry.time_.t_ = to_unix_ns(entry.time_.approx_t_) / 1000;
    }

    /* ---- The caller holds mutex_ */

    void update()
    {
        watched_ = recording_ || !trackers_.empty();
        wants_frees_ = watched_ || contexts_;
    }

    void clear()
    {
        for (auto &ring : rings_)
            ring.clear();
        std::fill(next_.begin(), next_.end(), 0);
        annotations_.clear();
        takers_.clear();
    }

    bool is_skipped(TraceEntry::Action action) const
    {
        return std::find(skipped_actions_.begin(), skipped_actions_.end(), action) !=
               skipped_actions_.end();
    }

    void keep(size_t device, TraceEntry entry)
    {
        std::vector<TraceEntry> &ring = rings_.at(device);
        size_t &next = next_.at(device);
        if (ring.size() < max_) {
            ring.push_back(std::move(entry));
            return;
        }
        ring[next] = std::move(entry);
        next = (next + 1) % ring.size();
    }
};

} // namespace oomph_torch
