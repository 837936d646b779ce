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

#include "kernel.hpp"
#include "operators.hpp"

#include <torch/csrc/api/include/torch/version.h>
#include <torch/library.h>

#include <deque>
#include <memory>
#include <set>
#include <string>

namespace oomph_values
{
namespace
{

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

// The key of the GPU's kernels, that of the CPU's, and what keeps its kernel.
struct Kind {
    c10::DispatchKey gpu, cpu;
    const std::set<std::string> *left_alone;
};

// Kernels live as long as their library: to the end.
std::deque<torch::Library> &libraries()
{
    static auto *all = new std::deque<torch::Library>;
    return *all;
}

torch::CppFunction kernel(const OperatorHandle &op, const std::string &name,
                          const Kind &kind)
{
    if (kind.gpu == c10::DispatchKey::NestedTensorCUDA)
        return torch::CppFunction::makeFromBoxedFunctor(
            std::make_unique<Refusal>(op, name, kind.gpu));
    return torch::CppFunction::makeFromBoxedFunctor(
        std::make_unique<Kernel>(op, name, kind.gpu, kind.cpu));
}

int install_kernels(const Kind &kind)
{
    torch::Library &library = libraries().emplace_back(torch::Library::IMPL, "aten",
                                                       kind.gpu, __FILE__, __LINE__);
    c10::Dispatcher &dispatcher = c10::Dispatcher::singleton();
    int count = 0;
    for (const c10::OperatorName &full : dispatcher.getAllOpNames()) {
        auto op = dispatcher.findOp(full);
        if (full.name.rfind("aten::", 0) != 0 || !op || !op->hasSchema())
            continue;
        std::string name = full.name.substr(6);
        if (!full.overload_name.empty())
            name += "." + full.overload_name;
        bool is_whole =
            kind.gpu == c10::DispatchKey::CUDA && taken_whole().count(name) != 0;
        if (kind.left_alone->count(name) != 0 || is_view(*op) ||
            !(op->hasKernelForDispatchKey(kind.gpu) || is_whole))
            continue;
        library.impl(name.c_str(), kernel(*op, name, kind));
        count++;
    }
    return count;
}

// Gives how many operators have values now.
int install_all()
{
    static bool is_done = false;
    if (is_done)
        return 0;
    is_done = true;
    Quiet quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet); // kernels are replaced: meant
    using Key = c10::DispatchKey;
    int count = install_kernels({Key::CUDA, Key::CPU, &left_alone()});
    count +=
        install_kernels({Key::SparseCUDA, Key::SparseCPU, &left_alone_if_sparse()});
    count += install_kernels(
        {Key::SparseCsrCUDA, Key::SparseCsrCPU, &left_alone_if_sparse()});
    install_kernels(
        {Key::NestedTensorCUDA, Key::NestedTensorCPU, &left_alone_if_nested()});
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
        return PyLong_FromLong(oomph_values::install_all());
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
