// forked.hpp - a forked process that goes on without CUDA, as each call of it fails.
#pragma once
#include "torch/base/python.hpp"

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
    return make_list(freed_since.size(), [](size_t i) {
        return PyLong_FromUnsignedLongLong(freed_since[i]);
    });
}

} // namespace oomph_torch
