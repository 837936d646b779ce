// cost.hpp - what is registered over an operator's CUDA kernel so that the simulated
// GPU takes the time for it: its arithmetic and memory, told to the driver once the
// operator has launched its kernels. Operators that it calls tell their own.
#pragma once
#include "values/arguments.hpp"
#include "values/costs/accesses.hpp"
#include "values/costs/flops.hpp"
#include "values/costs/small.hpp"
#include "values/costs/uses.hpp"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <string>
#include <utility>
#include <vector>

namespace oomph_values
{

inline decltype(&oomph_sim_cost) sim_cost; // of the simulated driver
inline decltype(&oomph_sim_operator) sim_operator;

// What this thread has called, and how many of these told arithmetic.
inline thread_local unsigned operator_count, arithmetic_count;

// From its making to its end, kernels are those of one operator.
class InOperator
{
    oomph_sim_launched_t outer_ = sim_operator(1, {});
    bool has_ended_ = false;

  public:
    InOperator() = default;
    oomph_sim_launched_t end()
    {
        has_ended_ = true;
        return sim_operator(-1, outer_);
    }
    ~InOperator()
    {
        if (!has_ended_)
            end();
    }
    InOperator(const InOperator &) = delete;
    InOperator &operator=(const InOperator &) = delete;
};

class Costed final : public c10::OperatorKernel
{
    c10::SafeKernelFunction native_;
    std::string name_;
    Uses uses_;
    Accesses accesses_;
    Small small_;
    const Arithmetic *arithmetic_;
    bool is_copy_, copies_by_driver_;
    size_t argument_count_, return_count_;

  public:
    Costed(const OperatorHandle &op, std::string name, c10::DispatchKey on_gpu)
        : native_(op.getComputedKernelForDispatchKey(on_gpu)), name_(std::move(name)),
          uses_(op), accesses_(op), small_(op, name_), arithmetic_(arithmetic_of(op)),
          is_copy_(name_ == "copy_"),
          copies_by_driver_(is_copy_ || name_ == "_local_scalar_dense"),
          argument_count_(op.schema().arguments().size()),
          return_count_(op.schema().returns().size())
    {
    }

    void operator()(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack)
    {
        if (is_copy_ && crosses_link(*stack)) {
            native_.callBoxed(op, keys, stack);
            return;
        }
        if (small_.answers(*stack, argument_count_))
            return;
        auto count = static_cast<std::ptrdiff_t>(argument_count_);
        Stack arguments(stack->end() - count, stack->end());
        const unsigned before = ++operator_count, told = arithmetic_count;
        InOperator inside;
        native_.callBoxed(op, keys, stack);
        const oomph_sim_launched_t launched = inside.end();
        const bool multiplies = arithmetic_ != nullptr && arithmetic_count == told;
        if (launched.kernel_count + launched.library_call_count == 0 && !multiplies &&
            (copies_by_driver_ || operator_count > before))
            return; // it is the sum of what it called, or the driver's copy
        count = static_cast<std::ptrdiff_t>(return_count_);
        Stack outputs(stack->end() - count, stack->end());
        c10::cuda::CUDAGuard guard(device_of(arguments, outputs));
        auto followed_by = small_.computation(arguments, outputs);
        tell(Call(op, arguments, outputs), launched, multiplies,
             followed_by != nullptr);
        if (followed_by != nullptr)
            small_.follow(name_, std::move(followed_by));
    }

  private:
    bool crosses_link(const Stack &stack) const
    {
        auto base = stack.size() - argument_count_;
        return stack[base].toTensor().device() != stack[base + 1].toTensor().device();
    }

    void tell(const Call &call, oomph_sim_launched_t launched, bool multiplies,
              bool is_followed) const
    {
        static thread_local std::vector<oomph_sim_use_t> uses;
        oomph_sim_cost_t cost = {};

        cost.name = name_.c_str();
        cost.launched = launched;
        cost.accesses = accesses_.count(call);
        uses.clear();
        uses_.collect(call, launched.kernel_count, uses);
        if (multiplies) {
            arithmetic_count++;
            cost.flops = arithmetic_->count(call);
            cost.precision =
                precision_of(*arithmetic_, call.tensor(arithmetic_->operand));
        }
        if (uses.empty() && cost.flops == 0)
            return;
        cost.uses = uses.data();
        cost.use_count = uses.size();
        cost.is_followed = is_followed;
        check_taken(called(name_),
                    sim_cost(&cost, c10::cuda::getCurrentCUDAStream().stream()));
    }
};

} // namespace oomph_values
