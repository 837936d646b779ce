// holders.hpp - which tensors of Python hold which memory of a device.
#pragma once
#include "torch/base/python.hpp"

#include <ATen/cuda/CUDAContextLight.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oomph_torch
{

// What Python's tensors say of a block; diagnosis/categories.py has these numbers.
enum HeldFlag : uint8_t {
    HELD = 1,     // one of the objects lies in it
    MADE = 2,     // by an operator that is recorded
    SAVED = 4,    // somebody but Python has a reference to it, too
    GRADIENT = 8, // it is the gradient of one of them
    HALF = 16,    // MADE, with elements of 16 bits
    GONE = 32,    // it is no longer in use
};

// A reference to a tensor in a block that is accounted for: Python's, or a view's.
struct Reference {
    uint32_t block;
    const c10::TensorImpl *tensor;
    size_t uses; // of the tensor, in all
};

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

// Collects what tensors say of the blocks that begin at some addresses. Nothing here
// asks a tensor through PyTorch's dispatcher, which may run Python.
class Holders
{
    int device_;
    std::unordered_map<uint64_t, uint32_t> places_;
    std::vector<Reference> references_;
    std::vector<size_t> storage_uses_;

  public:
    std::vector<uint8_t> flags;
    std::vector<int32_t> firsts; // the first object in each block; -1: none

    Holders(int device, const uint64_t *addrs, size_t count)
        : device_(device), storage_uses_(count), flags(count), firsts(count, -1)
    {
        places_.reserve(count);
        for (size_t i = 0; i < count; i++)
            places_.emplace(addrs[i], static_cast<uint32_t>(i));
    }

    void add(const at::Tensor &tensor, Py_ssize_t index)
    {
        const auto *meta = torch::autograd::impl::get_autograd_meta(tensor);
        if (meta != nullptr)
            mark_gradient(storage_addr(meta->grad_, device_));
        const auto found = places_.find(storage_addr(tensor, device_));
        if (found == places_.end())
            return;
        const uint32_t block = found->second;
        const bool made = meta != nullptr && meta->grad_fn_ != nullptr;
        if (firsts[block] < 0)
            firsts[block] = static_cast<int32_t>(index);
        flags[block] |= HELD | (made ? MADE : 0) |
                        (made && tensor.dtype().itemsize() == 2 ? HALF : 0);
        storage_uses_[block] =
            tensor.unsafeGetTensorImpl()->unsafe_storage().use_count();
        refer(block, tensor);
        const auto *view = torch::autograd::impl::get_view_autograd_meta(tensor);
        if (view != nullptr && view->has_bw_view())
            refer(block, view->get_backward_view().base_);
    }

    // What has more references than are accounted for, autograd has saved.
    void find_saved()
    {
        std::sort(references_.begin(), references_.end(), [](auto &a, auto &b) {
            return std::tie(a.block, a.tensor) < std::tie(b.block, b.tensor);
        });
        auto next = references_.begin();
        while (next != references_.end()) {
            const uint32_t block = next->block;
            size_t tensors = 0;
            while (next != references_.end() && next->block == block) {
                const Reference first = *next;
                size_t known = 0;
                for (; next != references_.end() && next->block == block &&
                       next->tensor == first.tensor;
                     ++next)
                    known++;
                tensors++;
                if (first.uses > known)
                    flags[block] |= SAVED;
            }
            if (storage_uses_[block] > tensors)
                flags[block] |= SAVED;
        }
    }

    // Marks what is not among the addresses in use.
    void find_gone(const uint64_t *alive, size_t count)
    {
        std::vector<bool> found(flags.size());
        for (size_t i = 0; i < count; i++)
            if (const auto at = places_.find(alive[i]); at != places_.end())
                found[at->second] = true;
        for (size_t i = 0; i < flags.size(); i++)
            flags[i] |= found[i] ? 0 : GONE;
    }

  private:
    void refer(uint32_t block, const at::Tensor &tensor)
    {
        references_.push_back({block, tensor.unsafeGetTensorImpl(),
                               static_cast<size_t>(tensor.use_count())});
    }

    void mark_gradient(uint64_t addr)
    {
        if (const auto at = places_.find(addr); at != places_.end())
            flags[at->second] |= GRADIENT;
    }
};

template <typename Element> PyObject *to_bytes(const std::vector<Element> &column)
{
    return PyBytes_FromStringAndSize(
        reinterpret_cast<const char *>(column.data()),
        static_cast<Py_ssize_t>(column.size() * sizeof(Element)));
}

// held(objects, addresses, addresses in use now, device): of the blocks that begin at
// the addresses, what HeldFlag says of each, and the first object in each, as columns
// of bytes. Objects that are no tensors do not matter.
inline PyObject *held(PyObject *, PyObject *args)
{
    PyObject *objects = nullptr;
    const char *addrs = nullptr, *alive = nullptr;
    Py_ssize_t addrs_bytes = 0, alive_bytes = 0;
    int device = 0;
    if (!PyArg_ParseTuple(args, "O!y#y#i:held", &PyList_Type, &objects, &addrs,
                          &addrs_bytes, &alive, &alive_bytes, &device))
        return nullptr;
    Holders holders(device, reinterpret_cast<const uint64_t *>(addrs),
                    static_cast<size_t>(addrs_bytes) / sizeof(uint64_t));
    for (Py_ssize_t i = 0; i < PyList_Size(objects); i++)
        if (PyObject *object = PyList_GetItem(objects, i); is_tensor(object))
            holders.add(tensor_in(object), i);
    holders.find_saved();
    holders.find_gone(reinterpret_cast<const uint64_t *>(alive),
                      static_cast<size_t>(alive_bytes) / sizeof(uint64_t));
    return Py_BuildValue("NN", to_bytes(holders.flags), to_bytes(holders.firsts));
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
    return make_list(found.size(),
                     [&](size_t i) { return PyLong_FromUnsignedLongLong(found[i]); });
}

} // namespace oomph_torch
