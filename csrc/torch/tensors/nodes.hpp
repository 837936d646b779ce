// nodes.hpp - nodes of autograd's graph: which thread made one, and what it has saved.
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

// The node that an object stands for; none, and an error is set, if it is no own one.
inline NodePointer own_node(PyObject *object)
{
    if (is_own_node(object))
        return reinterpret_cast<NodeObject *>(object)->node;
    PyErr_SetString(PyExc_TypeError, "expected a node of PyTorch's own");
    return {};
}

// Whether the calling thread made a node; not of a torch.autograd.Function.
inline PyObject *made_here(PyObject *, PyObject *object)
{
    const auto node = own_node(object);
    if (PyErr_Occurred() != nullptr)
        return nullptr;
    const bool here =
        node && node->thread_id() == at::RecordFunction::currentThreadId();
    return PyBool_FromLong(static_cast<long>(here));
}

// Frees what a node has saved, as a backward pass does that keeps no graph.
inline PyObject *release_saved(PyObject *, PyObject *object)
{
    const auto node = own_node(object);
    if (PyErr_Occurred() != nullptr)
        return nullptr;
    if (node)
        node->release_variables();
    Py_RETURN_NONE;
}

} // namespace oomph_torch
