// values.cpp - what PyTorch's operators do on the simulated GPU beyond their host's
// code: values, and the time that they take (cost.hpp).
//
// Values: each operator's CPU kernel is run where its CUDA kernel would. Every operator
// with a CUDA kernel gets one of ours. It runs PyTorch's CUDA kernel "dry", so that the
// host's code chooses, allocates and launches as on a GPU while no byte moves; then it
// gives the stream a computation: the operator's CPU kernel on CPU tensors over the
// same bytes. That runs when the stream comes to it, in the simulated time and order of
// the GPU, so an allocator that gives memory away too early changes values. What cannot
// be put off (random numbers, results whose size depends on values) waits for the
// stream and is computed at once.
//
// A computation runs while the driver is locked: it must not touch tensors of the GPU.
//
// All of it is one translation unit: to parse the headers of PyTorch that it needs
// takes 17 s of a core.
#include <Python.h>

#include "deferred.hpp"
#include "foreign.hpp"
#include "kernel.hpp"
#include "operators.hpp"
#include "refusal.hpp"
#include "values/costs/cost.hpp"
#include "weights.hpp"

#include <torch/csrc/api/include/torch/version.h>
#include <torch/library.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace oomph_values
{
namespace
{

// A way to wrap the kernel of an operator, which is given with its name.
using Wrap = std::function<torch::CppFunction(const OperatorHandle &, std::string)>;

// The key of the kernels that are wrapped, and who keeps them as they are.
struct Kind {
    c10::DispatchKey key;
    Names left_alone;
    Names whole; // wrapped though only their parts have kernels
    bool (*takes)(const OperatorHandle &) = nullptr; // which of the rest; NULL: all
};

// Kernels live as long as their library: to the end.
std::deque<torch::Library> &libraries()
{
    static auto *all = new std::deque<torch::Library>;
    return *all;
}

int install_kernels(const Kind &kind, const Wrap &wrap)
{
    torch::Library &library = libraries().emplace_back(torch::Library::IMPL, "aten",
                                                       kind.key, __FILE__, __LINE__);
    c10::Dispatcher &dispatcher = c10::Dispatcher::singleton();
    int count = 0;
    for (const c10::OperatorName &full : dispatcher.getAllOpNames()) {
        auto op = dispatcher.findOp(full);
        if (full.name.rfind("aten::", 0) != 0 || !op || !op->hasSchema())
            continue;
        std::string name = full.name.substr(6);
        if (!full.overload_name.empty())
            name += "." + full.overload_name;
        if (kind.left_alone.contain(name) || is_view(*op) ||
            (kind.takes != nullptr && !kind.takes(*op)) ||
            !(op->hasKernelForDispatchKey(kind.key) || kind.whole.contain(name)))
            continue;
        library.impl(name.c_str(), wrap(*op, name));
        count++;
    }
    return count;
}

// Kernels that compute, or refuse to, as those of the key `cpu` do.
Wrap with_values(c10::DispatchKey gpu, c10::DispatchKey cpu)
{
    return [=](const OperatorHandle &op, const std::string &name) {
        return torch::CppFunction::makeFromBoxedFunctor(
            std::make_unique<Kernel>(op, name, gpu, cpu, equivalent(name)));
    };
}

torch::CppFunction refused(const OperatorHandle &op, std::string name)
{
    return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Refusal>(
        op, std::move(name), c10::DispatchKey::NestedTensorCUDA));
}

torch::CppFunction with_cost(const OperatorHandle &op, std::string name)
{
    return torch::CppFunction::makeFromBoxedFunctor(
        std::make_unique<Costed>(op, std::move(name), c10::DispatchKey::CUDA));
}

// Gives what a function does that is called once, without warnings: kernels are
// replaced on purpose.
int once(bool &is_done, int (*install)())
{
    if (is_done)
        return 0;
    is_done = true;
    Quiet quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    return install();
}

// Gives how many operators have values now.
int install_all()
{
    static bool is_done = false;
    using Key = c10::DispatchKey;
    return once(is_done, [] {
        int count = install_kernels({Key::CUDA, LEFT_ALONE, TAKEN_WHOLE},
                                    with_values(Key::CUDA, Key::CPU));
        count += install_kernels({Key::SparseCUDA, LEFT_ALONE_IF_SPARSE, {}},
                                 with_values(Key::SparseCUDA, Key::SparseCPU));
        count += install_kernels({Key::SparseCsrCUDA, LEFT_ALONE_IF_SPARSE, {}},
                                 with_values(Key::SparseCsrCUDA, Key::SparseCsrCPU));
        install_kernels({Key::NestedTensorCUDA, LEFT_ALONE_IF_NESTED, {}}, refused);
        listen(foreign_compute);
        return count;
    });
}

// Gives how many operators have costs now. Comes after the values, which it wraps.
int install_costs()
{
    static bool is_done = false;
    return once(is_done, [] {
        listen(foreign_cost);
        return install_kernels({c10::DispatchKey::CUDA, LEFT_ALONE, COPIED}, with_cost);
    });
}

// Gives how many operators of the CPU leave weights alone now.
int install_unwritten()
{
    static bool is_done = false;
    return once(is_done, [] {
        return install_kernels({c10::DispatchKey::CPU, LEFT_ALONE, COPIED, changes_one},
                               [](const OperatorHandle &op, const std::string &) {
                                   return torch::CppFunction::makeFromBoxedFunctor(
                                       std::make_unique<Unwritten>(op));
                               });
    });
}

} // namespace
} // namespace oomph_values

/* ---- The module */

// Calls what installs kernels. Gives the number of kernels.
static PyObject *call(int (*function)())
{
    try {
        return PyLong_FromLong(function());
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
}

// Takes the addresses of functions of the simulated driver. False: they are not
// there, and Python is in an exception.
template <typename... Function>
static bool take_addresses(PyObject *arguments, Function &...functions)
{
    Py_ssize_t next = 0;
    const auto take = [&](auto &function) {
        PyObject *address = PyTuple_GetItem(arguments, next++);
        if (address != nullptr)
            function = reinterpret_cast<std::decay_t<decltype(function)>>( // NOLINT
                PyLong_AsUnsignedLongLong(address));
    };

    (take(functions), ...);
    return PyErr_Occurred() == nullptr;
}

// Gives how many operators have values now. Needs oomph_sim_compute() and
// oomph_sim_dry().
static PyObject *install(PyObject *, PyObject *arguments)
{
    using namespace oomph_values;
    return take_addresses(arguments, sim_compute, sim_dry) ? call(install_all)
                                                           : nullptr;
}

// Has operators on small tensors compute where memory is not real. Comes before their
// costs. Needs oomph_sim_compute(), _peek_view(), _look_view(), _poke() and
// _poke_zeros().
static PyObject *know_small(PyObject *, PyObject *arguments)
{
    using namespace oomph_values;
    if (!take_addresses(arguments, sim_compute, sim_peek, sim_look, sim_poke,
                        sim_poke_zeros))
        return nullptr;
    Py_RETURN_NONE;
}

// Gives how many operators have costs now. Needs oomph_sim_cost() and
// oomph_sim_operator().
static PyObject *install_costs(PyObject *, PyObject *arguments)
{
    using namespace oomph_values;
    return take_addresses(arguments, sim_cost, sim_operator)
               ? call(oomph_values::install_costs)
               : nullptr;
}

// Has the graph that the current stream captures call a function at each replay.
static PyObject *defer(PyObject *, PyObject *arguments)
{
    const char *name = nullptr;
    PyObject *function = nullptr;

    if (!PyArg_ParseTuple(arguments, "sO", &name, &function))
        return nullptr;
    try {
        oomph_values::defer(name, function);
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    Py_RETURN_NONE;
}

// From now on the weights that are noted are not written.
static PyObject *leave_weights_out(PyObject *, PyObject *)
{
    return call(oomph_values::install_unwritten);
}

// Takes the storage at an address, which lives, for one of a weight.
static PyObject *note_weight(PyObject *, PyObject *address)
{
    auto *impl = static_cast<c10::StorageImpl *>(PyLong_AsVoidPtr(address));

    if (PyErr_Occurred() != nullptr)
        return nullptr;
    oomph_values::weights().add(
        c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl)));
    Py_RETURN_NONE;
}

// Gives how many bytes of weights were not written.
static PyObject *unwritten_bytes(PyObject *, PyObject *)
{
    return PyLong_FromUnsignedLongLong(oomph_values::unwritten_bytes);
}

static PyMethodDef methods[] = {
    {"install", install, METH_VARARGS, "Gives operators of the simulated GPU values."},
    {"know_small", know_small, METH_VARARGS,
     "Has operators on small tensors compute where memory is not real."},
    {"install_costs", install_costs, METH_VARARGS,
     "Gives operators of the simulated GPU the time that they take."},
    {"defer", defer, METH_VARARGS,
     "Has the graph that is captured call a function at each replay."},
    {"leave_weights_out", leave_weights_out, METH_NOARGS,
     "From now on the weights that are noted are not written."},
    {"note_weight", note_weight, METH_O,
     "Takes the storage at an address, which lives, for one of a weight."},
    {"unwritten_bytes", unwritten_bytes, METH_NOARGS,
     "Gives how many bytes of weights were not written."},
    {nullptr, nullptr, 0, nullptr},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                 "oomph._values",
                                 "Values and costs of the simulated GPU.",
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
