// values.cpp - the values of the simulated GPU: each operator's CPU kernel, run where
// its CUDA kernel would.
//
// Every operator with a CUDA kernel gets one of ours. It runs PyTorch's CUDA kernel
// "dry", so that the host's code chooses, allocates and launches as on a GPU while no
// byte moves; then it gives the stream a computation: the operator's CPU kernel on CPU
// tensors over the same bytes. That runs when the stream comes to it, in the simulated
// time and order of the GPU, so an allocator that gives memory away too early changes
// values. What cannot be put off (random numbers, results whose size depends on values)
// waits for the stream and is computed at once.
//
// A computation runs while the driver is locked: it must not touch tensors of the GPU.
#include <Python.h>

#include "alias.hpp"
#include "draws.hpp"
#include "equivalents.hpp"
#include "sim.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/api/include/torch/version.h>
#include <torch/library.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace oomph_values
{
namespace
{

using at::Tensor;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

decltype(&oomph_sim_compute) sim_compute; // of the simulated driver
decltype(&oomph_sim_dry) sim_dry;

/* ---- Which operators are special */

// They only describe memory, or the driver moves the bytes.
const std::set<std::string> &left_alone()
{
    static const std::set<std::string> names = {
        "_cudnn_init_dropout_state",
        "_efficientzerotensor",
        "_fused_sdp_choice",
        "_local_scalar_dense",
        "_pin_memory",
        "_use_cudnn_ctc_loss",
        "_use_cudnn_ctc_loss.Tensor",
        "empty.memory_format",
        "empty_strided",
        "is_pinned",
        "is_set_to",
        "record_stream",
        "resize_",
        "set_",
        "set_.source_Storage",
        "set_.source_Storage_storage_offset",
        "set_.source_Tensor",
    };
    return names;
}

// The size of the result, or what the CUDA kernel does, depends on values.
const std::set<std::string> &need_values()
{
    static const std::set<std::string> names = {
        "_ctc_loss",
        "_unique",
        "_unique2",
        "bincount",
        "equal",
        "histc",
        "histc.out",
        "masked_select",
        "masked_select.out",
        "mode",
        "multinomial",
        "multinomial.out",
        "nonzero",
        "nonzero.out",
        "nonzero_static",
        "repeat_interleave.Tensor",
        "segment_reduce",
        "unique_consecutive",
        "unique_dim",
        "unique_dim_consecutive",
    };
    return names;
}

// Without a CUDA kernel of their own, they would be decomposed otherwise than on the
// CPU.
const std::set<std::string> &taken_whole()
{
    static const std::set<std::string> names = {"convolution", "convolution_backward",
                                                "copy_"};
    return names;
}

/* ---- Computing */

thread_local int nesting; // in a CUDA kernel: the operators that it calls stay dry

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
        if (equivalent != nullptr)
            equivalent(stack);
        else
            op.callBoxed(stack);
    }
};

// The text of the first computation that failed after its operator had returned.
std::mutex failure_mutex;
std::string failure;
std::atomic<bool> has_failed{false};

void keep_failure(const std::string &text)
{
    std::lock_guard<std::mutex> guard(failure_mutex);
    if (has_failed)
        return;
    failure = text;
    has_failed = true;
    // As a GPU does when a kernel's assertion fails: nobody may ask again.
    std::fprintf(stderr, "oomph: %s\n", text.c_str());
}

[[noreturn]] void throw_failure()
{
    std::lock_guard<std::mutex> guard(failure_mutex);
    TORCH_CHECK(false, failure);
}

std::string told(const std::string &name, const char *what)
{
    return "aten::" + name + " failed on the simulated GPU: " + what;
}

// One call of an operator, on aliases.
struct Computation {
    const Cpu *cpu;
    const std::string *name;
    Stack arguments, outputs;

    void run() const
    {
        OnlyKernels only;
        Stack stack = arguments; // kernels may return references to their arguments
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
            keep_failure(told(*self->name, error.what()));
            return 1;
        }
        return 0;
    }

    static void release(void *argument)
    {
        delete static_cast<Computation *>(argument);
    }
};

/* ---- What memory a call uses */

void add_range(std::vector<oomph_sim_range_t> &ranges, const Tensor &tensor,
               bool writes)
{
    if (!tensor.defined() || !tensor.is_cuda() || !tensor.has_storage() ||
        tensor.numel() == 0)
        return;
    int64_t last = 0;
    for (int64_t i = 0; i < tensor.dim(); i++)
        last += (tensor.size(i) - 1) * tensor.stride(i);
    auto begin = reinterpret_cast<uint64_t>(tensor.const_data_ptr());
    uint64_t bytes = (static_cast<uint64_t>(last) + 1) * tensor.element_size();
    ranges.push_back({begin, bytes, writes});
}

/* ---- The kernel */

class Kernel final : public c10::OperatorKernel
{
    std::optional<c10::SafeKernelFunction> native_;
    std::string name_;
    Cpu cpu_;
    bool has_cpu_, waits_, draws_, needs_values_, is_copy_, mutates_ = false;
    size_t argument_count_, return_count_;
    std::vector<bool> written_;       // arguments
    std::optional<size_t> indices_;   // the argument that may hold masks
    std::optional<size_t> generator_; // the argument that draws

  public:
    Kernel(const OperatorHandle &op, std::string name)
        : native_(op.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA)),
          name_(std::move(name)), cpu_{op, equivalent(name_)},
          has_cpu_(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)),
          draws_(op.hasTag(at::Tag::nondeterministic_seeded)),
          needs_values_(need_values().count(name_) != 0 || returns_no_tensor(op)),
          is_copy_(name_ == "copy_"), argument_count_(op.schema().arguments().size()),
          return_count_(op.schema().returns().size())
    {
        for (size_t i = 0; i < argument_count_; i++) {
            const c10::Argument &argument = op.schema().arguments()[i];
            const std::string type = argument.type()->str();
            written_.push_back(argument.alias_info() != nullptr &&
                               argument.alias_info()->isWrite());
            mutates_ = mutates_ || written_.back();
            if (type == "Tensor?[]")
                indices_ = i;
            if (type == "Generator?" || type == "Generator")
                generator_ = i;
        }
        waits_ = draws_ || generator_.has_value();
    }

    void operator()(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack)
    {
        if (nesting > 0) {
            native_->callBoxed(op, keys, stack);
            return;
        }
        if (has_failed)
            throw_failure();
        size_t base = stack->size() - argument_count_;
        Stack arguments(stack->begin() + static_cast<std::ptrdiff_t>(base),
                        stack->end());
        if (is_copy_ &&
            arguments[0].toTensor().device() != arguments[1].toTensor().device()) {
            native_->callBoxed(op, keys, stack); // the driver moves the bytes
            return;
        }
        if (indices_)
            masks_to_indices(arguments, *stack, base);
        c10::Device device = device_of(arguments);
        std::optional<Position> from;
        if (waits_)
            from = position(generator(arguments), device);
        if (needs_values_ || !run_dry(op, keys, stack, base)) {
            stack->resize(base);
            compute_first(arguments, device, from, *stack);
            return;
        }
        Stack outputs(stack->end() - static_cast<std::ptrdiff_t>(return_count_),
                      stack->end());
        if (waits_)
            compute_now(arguments, outputs, device, *from);
        else
            compute_later(arguments, outputs, device);
    }

  private:
    static bool returns_no_tensor(const OperatorHandle &op)
    {
        for (const c10::Argument &result : op.schema().returns()) {
            auto kind = result.type()->kind();
            if (kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType ||
                kind == c10::TypeKind::FloatType)
                return true;
        }
        return false;
    }

    std::optional<at::Generator> generator(const Stack &arguments) const
    {
        if (!generator_ || arguments[*generator_].isNone())
            return std::nullopt;
        return arguments[*generator_].toGenerator();
    }

    static c10::Device device_of(const Stack &values)
    {
        for (const IValue &value : values) {
            if (value.isDevice() && value.toDevice().is_cuda() &&
                value.toDevice().has_index())
                return value.toDevice();
            for (const Tensor &tensor : tensors(value))
                if (tensor.defined() && tensor.is_cuda())
                    return tensor.device();
        }
        return {c10::kCUDA, c10::cuda::current_device()};
    }

    // x[mask] begins with nonzero(mask), which must have values.
    static bool is_mask(const Tensor &tensor)
    {
        return tensor.defined() &&
               (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
    }

    void masks_to_indices(Stack &arguments, Stack &stack, size_t base) const
    {
        c10::List<std::optional<Tensor>> indices;
        bool any = false;
        for (const auto &index : arguments[*indices_].toOptionalTensorVector()) {
            if (!index || !is_mask(*index)) {
                indices.push_back(index);
                continue;
            }
            any = true;
            for (Tensor &part : at::nonzero(*index).unbind(1))
                indices.push_back(std::optional<Tensor>(std::move(part)));
        }
        if (any)
            stack[base + *indices_] = arguments[*indices_] = indices;
    }

    // False if the operator needs a library that is not simulated: the CPU is asked.
    bool run_dry(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack,
                 size_t base) const
    {
        Stack arguments(stack->begin() + static_cast<std::ptrdiff_t>(base),
                        stack->end());
        try {
            Dry dry;
            native_->callBoxed(op, keys, stack);
            return true;
        } catch (const c10::OutOfMemoryError &) {
            throw;
        } catch (const c10::Error &) {
            if (mutates_)
                throw;
            return false;
        }
    }

    void need_cpu() const
    {
        TORCH_CHECK_NOT_IMPLEMENTED(has_cpu_ || cpu_.equivalent != nullptr,
                                    "aten::", name_,
                                    " cannot run on the simulated GPU with values: the "
                                    "CPU has no kernel for it. "
                                    "Leave it out, or simulate shapes alone.");
    }

    static Stack aliases(const Stack &values)
    {
        Stack found;
        found.reserve(values.size());
        for (const IValue &value : values)
            found.push_back(alias(value));
        return found;
    }

    void compute_later(const Stack &arguments, const Stack &outputs,
                       c10::Device device) const
    {
        need_cpu();
        std::vector<oomph_sim_range_t> ranges;
        for (size_t i = 0; i < arguments.size(); i++)
            for (const Tensor &tensor : tensors(arguments[i]))
                add_range(ranges, tensor, written_[i]);
        for (const IValue &output : outputs)
            for (const Tensor &tensor : tensors(output))
                add_range(ranges, tensor, true);
        auto work = std::make_unique<Computation>(
            Computation{&cpu_, &name_, aliases(arguments), aliases(outputs)});
        oomph_sim_compute_t what = {name_.c_str(),         ranges.data(),
                                    ranges.size(),         &Computation::run,
                                    &Computation::release, work.release()};
        auto stream = c10::cuda::getCurrentCUDAStream(device.index());
        int result = sim_compute(&what, stream.stream());
        if (has_failed)
            throw_failure();
        TORCH_CHECK(result == 0, told(name_, "its stream takes no more work"),
                    " (error ", result, ")");
    }

    // Runs on aliases in this thread, once the stream is idle.
    Stack compute(const Stack &arguments, c10::Device device,
                  std::optional<Position> from, bool reached) const
    {
        need_cpu();
        c10::cuda::getCurrentCUDAStream(device.index()).synchronize();
        if (has_failed)
            throw_failure();
        Stack stack = aliases(arguments);
        OnlyKernels only;
        if (!from) {
            cpu_.call(stack);
            return stack;
        }
        at::Generator draws = generator_at(*from);
        if (generator_) {
            stack[*generator_] = draws;
            cpu_.call(stack);
        } else {
            InPlaceOfDefault now(draws);
            cpu_.call(stack);
        }
        if (reached)
            remember(position(generator(arguments), device), draws);
        return stack;
    }

    void compute_now(const Stack &arguments, const Stack &outputs, c10::Device device,
                     const Position &from) const
    {
        Stack results = compute(arguments, device, from, true);
        OnlyKernels only;
        for (size_t i = 0; i < outputs.size() && i < results.size(); i++)
            put(alias(outputs[i]), results[i]);
    }

    void compute_first(const Stack &arguments, c10::Device device,
                       std::optional<Position> from, Stack &stack) const
    {
        for (IValue &result : compute(arguments, device, from, true))
            stack.push_back(to_gpu(result, device));
    }
};

/* ---- Installing */

class Quiet final : public c10::WarningHandler
{
    void process(const c10::Warning &) override
    {
    }
};

bool is_view(const OperatorHandle &op)
{
    for (const c10::Argument &result : op.schema().returns())
        if (result.alias_info() == nullptr || result.alias_info()->isWrite())
            return false;
    return !op.schema().returns().empty();
}

int install_kernels()
{
    static torch::Library *library; // its kernels live as long as it does
    if (library != nullptr)
        return 0;
    Quiet quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet); // kernels are replaced: meant
    library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA,
                                 __FILE__, __LINE__);
    c10::Dispatcher &dispatcher = c10::Dispatcher::singleton();
    int count = 0;
    for (const c10::OperatorName &full : dispatcher.getAllOpNames()) {
        auto op = dispatcher.findOp(full);
        if (full.name.rfind("aten::", 0) != 0 || !op || !op->hasSchema())
            continue;
        std::string name = full.name.substr(6);
        if (!full.overload_name.empty())
            name += "." + full.overload_name;
        bool has_kernel = op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
        if (left_alone().count(name) != 0 || is_view(*op) ||
            !(has_kernel || taken_whole().count(name) != 0))
            continue;
        library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                        std::make_unique<Kernel>(*op, name)));
        count++;
    }
    return count;
}

} // namespace
} // namespace oomph_values

/* ---- The module */

// Gives how many operators have values now. Needs the addresses of the simulated
// driver's oomph_sim_compute() and oomph_sim_dry().
static PyObject *install(PyObject *, PyObject *arguments)
{
    unsigned long long compute = 0, dry = 0;

    if (!PyArg_ParseTuple(arguments, "KK", &compute, &dry))
        return nullptr;
    oomph_values::sim_compute =
        reinterpret_cast<decltype(&oomph_sim_compute)>(compute);             // NOLINT
    oomph_values::sim_dry = reinterpret_cast<decltype(&oomph_sim_dry)>(dry); // NOLINT
    try {
        return PyLong_FromLong(oomph_values::install_kernels());
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
}

static PyMethodDef methods[] = {
    {"install", install, METH_VARARGS, "Gives operators of the simulated GPU values."},
    {nullptr, nullptr, 0, nullptr},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                 "oomph._values",
                                 "The values of the simulated GPU.",
                                 -1,
                                 methods,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr};

PyMODINIT_FUNC PyInit__values()
{
    PyObject *module = PyModule_Create(&definition);
    if (module != nullptr &&
        PyModule_AddStringConstant(module, "built_for",
                                   C10_STRINGIZE(TORCH_VERSION_MAJOR) "." C10_STRINGIZE(
                                       TORCH_VERSION_MINOR)) < 0) {
        Py_DECREF(module);
        return nullptr;
    }
    return module;
}
