// core.hpp - what all of PyTorch's side shares: the core's functions, names of
// PyTorch's types, and exceptions on their way through C frames.
#pragma once
#include "oomph.h"
#include "torch/base/versions.hpp"

#include <atomic>
#include <exception>
#include <memory>
#include <utility>

namespace oomph_torch
{

using c10::DeviceIndex;
using c10::MempoolId_t;
using Context = std::shared_ptr<c10::GatheredContext>;

inline const oomph_api_t *core; // set before anything here is used

// An exception of a callback that C frames lie above of. How many threads keep one is
// counted, so that nearly always a plain load shows that there is none.
inline thread_local std::exception_ptr pending;
inline std::atomic<int> pending_count{0};

template <typename Function> void keep_exception(Function function) noexcept
{
    try {
        function();
    } catch (...) {
        if (!pending) {
            pending = std::current_exception();
            pending_count++;
        }
    }
}

inline bool is_pending()
{
    return pending_count.load(std::memory_order_relaxed) != 0 && pending;
}

inline void rethrow_pending()
{
    if (!is_pending())
        return;
    pending_count--;
    std::rethrow_exception(std::exchange(pending, nullptr));
}

// Every failed call of the core that is no shortage of memory.
inline void check(oomph_status_t status)
{
    rethrow_pending();
    TORCH_CHECK(status == OOMPH_OK, "oomph: ", core->error_detail());
}

inline oomph_pool_id_t to_core(const MempoolId_t &id)
{
    return {id.first, id.second};
}

inline MempoolId_t from_core(oomph_pool_id_t id)
{
    return {id.first, id.second};
}

inline oomph_addr_t address(const void *pointer)
{
    return reinterpret_cast<oomph_addr_t>(pointer);
}

inline void *pointer(oomph_addr_t addr)
{
    return reinterpret_cast<void *>(addr);
}

} // namespace oomph_torch
