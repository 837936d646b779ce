// workspaces.hpp - which requests are for workspaces of cuBLAS.
//
// A thread's workspaces are made when it first multiplies on a stream, perhaps when
// memory is short, and kept. They are asked for as any tensor is, and tensors of the
// same sizes are common; so the size says where to look, and who asks decides: whether
// one of the functions of PyTorch that make workspaces is on the stack.
#pragma once
#include "torch/base/versions.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <dlfcn.h>
#include <link.h>
#include <mutex>
#include <unwind.h>

namespace oomph_torch
{

class Workspaces
{
    struct Code {
        uintptr_t begin = 0, end = 0;
    };
    struct Search {
        const Workspaces *workspaces;
        int frames_left = 12; // of ours and PyTorch's, between the two
        bool found = false;
    };

    std::once_flag once_;
    std::array<size_t, 2> bytes_{}; // of cuBLAS and cuBLASLt
    std::array<Code, 2> makers_;    // the functions that make them

    static Code extent(const void *function)
    {
        Dl_info info;
        const ElfW(Sym) *symbol = nullptr;

        if (dladdr1(function, &info,
                    const_cast<void **>(reinterpret_cast<const void **>(&symbol)),
                    RTLD_DL_SYMENT) == 0 ||
            symbol == nullptr)
            return {};
        auto begin = reinterpret_cast<uintptr_t>(info.dli_saddr);
        return {begin, begin + symbol->st_size};
    }

    void read()
    {
        bytes_ = {workspace_bytes(), at::cuda::getCUDABlasLtWorkspaceSize()};
        makers_ = {extent(reinterpret_cast<const void *>(workspace_maker)),
                   extent(reinterpret_cast<const void *>(lt_workspace_maker))};
    }

    static _Unwind_Reason_Code look(_Unwind_Context *frame, void *argument)
    {
        auto *search = static_cast<Search *>(argument);
        uintptr_t at = _Unwind_GetIP(frame) - 1; // within the call
        const auto &makers = search->workspaces->makers_;

        search->found =
            std::any_of(makers.begin(), makers.end(), [at](const Code &code) {
                return code.begin <= at && at < code.end;
            });
        return search->found || --search->frames_left == 0 ? _URC_END_OF_STACK
                                                           : _URC_NO_REASON;
    }

  public:
    // Whether this thread asks for a workspace.
    bool asks(size_t bytes)
    {
        if (bytes <= (1 << 20))
            return false; // a small block, which may use the headroom as it is
        std::call_once(once_, [this] { read(); });
        if (std::find(bytes_.begin(), bytes_.end(), bytes) == bytes_.end())
            return false;
        Search search{this};
        _Unwind_Backtrace(&look, &search);
        return search.found;
    }
};

} // namespace oomph_torch
