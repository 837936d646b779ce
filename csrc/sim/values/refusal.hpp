// refusal.hpp - what is registered over kernels that have no values.
#pragma once
#include "computation.hpp"

#include <string>
#include <utility>

namespace oomph_values
{

// For operators of nested tensors.
class Refusal final : public c10::OperatorKernel
{
    c10::SafeKernelFunction native_;
    std::string name_;

  public:
    Refusal(const OperatorHandle &op, std::string name, c10::DispatchKey key)
        : native_(op.getComputedKernelForDispatchKey(key)), name_(std::move(name))
    {
    }

    void operator()(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack)
    {
        TORCH_CHECK_NOT_IMPLEMENTED(
            nesting > 0, called(name_),
            " cannot run on the simulated GPU with values: it is not simulated for "
            "nested tensors. Use layout=torch.jagged, or simulate shapes alone.");
        native_.callBoxed(op, keys, stack);
    }
};

} // namespace oomph_values
