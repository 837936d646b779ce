// torch.cpp - the module oomph._torch: makes PyTorch's allocator class, and hears the
// core's hooks.
//
// The class stands between c10's CUDAAllocator and the functions of oomph.h, which it
// reaches through a table handed over in a capsule. Memory itself, streams and pools
// are the core's business. What differs between PyTorch versions is in
// base/versions.hpp; the module remembers which version it was built for.
//
// No lock of the core is ever held here. No exception crosses a C frame: callbacks keep
// theirs in `pending`, and the call that caused it rethrows.
#include "torch/allocator/allocator.hpp"
#include "torch/allocator/forked.hpp"
#include "torch/allocator/trace.hpp"
#include "torch/base/fit.hpp"
#include "torch/tensors/backward.hpp"
#include "torch/tensors/draws.hpp"
#include "torch/tensors/holders.hpp"
#include "torch/tensors/nodes.hpp"
#include "torch/tensors/saved.hpp"

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace oomph_torch
{
namespace
{

constexpr char BUILT_FOR[] =
    C10_STRINGIZE(TORCH_VERSION_MAJOR) "." C10_STRINGIZE(TORCH_VERSION_MINOR);

/* ---- Hooks of the core */

void free_memory(int)
{
    keep_exception([] {
        for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
            c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    });
}

void unmapping(int device, oomph_addr_t addr, size_t bytes, oomph_stream_t stream)
{
    keep_exception([&] { self->on_unmapping(device, addr, bytes, stream); });
}

void notice(const oomph_notice_t *notice)
{
    keep_exception([&] { self->on_notice(*notice); });
}

/* ---- The module */

native::CUDAAllocator *replaced; // PyTorch's allocator before; guarded by the GIL

// Throws if PyTorch has initialised the one that is in place.
void put_in_place(native::CUDAAllocator *allocator)
{
    // PyTorch keeps what it is given; both live as long as the process.
    std::shared_ptr<native::CUDAAllocator> shared(allocator,
                                                  [](native::CUDAAllocator *) {});
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(shared);
    // torch.accelerator.memory_* asks here; a priority of 0 is ignored by some
    // versions.
    c10::SetAllocator(c10::DeviceType::CUDA, allocator, UINT8_MAX);
}

// Makes the class PyTorch's allocator. Throws if PyTorch has initialised its own, or is
// not as this was built for: then nothing has changed.
void install_allocator()
{
    native::CUDAAllocator *before = native::get();
    auto *made = new Allocator(before->name()); // lives as long as the process
    const std::string reason = misfit(*before, *made);
    if (!reason.empty())
        throw std::runtime_error(std::string("oomph was built for PyTorch ") +
                                 BUILT_FOR +
                                 ", and this PyTorch is not as that one: " + reason);
    if (self == nullptr) {
        self = made;
        self->follow_settings();
    }
    oomph_hooks_t hooks = {};
    hooks.free_memory = &free_memory;
    hooks.unmapping = &unmapping;
    hooks.notice = &notice;
    core->set_hooks(&hooks);
    site_min_bytes = core->site_min_bytes();
    put_in_place(self);
    if (before != self)
        replaced = before;
}

PyObject *install(PyObject *, PyObject *)
{
    if (!find_core())
        return nullptr;
    try {
        install_allocator();
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    Py_RETURN_NONE;
}

PyObject *withdraw(PyObject *, PyObject *)
{
    return or_raise([]() -> PyObject * {
        if (replaced != nullptr)
            put_in_place(replaced);
        Py_RETURN_NONE;
    });
}

PyObject *set_site_min_bytes(PyObject *, PyObject *bytes)
{
    size_t wanted = PyLong_AsSize_t(bytes);
    if (PyErr_Occurred() != nullptr)
        return nullptr;
    return PyLong_FromSize_t(site_min_bytes.exchange(wanted));
}

PyMethodDef methods[] = {
    {"install", install, METH_NOARGS, "Makes oomph PyTorch's CUDA allocator."},
    {"withdraw", withdraw, METH_NOARGS,
     "Puts back the allocator that PyTorch had before."},
    {"held", held, METH_VARARGS, "Which blocks the tensors among objects hold."},
    {"workspaces", workspaces, METH_NOARGS,
     "Addresses of the workspaces of cuBLAS and cuBLASLt."},
    {"set_site_min_bytes", set_site_min_bytes, METH_O,
     "From which size on requests know their line; gives what it was."},
    {"outline", outline, METH_O, "All of a tensor but its bytes, which may go."},
    {"version_now", version_now, METH_O, "The version of the tensor of an outline."},
    {"storage_state", storage_state, METH_O, "Whether its storage is as it was."},
    {"original", original, METH_O, "The tensor over its storage as that is now."},
    {"exchanged", exchanged, METH_VARARGS, "The tensor, if its data were exchanged."},
    {"restored", restored, METH_VARARGS, "The tensor over another's storage."},
    {"own_tier", own_tier, METH_O,
     "Tier of the block of oomph's that a tensor has for itself, or None."},
    {"are_alone", are_alone, METH_O,
     "Whether the storage of a list of tensors goes when they go."},
    {"backward_here", backward_here, METH_VARARGS,
     "Backward within this thread, for a forked process."},
    {"made_here", made_here, METH_O, "Whether this thread made a node of a graph."},
    {"release_saved", release_saved, METH_O, "Frees what a node of a graph has saved."},
    {"draws", draws, METH_O, "Seed and offset of a device's generator."},
    {"draw_from", draw_from, METH_VARARGS, "Moves it there: device, seed, offset."},
    {"leave_cuda", leave_cuda, METH_NOARGS,
     "Switches devices without CUDA from now on, in a forked process."},
    {"freed_without_cuda", freed_without_cuda, METH_NOARGS,
     "The addresses of blocks that were given back since."},
    {"settings_keys", &Settings::keys, METH_NOARGS,
     "The settings of its allocator that PyTorch knows."},
    {"set_settings_hook", &Settings::listen, METH_O,
     "A callable for PyTorch's settings of its allocator, whenever they are read."},
    {"begin_trace", begin_trace, METH_O, "Writes what is asked for to a file."},
    {"mark_trace", mark_trace, METH_O, "Writes a mark between these."},
    {"end_trace", end_trace, METH_NOARGS, "Writes the end; gives how many there were."},
    {"play_trace", play_trace, METH_VARARGS, "Asks for what a trace has."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "oomph._torch",
                          "PyTorch's allocator class, over oomph._C.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

} // namespace
} // namespace oomph_torch

PyMODINIT_FUNC PyInit__torch()
{
    PyObject *module = PyModule_Create(&oomph_torch::definition);
    if (module != nullptr &&
        PyModule_AddStringConstant(module, "built_for", oomph_torch::BUILT_FOR) < 0) {
        Py_DECREF(module);
        return nullptr;
    }
    return module;
}
