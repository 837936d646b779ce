// stats.hpp - the core's counters in PyTorch's statistics and in its error for
// memory that is not there.
#pragma once
#include "torch/base/core.hpp"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include <cstdio>
#include <string>
#include <vector>

namespace oomph_torch
{

inline std::string format_size(uint64_t bytes)
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

inline void translate(const oomph_stats_by_kind_t &from,
                      c10::CachingAllocator::StatArray &to)
{
    for (int kind = 0; kind < OOMPH_STAT_KINDS; kind++) {
        c10::CachingAllocator::Stat &stat = to.at(static_cast<size_t>(kind));
        stat.current = from[kind].current;
        stat.peak = from[kind].peak;
        stat.allocated = from[kind].allocated;
        stat.freed = from[kind].freed;
    }
}

inline std::vector<oomph_pool_stats_t> pool_stats_of(int device)
{
    std::vector<oomph_pool_stats_t> rows;
    size_t count = 0;

    do { // another thread may make one more
        rows.resize(count);
        check(core->get_pool_stats(device, rows.data(), rows.size(), &count));
    } while (count > rows.size());
    rows.resize(count);
    return rows;
}

// From PyTorch 2.13 on.
template <typename Stats> void translate_pools(int device, Stats &to)
{
    if constexpr (requires { to.reserved_bytes_by_private_pools; })
        for (const oomph_pool_stats_t &from : pool_stats_of(device))
            translate(from.reserved_bytes,
                      to.reserved_bytes_by_private_pools[from_core(from.pool)]);
}

inline c10::CachingDeviceAllocator::DeviceStats stats_of(int device)
{
    oomph_stats_t from;
    c10::CachingDeviceAllocator::DeviceStats to;

    check(core->get_stats(device, &from));
    translate(from.allocation, to.allocation);
    translate(from.segment, to.segment);
    translate(from.active, to.active);
    translate(from.inactive_split, to.inactive_split);
    translate(from.allocated_bytes, to.allocated_bytes);
    translate(from.reserved_bytes, to.reserved_bytes);
    translate_pools(device, to);
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

// How things stand when a request has failed, and the error that says so.
struct OutOfMemory {
    const oomph_request_t &request;
    const std::string reason = core->error_detail(); // of the call that failed last
    size_t free_bytes = 0, total_bytes = 0;
    oomph_stats_t stats;

    explicit OutOfMemory(const oomph_request_t &failed) : request(failed)
    {
        check(core->memory_info(request.device, &free_bytes, &total_bytes));
        check(core->get_stats(request.device, &stats));
    }

    // PyTorch's own words as far as they go, and then the core's reason.
    std::string text() const
    {
        uint64_t allocated = static_cast<uint64_t>(stats.allocated_bytes[0].current);
        uint64_t reserved = static_cast<uint64_t>(stats.reserved_bytes[0].current);
        uint64_t limit = static_cast<uint64_t>(stats.device_limit_bytes);
        uint64_t host = static_cast<uint64_t>(stats.tier_bytes[OOMPH_TIER_HOST]);
        return c10::str("CUDA out of memory. Tried to allocate ",
                        format_size(request.bytes), ". GPU ", request.device,
                        " has a total capacity of ", format_size(total_bytes),
                        limit != 0 ? " (a limit that oomph was given)" : "",
                        " of which ", format_size(free_bytes),
                        " is free. Of the allocated memory ", format_size(allocated),
                        " is allocated by PyTorch, and ",
                        format_size(reserved > allocated ? reserved - allocated : 0),
                        " is reserved by PyTorch but unallocated. ",
                        host != 0 ? format_size(host) + " of it is on the host. " : "",
                        "oomph: ", reason, ".");
    }

    // The core keeps who holds the memory now: whoever explains the error asks for it.
    [[noreturn]] void raise() const
    {
        const std::string message = text();
        const auto node = torch::autograd::get_current_node();
        oomph_oom_t kept = {};
        kept.request = request;
        kept.request.user = nullptr;
        std::snprintf(kept.message, sizeof kept.message, "%s", message.c_str());
        std::snprintf(kept.doing, sizeof kept.doing, "%s",
                      node != nullptr ? node->name().c_str() : "");
        kept.autocast = at::autocast::is_autocast_enabled(c10::kCUDA);
        kept.grad = c10::GradMode::is_enabled();
        kept.free_bytes = free_bytes;
        kept.total_bytes = total_bytes;
        kept.stats = stats;
        core->keep_oom(&kept);
        TORCH_CHECK_WITH(OutOfMemoryError, false, message);
    }
};

} // namespace oomph_torch
