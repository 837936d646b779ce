// nodes.hpp - which thread made a node of autograd's graph.
//
// Each thread numbers its nodes from 0 on, and a backward pass that creates a graph
// makes them in a thread of its own.
#pragma once
#include "torch/base/python.hpp"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

namespace oomph_torch
{

// Whether an object is a node of PyTorch's own: of a torch.autograd.Function it is
// another one, and larger.
inline bool is_own_node(PyObject *object)
{
    PyObject *type = reinterpret_cast<PyObject *>(Py_TYPE(object));
    PyObject *size = PyObject_GetAttrString(type, "__basicsize__");
    const bool fits = size != nullptr && PyLong_AsSize_t(size) == sizeof(NodeObject);
    Py_XDECREF(size);
    PyErr_Clear();
    return fits && PyObject_HasAttrString(object, "_register_hook_dict") != 0;
}

// Whether the calling thread made a node; not of a torch.autograd.Function.
inline PyObject *made_here(PyObject *, PyObject *object)
{
    if (!is_own_node(object)) {
        PyErr_SetString(PyExc_TypeError, "expected a node of PyTorch's own");
        return nullptr;
    }
    const NodePointer &node = reinterpret_cast<NodeObject *>(object)->node;
    const bool here =
        node && node->thread_id() == at::RecordFunction::currentThreadId();
    return PyBool_FromLong(static_cast<long>(here));
}

} // namespace oomph_torch
