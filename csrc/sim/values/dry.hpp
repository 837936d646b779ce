// dry.hpp - the host's code of a CUDA kernel, run dry: it chooses, allocates and
// launches as on a GPU, while no byte moves.
#pragma once
#include "alias.hpp"
#include "sim.h"
#include "stack.hpp"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <regex>
#include <utility>

namespace oomph_values
{

using c10::OperatorHandle;

inline decltype(&oomph_sim_dry) sim_dry; // of the simulated driver

// How many CUDA kernels this thread is in: the operators that they call stay dry.
inline thread_local int nesting;

class Dry
{
  public:
    Dry()
    {
        nesting++;
        sim_dry(1);
    }
    ~Dry()
    {
        sim_dry(-1);
        nesting--;
    }
    Dry(const Dry &) = delete;
    Dry &operator=(const Dry &) = delete;
};

// Whether this thread's dry run has asked for a value: a C interface in between makes
// another error of what was thrown.
inline thread_local bool has_asked;

// A CUDA kernel's host code asks for a value of the GPU, which is not there while it
// runs dry.
struct AsksValue final : std::exception {
    AsksValue()
    {
        has_asked = true;
    }
};

// Whether the error says that the CUDA kernel asked a library that is not simulated.
inline bool needs_library(const c10::Error &error)
{
    static const std::regex names("cusolver|cufft|cusparse|magma|cublas",
                                  std::regex::icase);
    return std::regex_search(error.what_without_backtrace(), names);
}

inline bool is_capturing()
{
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
           c10::cuda::CaptureStatus::None;
}

// The host's code of one operator's CUDA kernel.
class HostCode
{
    c10::SafeKernelFunction native_;
    bool is_foreign_; // of another library: what it reads is unknown

  public:
    HostCode(c10::SafeKernelFunction native, bool is_foreign)
        : native_(std::move(native)), is_foreign_(is_foreign)
    {
    }

    bool is_foreign() const
    {
        return is_foreign_;
    }

    // Moves what the driver moves, unless the call comes from a dry run.
    void run(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack) const
    {
        native_.callBoxed(op, keys, stack);
    }

    // False if only the CPU can say what the operator gives.
    bool run_dry(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack,
                 size_t base) const
    {
        uint64_t reads = sim_dry(0);
        has_asked = false;
        try {
            Dry dry;
            native_.callBoxed(op, keys, stack);
        } catch (const c10::OutOfMemoryError &) {
            throw;
        } catch (const std::exception &error) {
            const auto *ours = dynamic_cast<const c10::Error *>(&error);
            if (has_asked)
                ask_value();
            else if (ours == nullptr || (!needs_library(*ours) && !has_read(reads)))
                throw;
            return false;
        }
        if (has_read(reads))
            return false;
        for (size_t i = base; i < stack->size(); i++)
            for (const Tensor &tensor : tensors((*stack)[i]))
                if (is_sparse(tensor))
                    return false;
        return true;
    }

  private:
    // Whoever asks the GPU for a value during a capture gets CUDA's error.
    static void ask_value()
    {
        if (is_capturing())
            c10::cuda::getCurrentCUDAStream().synchronize();
    }

    // Whether another library's code has read zeros of the GPU since then.
    bool has_read(uint64_t reads) const
    {
        return is_foreign_ && sim_dry(0) != reads;
    }
};

} // namespace oomph_values
