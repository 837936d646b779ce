// forked.hpp - a forked process that goes on without CUDA, as each call of it fails.
#pragma once
#include <Python.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdint>
#include <vector>

namespace oomph_torch
{

// Blocks that were given back since CUDA was left: they stay the parent's. One thread
// goes on in a forked process.
inline bool has_left_cuda = false;
inline std::vector<uint64_t> freed_since;

// From here on, devices are switched without CUDA. It cannot be undone.
inline PyObject *leave_cuda(PyObject *, PyObject *)
{
    static const c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> guard;
    const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);
    (void)registrar;
    has_left_cuda = true;
    Py_RETURN_NONE;
}

inline PyObject *freed_without_cuda(PyObject *, PyObject *)
{
    const auto count = static_cast<Py_ssize_t>(freed_since.size());
    PyObject *list = PyList_New(count);

    for (Py_ssize_t i = 0; list != nullptr && i < count; i++) {
        PyObject *addr = PyLong_FromUnsignedLongLong(freed_since[i]);
        if (addr == nullptr)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, addr);
    }
    return list;
}

} // namespace oomph_torch
