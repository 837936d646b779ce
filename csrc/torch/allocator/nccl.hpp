// nccl.hpp - NCCL's registration of all memory, which is refused.
//
// With TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK, ProcessGroupNCCL registers every
// segment with its communicators until the segment is freed. That pages are exchanged
// within a segment it does not hear, and NCCL would go on using those that were there;
// PyTorch refuses it for its own expandable segments, too. PyTorch reads the variable
// once, when it makes the first process group, and attaches a tracker if it is on.
// oomph.install() has switched it off before that. If it was set since, the tracker
// does no harm, as it waits for segments that cudaMalloc made; but each new
// communicator takes a snapshot and registers what is there. That is refused, and not
// the tracker: an exception would end the process, since the group has started its
// threads.
#pragma once
#include "torch/base/core.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <string>

namespace oomph_torch
{

inline constexpr const char *registration_variable =
    "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK";

inline bool is_registration_wanted()
{
    static const std::array<const char *, 5> yes = {"1", "t", "true", "y", "yes"};

    for (const char *name : {registration_variable, registration_variable + 6}) {
        const char *set = std::getenv(name); // the older name lacks TORCH_
        std::string value = set != nullptr ? set : "";
        std::transform(value.begin(), value.end(), value.begin(),
                       [](unsigned char c) { return std::tolower(c); });
        if (std::find(yes.begin(), yes.end(), value) != yes.end())
            return true;
    }
    return false;
}

inline std::atomic<bool> registration_read{false}; // PyTorch may have found it on

// To be called when a tracker is attached.
inline void note_tracker()
{
    if (is_registration_wanted())
        registration_read = true;
}

// Throws if NCCL may be about to register what a snapshot of all memory shows it.
inline void check_no_registration()
{
    TORCH_CHECK(!registration_read, "oomph: ", registration_variable,
                " was set after oomph was installed. It has NCCL register all memory, "
                "whose pages oomph exchanges: NCCL would go on using those that were "
                "there. Start the program without it; memory of "
                "torch.cuda.MemPool(pg.mem_allocator) may be registered");
}

} // namespace oomph_torch
