// saved.hpp - what autograd saved, known without being kept.
//
// While saved-tensor hooks are on, PyTorch neither keeps what was saved nor notices
// that it was changed in place. Who packs a tensor keeps its outline: all but the
// bytes. Which storage had them, its identity says, never an address: addresses are
// given out anew, and a storage may be resized, to nothing and back.
#pragma once
#include "torch/allocator/allocator.hpp"
#include "torch/base/python.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <vector>

namespace oomph_torch
{

/* ---- Outlines */

// python/oomph/offload/transfer.py has the same numbers.
enum StorageState { STORAGE_GONE, STORAGE_AS_IT_WAS, STORAGE_CHANGED };

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;

struct Outline {
    // PyTorch keeps what an operator was given, as it is when it is used again; of what
    // the operator made, only the storage: then nothing is here.
    WeakTensor given{c10::intrusive_ptr<c10::TensorImpl>()};
    c10::VariableVersion version;
    // Of a plain tensor.
    WeakStorage storage{c10::intrusive_ptr<c10::StorageImpl>()};
    const void *data = nullptr; // where the storage lay,
    size_t bytes = 0;           // and its size
    caffe2::TypeMeta dtype;
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;
};

inline constexpr char OUTLINE_CAPSULE[] = "oomph.outline";

inline Outline *outline_in(PyObject *capsule)
{
    return static_cast<Outline *>(PyCapsule_GetPointer(capsule, OUTLINE_CAPSULE));
}

// Whether the operator that is being recorded just now made the tensor.
inline bool is_made_now(const at::Tensor &tensor)
{
    const auto *meta = torch::autograd::impl::get_autograd_meta(tensor);
    return meta != nullptr && meta->grad_fn_ != nullptr &&
           meta->grad_fn_->sequence_nr() + 1 >= at::sequence_number::peek();
}

// Whether the tensor is nothing but a shape over memory: no key but those that every
// tensor of a device has stands between its operators and their kernels.
inline bool is_plain(const c10::TensorImpl *impl)
{
    const c10::DispatchKeySet every =
        c10::autograd_dispatch_keyset_with_ADInplaceOrView |
        c10::autocast_dispatch_keyset;
    const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
    return (impl->key_set() | every) == (keys | every) && impl->has_storage() &&
           !impl->has_symbolic_sizes_strides() && impl->version_counter().enabled();
}

inline std::unique_ptr<Outline> draw(const at::Tensor &tensor)
{
    const c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
    auto drawn = std::make_unique<Outline>();
    if (!is_made_now(tensor))
        drawn->given = WeakTensor(tensor.getIntrusivePtr());
    drawn->version = impl->version_counter();
    drawn->dtype = impl->dtype();
    if (!is_plain(impl))
        return drawn;
    const c10::Storage &storage = impl->unsafe_storage();
    drawn->storage = storage.getWeakStorageImpl();
    drawn->data = storage.data();
    drawn->bytes = storage.nbytes();
    drawn->sizes = impl->sizes().vec();
    drawn->strides = impl->strides().vec();
    drawn->offset = impl->storage_offset();
    return drawn;
}

// The outline of a tensor, which may go; only that of a plain one can be filled.
inline PyObject *outline(PyObject *, PyObject *tensor)
{
    if (!is_tensor(tensor)) {
        PyErr_SetString(PyExc_TypeError, "only a tensor has an outline");
        return nullptr;
    }
    std::unique_ptr<Outline> drawn = draw(tensor_in(tensor));
    PyObject *capsule =
        PyCapsule_New(drawn.get(), OUTLINE_CAPSULE,
                      [](PyObject *owner) { delete outline_in(owner); });
    if (capsule != nullptr)
        std::ignore = drawn.release(); // it is the capsule's now
    return capsule;
}

// What the tensor's version is now, even if it is gone.
inline PyObject *version_now(PyObject *, PyObject *capsule)
{
    const Outline *drawn = outline_in(capsule);
    return drawn == nullptr ? nullptr
                            : PyLong_FromLong(drawn->version.current_version());
}

inline StorageState state_of(const Outline &drawn)
{
    const c10::intrusive_ptr<c10::StorageImpl> storage = drawn.storage.lock();
    if (!storage)
        return STORAGE_GONE;
    return storage->data_ptr().get() == drawn.data && storage->nbytes() == drawn.bytes
               ? STORAGE_AS_IT_WAS
               : STORAGE_CHANGED;
}

inline PyObject *storage_state(PyObject *, PyObject *capsule)
{
    const Outline *drawn = outline_in(capsule);
    return drawn == nullptr ? nullptr : PyLong_FromLong(state_of(*drawn));
}

// A tensor of the outline's shape over a storage, which stays as large as it is.
inline at::Tensor fill(const Outline &drawn, c10::Storage storage)
{
    at::Tensor filled = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), drawn.dtype);
    c10::TensorImpl *impl = filled.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(drawn.sizes, drawn.strides, drawn.offset);
    impl->set_version_counter(drawn.version);
    return filled;
}

// What the operator was given, if its data were exchanged for those of another tensor.
inline at::Tensor find_exchanged(const Outline &drawn, const c10::StorageImpl *had)
{
    const c10::intrusive_ptr<c10::TensorImpl> given = drawn.given.lock();
    if (!given || !given->has_storage() ||
        given->unsafe_storage().unsafeGetStorageImpl() == had)
        return {};
    at::NoGradGuard guard;
    return at::Tensor(given).detach();
}

// exchanged(outline, kept): what the operator was given, if its data are no longer
// those of `kept`, else None.
inline PyObject *exchanged(PyObject *, PyObject *args)
{
    PyObject *capsule = nullptr, *kept = nullptr;
    if (!PyArg_ParseTuple(args, "OO!:exchanged", &capsule, THPVariableClass, &kept))
        return nullptr;
    const Outline *drawn = outline_in(capsule);
    const at::Tensor &tensor = tensor_in(kept);
    if (drawn == nullptr)
        return nullptr;
    if (!tensor.has_storage())
        Py_RETURN_NONE;
    return wrap(find_exchanged(*drawn, tensor.storage().unsafeGetStorageImpl()));
}

// original(outline): what PyTorch would have kept, over the storage as that is now, or
// None if that is gone.
inline PyObject *original(PyObject *, PyObject *capsule)
{
    const Outline *drawn = outline_in(capsule);
    if (drawn == nullptr)
        return nullptr;
    const c10::intrusive_ptr<c10::StorageImpl> storage = drawn->storage.lock();
    at::Tensor found = find_exchanged(*drawn, storage.get());
    if (!found.defined() && storage)
        found = fill(*drawn, c10::Storage(storage));
    return wrap(std::move(found));
}

// restored(outline, base): the tensor over the storage of another.
inline PyObject *restored(PyObject *, PyObject *args)
{
    PyObject *capsule = nullptr, *base = nullptr;
    if (!PyArg_ParseTuple(args, "OO!:restored", &capsule, THPVariableClass, &base))
        return nullptr;
    const Outline *drawn = outline_in(capsule);
    if (drawn == nullptr)
        return nullptr;
    return THPVariable_Wrap(fill(*drawn, tensor_in(base).storage()));
}

/* ---- What may leave */

// The tier of the block that is the tensor's storage, or None if it is none of ours
// that others do not use too: a block of a graph or a MemPool, a part of one, what
// another library or process owns, or what the tensor itself is more than.
inline PyObject *own_tier(PyObject *, PyObject *tensor)
{
    if (!is_tensor(tensor)) {
        PyErr_SetString(PyExc_TypeError, "only a tensor has a storage");
        return nullptr;
    }
    const c10::TensorImpl *impl = tensor_in(tensor).unsafeGetTensorImpl();
    if (!is_plain(impl))
        Py_RETURN_NONE;
    const c10::DataPtr &data = impl->unsafe_storage().data_ptr();
    oomph_block_info_t info;
    if (data.get_deleter() != &delete_block ||
        core->lookup(address(data.get()), &info) != OOMPH_OK ||
        info.addr != address(data.get()) || from_core(info.pool) != MempoolId_t{0, 0})
        Py_RETURN_NONE;
    return PyLong_FromLong(info.tier);
}

// Whether only one Python object has the tensor, and only its owner and the list that
// it is in have that.
inline bool has_one_owner(PyObject *item)
{
    return is_tensor(item) && references_to(item) == 2 &&
           tensor_in(item).use_count() == 1;
}

// References to a storage's Python object, of which the caller has the only one that is
// not PyTorch's own; -1 with an exception.
inline Py_ssize_t references(const at::Tensor &tensor)
{
    PyObject *object = THPStorage_Wrap(tensor.storage());
    if (object == nullptr)
        return -1;
    const Py_ssize_t count = references_to(object);
    Py_DECREF(object);
    return count;
}

// are_alone(tensors): whether their storage, which is one, goes when they go. Each may
// be known to one owner and to the list.
inline PyObject *are_alone(PyObject *, PyObject *list)
{
    static const Py_ssize_t fresh = references(at::empty({1}));
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "a list of tensors is wanted");
        return nullptr;
    }
    const Py_ssize_t count = PyList_Size(list);
    for (Py_ssize_t i = 0; i < count; i++)
        if (!has_one_owner(PyList_GetItem(list, i)))
            Py_RETURN_FALSE;
    if (count == 0)
        Py_RETURN_FALSE;
    const at::Tensor &first = tensor_in(PyList_GetItem(list, 0));
    const c10::StorageImpl *storage = first.storage().unsafeGetStorageImpl();
    for (Py_ssize_t i = 1; i < count; i++)
        if (tensor_in(PyList_GetItem(list, i)).storage().unsafeGetStorageImpl() !=
            storage)
            Py_RETURN_FALSE;
    const Py_ssize_t found = references(first);
    if (found < 0)
        return nullptr;
    // The Python object that is there now has one, too.
    const auto users = static_cast<Py_ssize_t>(first.storage().use_count());
    return PyBool_FromLong(found == fresh && users <= count + 1);
}

} // namespace oomph_torch
