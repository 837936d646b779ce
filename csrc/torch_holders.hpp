// torch_holders.hpp - which tensors of Python hold which memory of a device.
#pragma once
#include <Python.h>

#include <ATen/cuda/CUDAContextLight.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

namespace oomph_torch
{

struct Holder {
    uint64_t addr = 0;      // of the storage; 0: it has none on the device
    uint64_t grad_addr = 0; // of the gradient's storage
    uint64_t tensor = 0;    // names the tensor, whatever Python objects stand for it
    Py_ssize_t uses = 0;    // of the tensor: Python's is one of them
    uint64_t base = 0;      // names the tensor that it is a view of; 0: none
    Py_ssize_t base_uses = 0;
    Py_ssize_t storage_uses = 0;
    bool made = false; // by an operator that is recorded
};

inline uint64_t name_of(const at::Tensor &tensor)
{
    return reinterpret_cast<uint64_t>(tensor.unsafeGetTensorImpl());
}

inline uint64_t storage_addr(const at::Tensor &tensor, int device)
{
    if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage())
        return 0;
    const c10::Storage &storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
    const c10::Device where = storage ? storage.device() : c10::Device(c10::kCPU);
    return where.is_cuda() && where.index() == device
               ? reinterpret_cast<uint64_t>(storage.data())
               : 0;
}

// Nothing here asks the tensor through PyTorch's dispatcher, which may run Python.
inline Holder holder_of(const at::Tensor &tensor, int device)
{
    Holder holder;
    holder.addr = storage_addr(tensor, device);
    if (holder.addr == 0)
        return holder;
    holder.tensor = name_of(tensor);
    holder.uses = static_cast<Py_ssize_t>(tensor.use_count());
    holder.storage_uses = static_cast<Py_ssize_t>(
        tensor.unsafeGetTensorImpl()->unsafe_storage().use_count());
    const auto *meta = torch::autograd::impl::get_autograd_meta(tensor);
    if (meta != nullptr) {
        holder.made = meta->grad_fn_ != nullptr;
        holder.grad_addr = storage_addr(meta->grad_, device);
    }
    const auto *view = torch::autograd::impl::get_view_autograd_meta(tensor);
    if (view != nullptr && view->has_bw_view()) {
        const at::Tensor &base = view->get_backward_view().base_;
        holder.base = name_of(base);
        holder.base_uses = static_cast<Py_ssize_t>(base.use_count());
    }
    return holder;
}

// By its type alone: some objects run code when they are asked for their class.
inline bool is_tensor(PyObject *object)
{
    return PyObject_TypeCheck(object,
                              reinterpret_cast<PyTypeObject *>(THPVariableClass)) != 0;
}

// Of a list of any objects, those that are tensors on the device: a list of (index in
// the list, and what a Holder has, in its order).
inline PyObject *holders(PyObject *, PyObject *args)
{
    PyObject *objects = nullptr;
    int device = 0;
    if (!PyArg_ParseTuple(args, "O!i:holders", &PyList_Type, &objects, &device))
        return nullptr;
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != nullptr && i < PyList_GET_SIZE(objects); i++) {
        PyObject *object = PyList_GET_ITEM(objects, i);
        if (!is_tensor(object))
            continue;
        const Holder holder = holder_of(THPVariable_Unpack(object), device);
        if (holder.addr == 0)
            continue;
        PyObject *row =
            Py_BuildValue("nKKKnKnnN", i, holder.addr, holder.grad_addr, holder.tensor,
                          holder.uses, holder.base, holder.base_uses,
                          holder.storage_uses, PyBool_FromLong(holder.made));
        if (row == nullptr || PyList_Append(found, row) < 0)
            Py_CLEAR(found);
        Py_XDECREF(row);
    }
    return found;
}

/* ---- Workspaces of libraries */

inline uint64_t workspace_addr(const at::DataPtr &data)
{
    return reinterpret_cast<uint64_t>(data.get());
}

// As PyTorch keeps them from 2.13 on.
inline uint64_t workspace_addr(const std::pair<at::DataPtr, size_t> &entry)
{
    return workspace_addr(entry.first);
}

// A thread that makes one may hold the lock and wait for the GIL: it is given up.
inline std::vector<uint64_t> find_workspaces()
{
    std::vector<uint64_t> found;
    for (at::cuda::WorkspaceMapWithMutex *all :
         {&at::cuda::cublas_handle_stream_to_workspace(),
          &at::cuda::cublaslt_handle_stream_to_workspace()}) {
        std::shared_lock<std::shared_mutex> guard(all->mutex);
        for (const auto &entry : all->map)
            found.push_back(workspace_addr(entry.second));
    }
    return found;
}

inline PyObject *workspaces(PyObject *, PyObject *)
{
    std::vector<uint64_t> found;
    Py_BEGIN_ALLOW_THREADS;
    found = find_workspaces();
    Py_END_ALLOW_THREADS;
    PyObject *list = PyList_New(static_cast<Py_ssize_t>(found.size()));
    for (size_t i = 0; i < found.size() && list != nullptr; i++) {
        PyObject *addr = PyLong_FromUnsignedLongLong(found[i]);
        if (addr == nullptr)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), addr);
    }
    return list;
}

} // namespace oomph_torch
