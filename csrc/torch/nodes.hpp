// nodes.hpp - which thread made a node of autograd's graph.
//
// Each thread numbers its nodes from 0 on, and a backward pass that creates a graph
// makes them in a thread of its own.
#pragma once
#include <Python.h>

#include <ATen/record_function.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_cpp_function.h>

namespace oomph_torch
{

// Whether the calling thread made a node; not of a torch.autograd.Function.
inline PyObject *made_here(PyObject *, PyObject *node)
{
    HANDLE_TH_ERRORS
    using torch::autograd::THPCppFunction;
    if (Py_TYPE(node)->tp_basicsize != sizeof(THPCppFunction) ||
        PyObject_HasAttrString(node, "_register_hook_dict") == 0)
        throw torch::TypeError("expected a node of PyTorch's own");
    const auto &found = reinterpret_cast<THPCppFunction *>(node)->cdata;
    const bool here =
        found && found->thread_id() == at::RecordFunction::currentThreadId();
    return PyBool_FromLong(static_cast<long>(here));
    END_HANDLE_TH_ERRORS
}

} // namespace oomph_torch
