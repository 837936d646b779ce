// python.hpp - PyTorch's objects of Python, without PyTorch's headers for them.
//
// Those want pybind11 and all of Python's API. Here it is the limited one, so that what
// is built for a PyTorch serves each Python. Where a tensor lies in its object fit.hpp
// tries.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "torch/base/core.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <torch/csrc/Export.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <exception>
#include <utility>

TORCH_PYTHON_API extern PyObject *THPVariableClass;
TORCH_PYTHON_API PyObject *THPVariable_Wrap(const at::TensorBase &tensor);
TORCH_PYTHON_API PyObject *THPStorage_Wrap(c10::Storage storage);

namespace torch
{
TORCH_PYTHON_API void translate_exception_to_python(const std::exception_ptr &error);
}

namespace oomph_torch
{

using NodePointer = decltype(torch::autograd::Edge::function);

// How the objects of tensors and of PyTorch's own nodes begin.
struct TensorObject {
    PyObject head;
    at::Tensor tensor;
};
struct NodeObject {
    PyObject head;
    NodePointer node;
};

// By its type alone: some objects run code when they are asked for their class.
inline bool is_tensor(PyObject *object)
{
    return PyObject_TypeCheck(object,
                              reinterpret_cast<PyTypeObject *>(THPVariableClass)) != 0;
}

inline const at::Tensor &tensor_in(PyObject *object)
{
    return reinterpret_cast<TensorObject *>(object)->tensor;
}

// None for no tensor.
inline PyObject *wrap(const at::Tensor &tensor)
{
    if (!tensor.defined())
        Py_RETURN_NONE;
    return THPVariable_Wrap(tensor);
}

// From Python 3.14 on the upper half of the field is for other things.
inline Py_ssize_t references_to(const PyObject *object)
{
    return static_cast<uint32_t>(object->ob_refcnt);
}

// Takes the core from oomph._C; false with an exception if that is of another build.
inline bool find_core()
{
    core = static_cast<const oomph_api_t *>(PyCapsule_Import(OOMPH_CAPSULE, 0));
    if (core == nullptr ||
        (core->abi == OOMPH_ABI && core->bytes == sizeof(oomph_api_t)))
        return core != nullptr;
    PyErr_SetString(
        PyExc_ImportError,
        "oomph._C and oomph._torch are of different builds; reinstall oomph");
    return false;
}

// A list of what `item` makes of the numbers up to `count`; NULL with an exception.
template <typename Item> PyObject *make_list(size_t count, Item item)
{
    PyObject *list = PyList_New(static_cast<Py_ssize_t>(count));
    for (size_t i = 0; i < count && list != nullptr; i++) {
        PyObject *made = item(i);
        if (made == nullptr)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, static_cast<Py_ssize_t>(i), made);
    }
    return list;
}

// Calls what gives an object or throws; an exception becomes Python's, and NULL.
template <typename Function> PyObject *or_raise(Function function) noexcept
{
    try {
        return function();
    } catch (const std::exception &) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}

} // namespace oomph_torch
