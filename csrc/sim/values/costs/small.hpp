// small.hpp - small tensors keep their values where memory is not real. Programs send
// sizes, ranks and counts through a GPU and decide by them. So an operator on small
// tensors alone is followed by a computation: if all that it reads is known, its CPU
// kernel gives what it writes. Else what it writes is not known, as that of any other.
#pragma once
#include "values/arguments.hpp"
#include "values/computation.hpp"
#include "values/costs/uses.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace oomph_values
{

// Of the simulated driver; nullptr where memory is real.
inline decltype(&oomph_sim_peek) sim_peek;
inline decltype(&oomph_sim_look) sim_look;
inline decltype(&oomph_sim_poke) sim_poke;

inline constexpr uint64_t SMALL_BYTES = 4096; // as much as the driver keeps of a write
inline constexpr size_t SMALL_COUNT = 16;     // tensors of an operator

// A tensor of the host in the place of one of the GPU.
struct Mirror {
    uint64_t addr, bytes;
    Tensor tensor;
    bool is_read, is_written;
};

// One call of an operator, on tensors of the host.
struct SmallComputation {
    const OperatorHandle *op;
    std::vector<Mirror> mirrors = {};
    Stack arguments = {}, outputs = {};

    // What the CPU's kernel gives; nothing if it refuses, or not all that it reads is
    // known.
    std::optional<Stack> results(decltype(sim_peek) look) const
    {
        for (const Mirror &each : mirrors)
            if (each.is_read && look(each.addr, each.tensor.mutable_data_ptr(),
                                     each.bytes) < each.bytes)
                return std::nullopt;
        OnlyKernels only;
        at::DisableRecordFunctionGuard unseen;
        Stack stack = arguments;
        try {
            op->callBoxed(stack);
        } catch (const std::exception &) {
            return std::nullopt;
        }
        return stack;
    }

    bool is_put(const Stack &computed) const
    {
        OnlyKernels only;
        at::DisableRecordFunctionGuard unseen;
        try {
            for (size_t i = 0; i < computed.size(); i++)
                if (op->schema().returns()[i].alias_info() == nullptr)
                    put(outputs[i], computed[i]);
        } catch (const std::exception &) { // of another size
            return false;
        }
        return true;
    }

    static int run(void *argument)
    {
        const auto *self = static_cast<SmallComputation *>(argument);
        const std::optional<Stack> computed = self->results(sim_peek);
        const bool is_known = computed && self->is_put(*computed);
        for (const Mirror &each : self->mirrors)
            if (each.is_written)
                sim_poke(each.addr, is_known ? each.tensor.const_data_ptr() : nullptr,
                         each.bytes);
        return 0;
    }

    static void release(void *argument)
    {
        delete static_cast<SmallComputation *>(argument);
    }
};

class Small
{
    OperatorHandle op_;
    bool is_computed_, overwrites_, is_asked_;

    static bool is_plain(const Tensor &tensor)
    {
        return tensor.layout() == at::kStrided && !tensor.is_nested() &&
               tensor.has_storage() && !tensor.is_conj() && !tensor.is_neg() &&
               tensor.numel() > 0 && span_bytes(tensor) <= SMALL_BYTES;
    }

    static bool is_small(const Stack &values, size_t &count)
    {
        for (const IValue &value : values) {
            if (value.isList() && value.toListRef().size() > SMALL_COUNT)
                return false;
            for (const Tensor &tensor : tensors(value))
                if (tensor.defined() && (!is_plain(tensor) || ++count > SMALL_COUNT))
                    return false;
        }
        return true;
    }

    static void mirror(const IValue &value, bool is_read, bool is_written, Stack &to,
                       std::vector<Mirror> &mirrors)
    {
        if (value.isDevice()) {
            to.emplace_back(c10::Device(c10::kCPU));
            return;
        }
        to.push_back(changed(value, [&](const Tensor &tensor) {
            if (!tensor.defined() || !tensor.is_cuda())
                return alias_tensor(tensor);
            Tensor made = at::detail::empty_strided_cpu(
                tensor.sizes(), tensor.strides(), tensor.scalar_type());
            mirrors.push_back({address_of(tensor), span_bytes(tensor), made,
                               is_read || !tensor.is_non_overlapping_and_dense(),
                               is_written});
            return made;
        }));
    }

  public:
    Small(const OperatorHandle &op, const std::string &name)
        : op_(op),
          is_computed_(sim_peek != nullptr && !draws(op) &&
                       op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)),
          overwrites_(Names(OVERWRITING).contain(op.schema().name().substr(6))),
          is_asked_(is_computed_ && name != "_local_scalar_dense" &&
                    (returns_no_tensor(op) || Names(SIZED_BY_VALUES).contain(name)))
    {
        for (const c10::Argument &argument : op.schema().arguments())
            is_asked_ = is_asked_ && !argument.is_out();
    }

    // Computes a call whose result the host decides by, if all that it reads is known:
    // takes the arguments off the stack and leaves the results, as the GPU's kernel.
    bool answers(Stack &stack, size_t argument_count) const
    {
        if (!is_asked_ || is_capturing())
            return false;
        auto count = static_cast<std::ptrdiff_t>(argument_count);
        const Stack arguments(stack.end() - count, stack.end());
        auto work = computation(arguments, {});
        if (work == nullptr || work->mirrors.empty())
            return false;
        c10::Device device = device_of(arguments);
        c10::cuda::CUDAGuard guard(device);
        c10::cuda::getCurrentCUDAStream().synchronize();
        const std::optional<Stack> computed = work->results(sim_look);
        if (!computed)
            return false;
        stack.resize(stack.size() - argument_count);
        for (const IValue &value : *computed)
            stack.push_back(changed(
                value, [&](const Tensor &tensor) { return tensor.to(device); }));
        return true;
    }

    // That of one call; nullptr: there is none, as not all is small.
    std::unique_ptr<SmallComputation> computation(const Stack &arguments,
                                                  const Stack &outputs) const
    {
        size_t count = 0;
        if (!is_computed_ || !is_small(outputs, count) || !is_small(arguments, count))
            return nullptr;
        auto made = std::make_unique<SmallComputation>(SmallComputation{&op_});
        for (size_t i = 0; i < arguments.size(); i++) {
            const c10::Argument &argument = op_.schema().arguments()[i];
            const c10::AliasInfo *alias = argument.alias_info();
            const bool is_written = alias != nullptr && alias->isWrite();
            const bool is_read = !is_written || !(overwrites_ || argument.is_out());
            mirror(arguments[i], is_read, is_written, made->arguments, made->mirrors);
        }
        for (size_t i = 0; i < outputs.size(); i++)
            if (op_.schema().returns()[i].alias_info() == nullptr)
                mirror(outputs[i], false, true, made->outputs, made->mirrors);
            else
                made->outputs.emplace_back();
        return made;
    }

    // Gives the current stream the computation, behind the kernels of the operator.
    void follow(const std::string &name, std::unique_ptr<SmallComputation> work) const
    {
        oomph_sim_compute_t what = {
            name.c_str(),
            /*ranges=*/nullptr,
            /*range_count=*/0,   &SmallComputation::run, &SmallComputation::release,
            work.release(),
            /*makes_calls=*/0,
            /*is_waited_for=*/0,
            /*meeting=*/nullptr,
            /*cost_ns=*/0};
        check_taken(called(name),
                    sim_compute(&what, c10::cuda::getCurrentCUDAStream().stream()));
    }
};

} // namespace oomph_values
