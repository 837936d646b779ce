// kernel.hpp - what is registered over an operator's CUDA kernel.
//
// An operator runs in one of three ways:
//
// * later: the CUDA kernel's host code runs dry, the stream gets the computation;
// * now: the same, but the caller waits for the stream and computes itself, as random
//   numbers, and gradients of a forward that runs again, are not to be had while the
//   driver is locked;
// * first: the caller computes and allocates the results, as their size, or what the
//   CUDA kernel does, depends on values.
#pragma once
#include "arguments.hpp"
#include "computation.hpp"
#include "draws.hpp"
#include "dry.hpp"
#include "operators.hpp"

#include <c10/core/Event.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace oomph_values
{

// The stream's own device is current, in a context of this thread.
class OnDevice
{
    c10::cuda::CUDAGuard guard_;

  public:
    explicit OnDevice(c10::Device device) : guard_(device)
    {
        static thread_local bool has_context = false;
        if (!has_context)
            c10::cuda::SetDevice(device.index(), /*force=*/true);
        has_context = true;
    }
};

// Whether other libraries have defined operators that are to get values (foreign.hpp).
inline std::atomic<bool> has_defined{false};
inline void take_over_defined();

class Kernel final : public c10::OperatorKernel
{
    HostCode host_;
    std::string name_;
    Cpu cpu_;
    bool has_cpu_, draws_, needs_values_, is_copy_, is_item_;
    size_t argument_count_, return_count_;
    std::vector<size_t> written_;          // arguments
    std::optional<size_t> indices_;        // the argument that may hold masks
    std::optional<size_t> generator_;      // the argument that draws
    std::mutex mutex_;                     // guards:
    std::unordered_set<size_t> rehearsed_; // signatures

  public:
    Kernel(const OperatorHandle &op, std::string name, c10::DispatchKey on_gpu,
           c10::DispatchKey on_cpu, Equivalent equivalent, bool is_foreign = false)
        : host_(op.getComputedKernelForDispatchKey(on_gpu), is_foreign),
          name_(std::move(name)), cpu_{op, equivalent},
          has_cpu_(cpu_.equivalent.compute != nullptr ||
                   op.hasComputedKernelForDispatchKey(on_cpu)),
          draws_(draws(op)),
          needs_values_(Names(SIZED_BY_VALUES).contain(name_) ||
                        Names(NEED_VALUES).contain(name_) || returns_no_tensor(op) ||
                        on_gpu != c10::DispatchKey::CUDA),
          is_copy_(name_ == "copy_"), is_item_(name_ == "_local_scalar_dense"),
          argument_count_(op.schema().arguments().size()),
          return_count_(op.schema().returns().size()), generator_(generator_of(op))
    {
        for (size_t i = 0; i < argument_count_; i++) {
            const c10::Argument &argument = op.schema().arguments()[i];
            const std::string type = argument.type()->str();
            if (argument.alias_info() != nullptr && argument.alias_info()->isWrite())
                written_.push_back(i);
            if (type == "Tensor?[]")
                indices_ = i;
        }
    }

    void operator()(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack)
    {
        if (has_defined)
            take_over_defined();
        if (nesting > 0) {
            if (is_item_ || needs_values_ || (is_copy_ && goes_to_host(*stack)))
                throw AsksValue();
            host_.run(op, keys, stack);
            return;
        }
        if (has_failed)
            throw_failure();
        size_t base = stack->size() - argument_count_;
        Stack arguments(stack->begin() + static_cast<std::ptrdiff_t>(base),
                        stack->end());
        if (is_item_ || (is_copy_ && leaves_gpu(arguments))) {
            move_bytes(op, keys, stack);
            return;
        }
        if (is_copy_ && leaves_device(arguments)) {
            copy_to_peer(op, keys, *stack, base, arguments);
            return;
        }
        if (indices_)
            masks_to_indices(arguments, *stack, base, *indices_);
        OnDevice guard(device_of(arguments));
        call(op, keys, *stack, base, arguments);
    }

  private:
    // As PyTorch does it: on the source's stream, once the target's has come so far;
    // the target's then waits for the copy.
    void copy_to_peer(const OperatorHandle &op, c10::DispatchKeySet keys, Stack &stack,
                      size_t base, const Stack &arguments)
    {
        c10::Device to = arguments[0].toTensor().device();
        OnDevice guard(arguments[1].toTensor().device());
        c10::Event copied(c10::kCUDA);

        call(op, keys, stack, base, arguments);
        copied.record(c10::cuda::getCurrentCUDAStream());
        copied.block(c10::cuda::getCurrentCUDAStream(to.index()));
    }

    // The driver moves them, and may find that a computation failed.
    void move_bytes(const OperatorHandle &op, c10::DispatchKeySet keys,
                    Stack *stack) const
    {
        try {
            host_.run(op, keys, stack);
        } catch (const c10::Error &) {
            if (has_failed)
                throw_failure();
            throw;
        }
    }

    std::optional<at::Generator> generator(const Stack &arguments) const
    {
        if (!generator_ || arguments[*generator_].isNone())
            return std::nullopt;
        return arguments[*generator_].toGenerator();
    }

    bool waits(const Stack &arguments) const
    {
        return cpu_.equivalent.waits != nullptr ? cpu_.equivalent.waits(arguments)
                                                : draws_;
    }

    void call(const OperatorHandle &op, c10::DispatchKeySet keys, Stack &stack,
              size_t base, const Stack &arguments)
    {
        need_cpu();
        bool now = needs_values_ || waits(arguments);
        if (now && !host_.is_foreign() && is_capturing()) {
            capture(op, keys, stack, base, arguments);
            return;
        }
        if (now)
            need_idle();
        std::optional<Position> from;
        if (waits(arguments) && draws_)
            from = position(generator(arguments), device_of(arguments));
        if (needs_values_ || !host_.run_dry(op, keys, &stack, base)) {
            need_idle();
            stack.resize(base);
            compute_first(arguments, from, stack);
            return;
        }
        Stack outputs(stack.end() - static_cast<std::ptrdiff_t>(return_count_),
                      stack.end());
        if (now)
            compute_now(arguments, outputs, from);
        else
            compute_later(arguments, outputs);
    }

    // What would else be computed at once is put off into the graph: at each replay it
    // draws from where the replay stands, in a thread that may call the driver. The
    // host's code cannot have looked at values here, so its results are of the right
    // size.
    void capture(const OperatorHandle &op, c10::DispatchKeySet keys, Stack &stack,
                 size_t base, const Stack &arguments)
    {
        at::Generator of_gpu = of_device(generator(arguments), device_of(arguments));
        std::optional<Captured> captured;
        if (draws_) {
            at::PhiloxCudaState from = step(of_gpu, 4);
            captured = {from.seed_.ptr, from.offset_.ptr, from.offset_intragraph_, 0};
        }
        if (!host_.run_dry(op, keys, &stack, base))
            need_idle();
        if (captured)
            captured->end = step(of_gpu, 0).offset_intragraph_;
        Stack outputs(stack.end() - static_cast<std::ptrdiff_t>(return_count_),
                      stack.end());
        give_stream(std::make_unique<Computation>(
                        Computation{&cpu_, &name_, aliases(arguments), aliases(outputs),
                                    generator_, captured}),
                    ranges_of(arguments, outputs), /*makes_calls=*/true);
    }

    void need_cpu() const
    {
        TORCH_CHECK_NOT_IMPLEMENTED(has_cpu_, called(name_),
                                    " cannot run on the simulated GPU with values: the "
                                    "CPU has no kernel for it. "
                                    "Leave it out, or simulate shapes alone.");
    }

    void need_idle() const
    {
        TORCH_CHECK_NOT_IMPLEMENTED(
            !is_capturing(), called(name_),
            " cannot be captured on the simulated GPU with values: the size of its "
            "result, or what it does, depends on values. Leave it out of the graph, or "
            "simulate shapes alone.");
    }

    // All memory of the GPU that a call uses.
    std::vector<oomph_sim_range_t> ranges_of(const Stack &arguments,
                                             const Stack &outputs) const
    {
        std::vector<oomph_sim_range_t> ranges;
        auto add = [&](const IValue &value, bool writes) {
            for (const Tensor &tensor : tensors(value))
                if (has_bytes(tensor))
                    ranges.push_back({address_of(tensor), span_bytes(tensor), writes});
        };
        for (size_t i = 0; i < arguments.size(); i++)
            add(arguments[i], is_written(i));
        for (const IValue &output : outputs)
            add(output, true);
        return ranges;
    }

    void compute_later(const Stack &arguments, const Stack &outputs)
    {
        auto work = std::make_unique<Computation>(
            Computation{&cpu_, &name_, aliases(arguments), aliases(outputs)});
        if (!rehearse(*work)) {
            need_idle();
            compute_now(arguments, outputs, std::nullopt);
            return;
        }
        give_stream(std::move(work), ranges_of(arguments, outputs), false);
    }

    void give_stream(std::unique_ptr<Computation> work,
                     const std::vector<oomph_sim_range_t> &ranges,
                     bool makes_calls) const
    {
        oomph_sim_compute_t what = {
            name_.c_str(),         ranges.data(),  ranges.size(), &Computation::run,
            &Computation::release, work.release(), makes_calls,
            /*is_waited_for=*/0};
        int result = sim_compute(&what, c10::cuda::getCurrentCUDAStream().stream());
        if (has_failed)
            throw_failure();
        check_taken(called(name_), result);
    }

    // Whether the CPU's kernel takes such arguments, asked once for each kind: what
    // it does not take is computed at once, and so fails in the call.
    bool rehearse(const Computation &work)
    {
        size_t kind = signature(work.arguments);
        std::lock_guard<std::mutex> guard(mutex_);
        if (rehearsed_.count(kind) != 0)
            return true;
        try {
            Computation{work.cpu, work.name, zeros_like(work.arguments),
                        zeros_like(work.outputs)}
                .run();
        } catch (const std::exception &) {
            return false;
        }
        rehearsed_.insert(kind);
        return true;
    }

    bool is_written(size_t argument) const
    {
        return std::find(written_.begin(), written_.end(), argument) != written_.end();
    }

    // Aliases of the arguments, once the stream has left in them what it will.
    static Stack settled_aliases(const Stack &arguments)
    {
        c10::cuda::getCurrentCUDAStream().synchronize();
        if (has_failed)
            throw_failure();
        return aliases(arguments);
    }

    // Computes in this thread: takes aliases of the arguments, leaves the results.
    void compute(Stack &stack, const std::optional<at::Generator> &of_gpu,
                 std::optional<Position> from) const
    {
        OnlyKernels only;
        try {
            if (!from) {
                cpu_.call(stack);
                return;
            }
            auto [before, after] = compute_from(cpu_, generator_, *from, stack);
            move_on(of_gpu, {c10::kCUDA, c10::cuda::current_device()}, *from, before,
                    after);
        } catch (c10::Error &error) {
            error.add_context(called(name_) + " failed on the simulated GPU");
            throw;
        }
    }

    void compute_now(const Stack &arguments, const Stack &outputs,
                     std::optional<Position> from) const
    {
        Stack results = settled_aliases(arguments);
        compute(results, generator(arguments), from);
        OnlyKernels only;
        for (size_t i = 0; i < outputs.size() && i < results.size(); i++)
            put(over(outputs[i]), results[i]);
    }

    // An output as CPU kernels take it; one on the host stays as it is.
    static IValue over(const IValue &output)
    {
        return changed(output, [](const Tensor &tensor) {
            return tensor.defined() && tensor.is_cuda() ? alias_tensor(tensor) : tensor;
        });
    }

    // Written arguments are computed on copies, as they may change their sizes.
    void compute_first(const Stack &arguments, std::optional<Position> from,
                       Stack &stack) const
    {
        c10::Device device = device_of(arguments);
        Stack results = settled_aliases(arguments);
        std::vector<Tensor> copies;
        for (size_t i : written_) {
            TORCH_CHECK_NOT_IMPLEMENTED(
                arguments[i].isTensor(), called(name_),
                " cannot run on the simulated GPU with values: it writes a list");
            copies.push_back(results[i].toTensor().clone());
            results[i] = copies.back();
        }
        compute(results, generator(arguments), from);
        for (size_t i = 0; i < written_.size(); i++)
            replace(arguments[written_[i]].toTensor(), copies[i]);
        size_t written = 0;
        for (size_t i = 0; i < results.size(); i++) {
            bool is_argument = cpu_.op.schema().returns()[i].alias_info() != nullptr;
            stack.push_back(is_argument ? arguments[written_[written++]]
                                        : to_gpu(results[i], device));
        }
    }
};

} // namespace oomph_values
