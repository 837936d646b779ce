// cost.hpp - what is registered over an operator's CUDA kernel so that the simulated
// GPU takes the time for it: its arithmetic and memory, told to the driver once the
// operator has launched its kernels. Operators that it calls are parts of it.
#pragma once
#include "arguments.hpp"
#include "flops.hpp"
#include "uses.hpp"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <string>
#include <utility>
#include <vector>

namespace oomph_values
{

inline decltype(&oomph_sim_cost) sim_cost; // of the simulated driver
inline decltype(&oomph_sim_operator) sim_operator;

inline thread_local int cost_depth; // of operators that are called by operators

class InOperator
{
  public:
    InOperator()
    {
        cost_depth++;
        sim_operator(1);
    }
    ~InOperator()
    {
        sim_operator(-1);
        cost_depth--;
    }
    InOperator(const InOperator &) = delete;
    InOperator &operator=(const InOperator &) = delete;
};

class Costed final : public c10::OperatorKernel
{
    c10::SafeKernelFunction native_;
    std::string name_;
    Uses uses_;
    const Arithmetic *arithmetic_;
    bool is_copy_, copies_by_driver_;
    size_t argument_count_, return_count_;

  public:
    Costed(const OperatorHandle &op, std::string name, c10::DispatchKey on_gpu)
        : native_(op.getComputedKernelForDispatchKey(on_gpu)), name_(std::move(name)),
          uses_(op), arithmetic_(arithmetic_of(op)), is_copy_(name_ == "copy_"),
          copies_by_driver_(is_copy_ || name_ == "_local_scalar_dense"),
          argument_count_(op.schema().arguments().size()),
          return_count_(op.schema().returns().size())
    {
    }

    void operator()(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack)
    {
        if (cost_depth > 0 || (is_copy_ && crosses_link(*stack))) {
            native_.callBoxed(op, keys, stack);
            return;
        }
        auto count = static_cast<std::ptrdiff_t>(argument_count_);
        Stack arguments(stack->end() - count, stack->end());
        {
            InOperator inside;
            native_.callBoxed(op, keys, stack);
        }
        if (copies_by_driver_ && sim_operator(0) == 0)
            return; // the driver's copy took its time
        count = static_cast<std::ptrdiff_t>(return_count_);
        Stack outputs(stack->end() - count, stack->end());
        tell(Call(op, arguments, outputs), device_of(arguments, outputs));
    }

  private:
    bool crosses_link(const Stack &stack) const
    {
        auto base = stack.size() - argument_count_;
        return stack[base].toTensor().device() != stack[base + 1].toTensor().device();
    }

    void tell(const Call &call, c10::Device device) const
    {
        static thread_local std::vector<oomph_sim_use_t> uses;
        oomph_sim_cost_t cost = {name_.c_str(), 0, OOMPH_SIM_FP32, nullptr, 0};

        uses.clear();
        uses_.collect(call, uses);
        if (arithmetic_ != nullptr) {
            cost.flops = arithmetic_->count(call);
            cost.precision =
                precision_of(*arithmetic_, call.tensor(arithmetic_->operand));
        }
        if (uses.empty() && cost.flops == 0)
            return;
        cost.uses = uses.data();
        cost.use_count = uses.size();
        c10::cuda::CUDAGuard guard(device);
        int result = sim_cost(&cost, c10::cuda::getCurrentCUDAStream().stream());
        TORCH_CHECK(result == 0, "aten::", name_,
                    " failed on the simulated GPU: its stream takes no more work "
                    "(error ",
                    result, ")");
    }
};

} // namespace oomph_values
