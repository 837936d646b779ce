// sites.hpp - which line of the user's code a request comes from.
//
// In forward the thread's own Python frames say. Backward runs in autograd's threads,
// where there are none; but each of its nodes has the number that its operator had in
// forward. So every thread keeps which line allocated at which number, and what a node
// allocates is attributed to the line of the nearest number, marked as inferred.
//
// No lock: a log has one writer, its thread, and readers that may find older entries
// overwritten by newer ones.
#pragma once
#include "torch/base/core.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace oomph_torch
{

// Smaller requests have no site; lowered for as long as someone looks for a small leak.
inline std::atomic<size_t> site_min_bytes{1 << 20};

// Which lines allocated at which sequence numbers, in one thread; the newest.
class ForwardLog
{
    static constexpr uint64_t ROOM = 1 << 15;
    // The low half of the number, then the site.
    std::array<std::atomic<uint64_t>, ROOM> entries_{};
    std::atomic<uint64_t> count_{0};
    uint32_t last_ = 0; // number written last; the writer's alone

    uint64_t entry(uint64_t i) const
    {
        return entries_[i % ROOM].load(std::memory_order_relaxed);
    }

    static uint32_t number(uint64_t entry)
    {
        return static_cast<uint32_t>(entry >> 32);
    }

  public:
    // The thread that made it, as autograd's nodes name it; 0: unused.
    std::atomic<uint64_t> thread{0};

    // Of several allocations at one number the first counts: it is the operator's own.
    void note(uint32_t at, oomph_site_t site)
    {
        uint64_t count = count_.load(std::memory_order_relaxed);
        if (count != 0 && at == last_)
            return;
        last_ = at;
        entries_[count % ROOM].store(static_cast<uint64_t>(at) << 32 | site,
                                     std::memory_order_relaxed);
        count_.store(count + 1, std::memory_order_release);
    }

    // The site whose number is nearest, the earlier of two; 0 if there is none.
    oomph_site_t nearest(uint32_t at) const
    {
        const uint64_t end = count_.load(std::memory_order_acquire);
        const uint64_t begin = end > ROOM ? end - ROOM : 0;
        uint64_t low = begin, high = end; // the first entry at or behind `at`
        if (begin == end)
            return 0;
        while (low < high) {
            uint64_t middle = low + (high - low) / 2;
            if (number(entry(middle)) < at)
                low = middle + 1;
            else
                high = middle;
        }
        if (low == end)
            return static_cast<oomph_site_t>(entry(end - 1));
        uint64_t after = entry(low);
        uint64_t before = low > begin ? entry(low - 1) : after;
        bool earlier = low > begin && at - number(before) <= number(after) - at;
        return static_cast<oomph_site_t>(earlier ? before : after);
    }
};

// The logs of all threads that allocated in forward.
class ForwardLogs
{
    static constexpr size_t THREADS = 64; // more have no log: nothing is inferred
    std::array<std::atomic<ForwardLog *>, THREADS> logs_{};

    // Gives the thread's log up for another thread, when it ends.
    struct Own {
        ForwardLog *log = nullptr;
        bool looked = false;
        ~Own()
        {
            if (log != nullptr)
                log->thread = 0;
        }
    };

    ForwardLog *take(uint64_t thread)
    {
        for (std::atomic<ForwardLog *> &place : logs_) {
            ForwardLog *log = place.load(std::memory_order_acquire);
            uint64_t unused = 0;
            if (log != nullptr) {
                if (log->thread.compare_exchange_strong(unused, thread))
                    return log;
                continue;
            }
            auto made = std::make_unique<ForwardLog>();
            made->thread = thread;
            if (place.compare_exchange_strong(log, made.get()))
                return made.release(); // lives as long as the process
        }
        return nullptr;
    }

  public:
    ForwardLog *own()
    {
        static thread_local Own own;
        if (!own.looked) {
            own.looked = true;
            own.log = take(at::RecordFunction::currentThreadId());
        }
        return own.log;
    }

    const ForwardLog *find(uint64_t thread) const
    {
        for (const std::atomic<ForwardLog *> &place : logs_) {
            const ForwardLog *log = place.load(std::memory_order_acquire);
            if (log == nullptr)
                break;
            if (log->thread == thread)
                return log;
        }
        return nullptr;
    }
};

class Sites
{
    static inline ForwardLogs logs;
    // What was inferred last in this thread, for nodes without a number of their own.
    static inline thread_local oomph_site_t last_inferred = 0;

    static oomph_site_t infer(const torch::autograd::Node &node)
    {
        if (node.sequence_nr() == UINT64_MAX) // it adds to a gradient made before
            return last_inferred;
        const ForwardLog *log = logs.find(node.thread_id());
        // Its operator allocated when the next number was due.
        oomph_site_t site =
            log != nullptr ? log->nearest(static_cast<uint32_t>(node.sequence_nr() + 1))
                           : 0;
        last_inferred = site == 0 ? 0 : site | OOMPH_SITE_INFERRED;
        return last_inferred;
    }

  public:
    // Who asks for a block of so many bytes; 0 if that is unknown. Never takes the GIL.
    static oomph_site_t of_request(size_t bytes)
    {
        if (bytes < site_min_bytes.load(std::memory_order_relaxed))
            return 0;
        const auto node = torch::autograd::get_current_node();
        oomph_site_t site = core->call_site(node != nullptr);
        if (site == 0 && node != nullptr)
            return infer_or_call(*node);
        if (site != 0)
            note(site);
        return site;
    }

  private:
    static oomph_site_t infer_or_call(const torch::autograd::Node &node)
    {
        oomph_site_t site = infer(node);
        return site != 0 ? site : core->call_site(false);
    }

    static void note(oomph_site_t site)
    {
        ForwardLog *log = logs.own();
        if (log != nullptr)
            log->note(static_cast<uint32_t>(at::sequence_number::peek()), site);
    }
};

} // namespace oomph_torch
