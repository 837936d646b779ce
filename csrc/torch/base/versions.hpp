// versions.hpp - what differs from one PyTorch to the next.
//
// The only place that knows of versions. A virtual function that has other parameters
// in another version stands in the class in each of its forms: the one that PyTorch has
// overrides it, and nobody calls the others.
#pragma once
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/api/include/torch/version.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#define TORCH_MINOR (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)
#if TORCH_MINOR < 210
#error "oomph needs PyTorch 2.10 or newer"
#endif

namespace at::cuda
{
// 2.12 declares it and does not have it.
[[gnu::weak]] size_t getChosenWorkspaceSize();
} // namespace at::cuda

namespace oomph_torch
{

namespace native = c10::cuda::CUDACachingAllocator;

#if TORCH_MINOR >= 211
using TraceStream = void *; // the type in which traces and segments name a stream
using InnerAllocator = std::shared_ptr<native::CUDAAllocator>; // of a MemPool

inline native::TraceEntry::Action action_named(const std::string &name)
{
    return c10::CachingDeviceAllocator::parseTraceEntryAction(name);
}
#else
using TraceStream = cudaStream_t;
using InnerAllocator = native::CUDAAllocator *;

// No action can be left out.
[[noreturn]] inline native::TraceEntry::Action action_named(const std::string &name)
{
    TORCH_CHECK(false, "this PyTorch leaves out no action, such as ", name);
}
#endif

#if TORCH_MINOR >= 212
using OomRejectionObserver = native::OomRejectionObserver;
#else
struct OomRejectionObserver {
};
#endif

// The functions that make workspaces of cuBLAS and cuBLASLt.
#if TORCH_MINOR >= 215
inline void *(*const lt_workspace_maker)(size_t) = &at::cuda::getCUDABlasLtWorkspace;
#else
inline void *(*const lt_workspace_maker)() = &at::cuda::getCUDABlasLtWorkspace;
#endif
inline auto *const workspace_maker = &at::cuda::getCurrentCUDABlasHandle;

// How much cuBLAS is given; without an answer PyTorch's default, which NVIDIA names in
// cuBLAS's documentation (cublasSetWorkspace).
inline size_t workspace_bytes()
{
    if (&at::cuda::getChosenWorkspaceSize != nullptr)
        return at::cuda::getChosenWorkspaceSize();
    const bool is_hopper = at::cuda::getCurrentDeviceProperties()->major == 9;
    return is_hopper ? 32 << 20 : (8 << 20) + (128 << 10);
}

// The action of what is noted on a block later. Before 2.14 nobody asks for that.
template <typename Entry> constexpr auto annotating()
{
    if constexpr (requires { Entry::ANNOTATE; })
        return Entry::ANNOTATE;
    else
        return Entry::SNAPSHOT;
}

using Parser = std::function<void(const std::string &)>;

// Puts a parser of settings in the place of PyTorch's for CUDA, which it is made of. In
// 2.10 that one cannot be had, and does this.
template <typename Common, typename Cuda>
void replace_parser(const std::function<Parser(Parser)> &wrap)
{
    if constexpr (requires { Common::getConfigParserHook(); }) {
        auto &hook = Common::getConfigParserHook();
        hook = wrap(hook);
    } else {
        Common::registerDeviceConfigParserHook(
            wrap([](const std::string &text) { Cuda::instance().parseArgs(text); }),
            {});
    }
}

// The most of each card that a process may take, as PyTorch's settings have it.
template <typename Config> double memory_fraction()
{
    if constexpr (requires { Config::per_process_memory_fraction(); })
        return Config::per_process_memory_fraction();
    else
        return 1;
}

// The settings say that blocks of any size are kept.
template <typename Info> void set_no_cached_max(Info &info)
{
    if constexpr (requires { info.max_cached_size; })
        info.max_cached_size = SIZE_MAX;
}

} // namespace oomph_torch
