// computation.hpp - one call of an operator's CPU kernel, in the place of its CUDA
// kernel.
#pragma once
#include "alias.hpp"
#include "draws.hpp"
#include "dry.hpp"
#include "equivalents.hpp"
#include "sim.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

namespace oomph_values
{

inline decltype(&oomph_sim_compute) sim_compute; // of the simulated driver

// Only kernels: no autograd, autocast, transforms or modes of this thread.
class OnlyKernels
{
    c10::impl::ExcludeDispatchKeyGuard guard_;

  public:
    OnlyKernels()
        : guard_(
              c10::autograd_dispatch_keyset_with_ADInplaceOrView |
              c10::autocast_dispatch_keyset |
              c10::DispatchKeySet(
                  {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                   c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                   c10::DispatchKey::FuncTorchDynamicLayerBackMode,
                   c10::DispatchKey::FuncTorchGradWrapper,
                   c10::DispatchKey::FuncTorchBatched,
                   c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::Functionalize,
                   c10::DispatchKey::PreDispatch, c10::DispatchKey::Tracer}))
    {
    }
};

// An operator with its CPU kernel.
struct Cpu {
    const OperatorHandle op;
    Equivalent equivalent;

    // Takes arguments off the stack and leaves results.
    void call(Stack &stack) const
    {
        if (equivalent.compute != nullptr)
            equivalent.compute(stack);
        else
            op.callBoxed(stack);
    }
};

// The text of the first computation that failed after its operator had returned.
inline std::mutex failure_mutex;
inline std::string failure;
inline std::atomic<bool> has_failed{false};

inline void keep_failure(const std::string &text)
{
    std::lock_guard<std::mutex> guard(failure_mutex);
    if (has_failed)
        return;
    failure = text;
    has_failed = true;
    // As a GPU does when a kernel's assertion fails: the program may never ask.
    std::fprintf(stderr, "oomph: %s\n", text.c_str());
}

[[noreturn]] inline void throw_failure()
{
    std::lock_guard<std::mutex> guard(failure_mutex);
    TORCH_CHECK(false, failure);
}

// An operator as messages call it; PyTorch's own are known without their namespace.
inline std::string called(const std::string &name)
{
    return name.find("::") == std::string::npos ? "aten::" + name : name;
}

inline std::string failure_text(const std::string &name, const std::exception &error)
{
    const auto *known = dynamic_cast<const c10::Error *>(&error);

    return called(name) + " failed on the simulated GPU: " +
           (known != nullptr ? known->what_without_backtrace() : error.what());
}

// Raises unless the simulated driver has taken work, as `result` says.
inline void check_taken(const std::string &called, int result)
{
    TORCH_CHECK(result == 0, called,
                " failed on the simulated GPU: its stream takes no more work (error ",
                result, ")");
}

// States of a CPU generator.
struct Drawn {
    at::Tensor before, after;
};

// Computes, with the random numbers from a position on. `generator`: the argument that
// draws, if one does.
inline Drawn compute_from(const Cpu &cpu, std::optional<size_t> generator,
                          const Position &from, Stack &stack)
{
    at::Generator draws = generator_at(from);
    at::Tensor before = draws.get_state();

    drawing_from = from;
    remember(from, before);
    if (generator) {
        stack[*generator] = draws;
        cpu.call(stack);
    } else {
        InPlaceOfDefault now(draws);
        cpu.call(stack);
    }
    return {before, draws.get_state()};
}

// One call of an operator, on aliases.
struct Computation {
    const Cpu *cpu;
    const std::string *name;
    Stack arguments, outputs;
    std::optional<size_t> generator = std::nullopt;  // the argument that draws
    std::optional<Captured> captured = std::nullopt; // if it draws at each replay

    void run() const
    {
        OnlyKernels only;
        Stack stack = arguments; // kernels may return references to their arguments
        if (captured)
            remember(captured->to(),
                     compute_from(*cpu, generator, captured->from(), stack).after);
        else
            cpu->call(stack);
        for (size_t i = 0; i < outputs.size() && i < stack.size(); i++)
            put(outputs[i], stack[i]);
    }

    static int run(void *argument)
    {
        auto *self = static_cast<Computation *>(argument);
        try {
            self->run();
        } catch (const std::exception &error) {
            keep_failure(failure_text(*self->name, error));
            return 1;
        }
        return 0;
    }

    static void release(void *argument)
    {
        delete static_cast<Computation *>(argument);
    }
};

} // namespace oomph_values
