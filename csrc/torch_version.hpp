// torch_version.hpp - the version counter of a tensor, kept without its storage.
//
// While saved-tensor hooks are on, PyTorch does not notice that a saved tensor was
// changed in place. Who packs a tensor keeps its counter and compares.
#pragma once
#include <Python.h>

#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <tuple>

namespace oomph_torch
{

inline constexpr char VERSION_CAPSULE[] = "oomph.version";

inline c10::VariableVersion *version(PyObject *capsule)
{
    return static_cast<c10::VariableVersion *>(
        PyCapsule_GetPointer(capsule, VERSION_CAPSULE));
}

// What tells the version of the tensor from now on, even if it is gone. None for one
// that keeps no version, as it was made in inference mode.
inline PyObject *version_of(PyObject *, PyObject *tensor)
{
    if (!THPVariable_Check(tensor)) {
        PyErr_SetString(PyExc_TypeError, "only a tensor has a version");
        return nullptr;
    }
    const at::Tensor &unpacked = THPVariable_Unpack(tensor);
    if (unpacked.is_inference())
        Py_RETURN_NONE;
    auto kept = std::make_unique<c10::VariableVersion>(
        unpacked.unsafeGetTensorImpl()->version_counter());
    PyObject *capsule = PyCapsule_New(kept.get(), VERSION_CAPSULE,
                                      [](PyObject *self) { delete version(self); });
    if (capsule != nullptr)
        std::ignore = kept.release(); // it is the capsule's now
    return capsule;
}

inline PyObject *version_now(PyObject *, PyObject *capsule)
{
    const c10::VariableVersion *found = version(capsule);
    return found == nullptr ? nullptr : PyLong_FromLong(found->current_version());
}

} // namespace oomph_torch
