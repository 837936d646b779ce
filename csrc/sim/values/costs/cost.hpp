// cost.hpp - how the simulated GPU takes the time for an operator: its arithmetic and
// memory, reported to the driver once the operator has launched its kernels. Operators
// that it calls report their own.
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

// What this thread has called, and how many of these reported arithmetic.
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

inline Stack top_of(const Stack &stack, size_t count)
{
    return {stack.end() - static_cast<std::ptrdiff_t>(count), stack.end()};
}

// What the kernels that an operator launches itself take, as far as its schema says.
class Cost
{
    std::string name_;
    Uses uses_;
    Accesses accesses_;
    const Arithmetic *arithmetic_;

  public:
    Cost(const OperatorHandle &op, std::string name)
        : name_(std::move(name)), uses_(op), accesses_(op),
          arithmetic_(arithmetic_of(op))
    {
    }

    bool has_arithmetic() const
    {
        return arithmetic_ != nullptr;
    }

    // To the current stream of the current device.
    void report(const Call &call, oomph_sim_launched_t launched, bool multiplies,
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

// What is registered over the CUDA kernel of one of PyTorch's own operators.
class Costed final : public c10::OperatorKernel
{
    c10::SafeKernelFunction native_;
    std::string name_;
    Cost cost_;
    Small small_;
    bool is_copy_, copies_by_driver_;
    size_t argument_count_, return_count_;

  public:
    Costed(const OperatorHandle &op, std::string name, c10::DispatchKey on_gpu)
        : native_(op.getComputedKernelForDispatchKey(on_gpu)), name_(std::move(name)),
          cost_(op, name_), small_(op, name_), is_copy_(name_ == "copy_"),
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
        const Stack arguments = top_of(*stack, argument_count_);
        const unsigned before = ++operator_count, reported = arithmetic_count;
        InOperator inside;
        native_.callBoxed(op, keys, stack);
        const oomph_sim_launched_t launched = inside.end();
        const bool multiplies = cost_.has_arithmetic() && arithmetic_count == reported;
        // The sum of what it called, or the driver's copy.
        const bool is_reported =
            launched.kernel_count + launched.library_call_count == 0 && !multiplies &&
            (copies_by_driver_ || operator_count > before);
        if (is_reported && !small_.guesses())
            return;
        const Stack outputs = top_of(*stack, return_count_);
        c10::cuda::CUDAGuard guard(device_of(arguments, outputs));
        auto followed_by = small_.computation(arguments, outputs);
        if (!is_reported)
            cost_.report(Call(op, arguments, outputs), launched, multiplies,
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
};

} // namespace oomph_values
