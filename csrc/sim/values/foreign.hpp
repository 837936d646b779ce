// foreign.hpp - operators of other libraries than PyTorch: what has kernels for CUDA
// and for the CPU is computed as PyTorch's own operators are, and where operators take
// time, what launches kernels takes that of the bytes that it is given and gives. What
// it multiplies is not known.
//
// Libraries are loaded at any time, and define operators before their kernels. So each
// operator that is defined gets, below autograd and above all kernels, one of ours,
// which looks when it is called. A kernel that is written in Python is run as it is, as
// what it calls computes or is refused; on the CPU it needs the interpreter, which
// nobody may wait for while a stream computes.
#pragma once
#include "kernel.hpp"
#include "values/costs/cost.hpp"

#include <Python.h>

#include <torch/library.h>

#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace oomph_values
{

// Whether the operator's kernel of this key is written in Python: it takes a stack
// alone, as those of PyTorch's stable interface do, and was not registered by a source
// of C++ or CUDA.
inline bool is_python(const OperatorHandle &op, const std::string &key)
{
    static const std::regex boxed(R"(registered at (.*?)(\.\w+)?:\d+ .*\[ boxed \]$)");
    static const std::regex compiled(R"(\.(c|cc|cpp|cu|cuh|cxx|h|hh|hip|hpp|inc))");
    const std::string all = "\n" + op.dumpState();
    size_t begin = all.find("\n" + key + ": ");
    if (begin == std::string::npos)
        return false;
    std::string line = all.substr(begin + 1, all.find('\n', begin + 1) - begin - 1);
    std::smatch found;
    return std::regex_search(line, found, boxed) &&
           !std::regex_match(found[2].str(), compiled);
}

// What is done to operators of other libraries.
inline std::atomic<bool> foreign_compute{false}, foreign_cost{false};

class Foreign final : public c10::OperatorKernel
{
    std::mutex mutex_; // guards:
    std::unique_ptr<Kernel> kernel_;
    std::optional<Cost> cost_;

    static bool is_computed(const OperatorHandle &op)
    {
        return foreign_compute && op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) &&
               op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && !is_view(op) &&
               !is_python(op, "CUDA");
    }

    // NULL if there is nothing to stand for the CUDA kernel.
    Kernel *kernel(const OperatorHandle &op)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        if (kernel_ == nullptr && is_computed(op))
            kernel_ = std::make_unique<Kernel>(
                op, toString(op.operator_name()), c10::DispatchKey::CUDA,
                c10::DispatchKey::CPU,
                Equivalent{nullptr, is_python(op, "CPU") ? always : nullptr},
                /*is_foreign=*/true);
        return kernel_.get();
    }

    const Cost &cost(const OperatorHandle &op)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        if (!cost_)
            cost_.emplace(op, toString(op.operator_name()));
        return *cost_;
    }

    void run(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack)
    {
        constexpr c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER,
                                            c10::DispatchKey::BackendSelect);
        keys = keys & below;
        Kernel *stands = keys.highestPriorityTypeId() == c10::DispatchKey::CUDA
                             ? kernel(op)
                             : nullptr;
        if (stands != nullptr)
            (*stands)(op, keys, stack);
        else
            op.redispatchBoxed(keys, stack);
    }

  public:
    void operator()(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack)
    {
        if (!foreign_cost || !keys.has_backend(c10::BackendComponent::CUDABit)) {
            run(op, keys, stack);
            return;
        }
        const Stack arguments = top_of(*stack, op.schema().arguments().size());
        operator_count++;
        InOperator inside;
        run(op, keys, stack);
        const oomph_sim_launched_t launched = inside.end();
        if (launched.kernel_count + launched.library_call_count == 0)
            return; // it is the sum of what it called
        const Stack outputs = top_of(*stack, op.schema().returns().size());
        c10::cuda::CUDAGuard guard(device_of(arguments, outputs));
        cost(op).report(Call(op, arguments, outputs), launched, /*multiplies=*/false,
                        /*is_followed=*/false);
    }
};

// Kernels are replaced on purpose.
class Quiet final : public c10::WarningHandler
{
    void process(const c10::Warning &) override
    {
    }
};

// Operators that were defined or dropped since, and those that have a kernel of ours.
struct Defined {
    std::mutex waiting_mutex; // comes after the dispatcher's; guards:
    std::vector<c10::OperatorName> waiting;
    std::mutex mutex;                           // comes before it; guards:
    std::map<std::string, torch::Library> ours; // which keep the kernels
};

inline std::atomic<bool> is_listening{false};

inline Defined &defined()
{
    static auto *all = new Defined; // threads may call while the process ends
    return *all;
}

// Gives the operator a kernel of ours, or takes it back if nobody defines it any more:
// otherwise it would be listed for ever.
inline void take_over(Defined &all, const c10::OperatorName &name)
{
    const auto key = c10::DispatchKey::BackendSelect;
    const std::string full = toString(name);
    all.ours.erase(full);
    auto op = c10::Dispatcher::singleton().findSchema(name);
    auto space = name.getNamespace();
    if (!op || !space || op->hasKernelForDispatchKey(key))
        return;
    torch::Library library(torch::Library::IMPL, std::string(*space), key, __FILE__,
                           __LINE__);
    library.impl(full.c_str(),
                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Foreign>()));
    all.ours.emplace(full, std::move(library));
}

// Gives kernels of ours to what was defined since the last time.
inline void take_over_defined()
{
    if (!has_defined.exchange(false))
        return;
    std::vector<c10::OperatorName> waiting;
    {
        std::lock_guard<std::mutex> guard(defined().waiting_mutex);
        waiting.swap(defined().waiting);
    }
    Quiet quiet;
    c10::WarningUtils::WarningHandlerGuard no_warning(&quiet);
    std::lock_guard<std::mutex> guard(defined().mutex);
    for (const c10::OperatorName &name : waiting)
        take_over(defined(), name);
}

// Hears of definitions while the dispatcher is locked; Python takes them over when the
// library is loaded, before the program goes on.
class Listener final : public c10::OpRegistrationListener
{
    static int take_over_later(void *)
    {
        take_over_defined();
        return 0;
    }

    static void note(const OperatorHandle &op)
    {
        if (!is_listening || !Py_IsInitialized())
            return; // libraries leave when the process ends, after the interpreter
        std::lock_guard<std::mutex> guard(defined().waiting_mutex);
        defined().waiting.push_back(op.operator_name());
        if (!has_defined.exchange(true))
            Py_AddPendingCall(take_over_later, nullptr);
    }

    void onOperatorRegistered(const OperatorHandle &op) override
    {
        note(op);
    }

    void onOperatorDeregistered(const OperatorHandle &op) override
    {
        note(op);
    }
};

// From now on: PyTorch's own operators are there.
inline void listen(std::atomic<bool> &does)
{
    does = true;
    static auto *handle = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(
            std::make_unique<Listener>()));
    (void)handle;
    is_listening = true;
}

} // namespace oomph_values
