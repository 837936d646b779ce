// alias.hpp - tensors of the CPU over the bytes of tensors of the simulated GPU, whose
// addresses are ordinary ones of this process.
#pragma once
#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/stack.h>
#include <c10/core/CPUAllocator.h>

#include <limits>
#include <vector>

namespace oomph_values
{

using at::Tensor;
using c10::IValue;

/* ---- The bytes of the GPU that a tensor lies in */

// A nested one's are those of its parts.
inline bool has_bytes(const Tensor &tensor)
{
    return tensor.defined() && tensor.is_cuda() && !tensor.is_nested() &&
           tensor.has_storage() && tensor.numel() > 0;
}

inline uint64_t address_of(const Tensor &tensor)
{
    return reinterpret_cast<uint64_t>(tensor.const_data_ptr());
}

// From its first element to its last.
inline uint64_t span_bytes(const Tensor &tensor)
{
    int64_t last = 0;
    for (int64_t i = 0; i < tensor.dim(); i++)
        last += (tensor.size(i) - 1) * tensor.stride(i);
    return (static_cast<uint64_t>(last) + 1) * tensor.element_size();
}

/* ---- Other tensors in the place of those of a value */

template <typename Change> IValue changed(const IValue &value, Change change)
{
    if (value.isTensor())
        return change(value.toTensor());
    if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor &tensor : value.toTensorVector())
            list.push_back(change(tensor));
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<Tensor>> list;
        for (const auto &tensor : value.toOptionalTensorVector())
            list.push_back(tensor ? std::optional<Tensor>(change(*tensor)) : tensor);
        return list;
    }
    return value;
}

inline c10::Storage storage_over(const Tensor &tensor)
{
    const c10::Storage &storage = tensor.storage();
    size_t bytes = storage.nbytes();
    void *data = bytes > 0 ? const_cast<void *>(storage.data()) : nullptr;

    return {c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(data, c10::kCPU),
            nullptr, false};
}

// A sparse tensor with other parts: indices and values.
template <typename Change> Tensor with_parts(const Tensor &tensor, Change change)
{
    if (tensor.layout() == at::kSparse) {
        Tensor indices = change(tensor._indices()), values = change(tensor._values());
        return at::_sparse_coo_tensor_unsafe(indices, values, tensor.sizes(),
                                             values.options().layout(at::kSparse),
                                             tensor.is_coalesced());
    }
    auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(tensor);
    Tensor outer = change(compressed), inner = change(plain);
    Tensor values = change(tensor.values());
    return at::_sparse_compressed_tensor_unsafe(
        outer, inner, values, tensor.sizes(), values.options().layout(tensor.layout()));
}

inline bool is_sparse(const Tensor &tensor)
{
    return tensor.defined() && tensor.layout() != at::kStrided &&
           tensor.layout() != at::kJagged && !tensor.is_nested();
}

// Tensors of the host are copied, as the program may change them before the kernel
// runs.
inline Tensor alias_tensor(const Tensor &tensor)
{
    if (tensor.defined() && tensor.is_cuda() && is_sparse(tensor))
        return with_parts(tensor, alias_tensor);
    if (!tensor.defined() || !tensor.has_storage())
        return tensor;
    if (!tensor.is_cuda())
        return tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor
                                                                 : tensor.clone();
    Tensor over = at::detail::make_tensor<c10::TensorImpl>(
        storage_over(tensor), c10::DispatchKeySet(c10::DispatchKey::CPU),
        tensor.dtype());
    c10::TensorImpl *impl = over.unsafeGetTensorImpl();
    impl->set_storage_offset(tensor.storage_offset());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    if (tensor.is_conj())
        over._set_conj(true);
    if (tensor.is_neg())
        over._set_neg(true);
    return over;
}

// An argument or a result as CPU kernels take it.
inline IValue alias(const IValue &value)
{
    if (value.isDevice())
        return c10::Device(c10::kCPU);
    return changed(value, [](const Tensor &tensor) { return alias_tensor(tensor); });
}

inline void put_tensor(const Tensor &output, const Tensor &result)
{
    if (!output.defined() || !result.defined() || output.numel() == 0)
        return;
    if (output.data_ptr() == result.data_ptr() && output.strides() == result.strides())
        return;
    if (result.numel() == 0 && output.is_floating_point()) { // not made on the CPU
        output.fill_(std::numeric_limits<double>::quiet_NaN());
        return;
    }
    if (output.scalar_type() == at::kByte && result.scalar_type() == at::kByte &&
        output.dim() == 1 && result.dim() == 1 && result.numel() < output.numel()) {
        // A workspace for the backward: the beginning is enough for the CPU's.
        output.slice(0, 0, result.numel()).copy_(result);
        return;
    }
    TORCH_CHECK(output.numel() == result.numel(), "the GPU's kernel gives ",
                output.sizes(), ", the CPU's ", result.sizes());
    output.copy_(result.sizes() == output.sizes() ? result
                                                  : result.reshape(output.sizes()));
}

// Copies a result into an output (aliases both), unless it was computed in its place.
inline void put(const IValue &output, const IValue &result)
{
    if (output.isTensor() && result.isTensor()) {
        put_tensor(output.toTensor(), result.toTensor());
    } else if (output.isTensorList() && result.isTensorList()) {
        auto outputs = output.toTensorVector(), results = result.toTensorVector();
        for (size_t i = 0; i < outputs.size() && i < results.size(); i++)
            put_tensor(outputs[i], results[i]);
    }
}

// A result, or a part of it, on the GPU `device`, newly allocated there.
inline Tensor tensor_to_gpu(const Tensor &tensor, c10::Device device)
{
    if (!tensor.defined() || !tensor.device().is_cpu())
        return tensor;
    if (is_sparse(tensor))
        return with_parts(
            tensor, [&](const Tensor &part) { return tensor_to_gpu(part, device); });
    Tensor made = at::empty_strided(tensor.sizes(), tensor.strides(),
                                    tensor.options().device(device));
    put_tensor(alias_tensor(made), tensor);
    return made;
}

inline IValue to_gpu(const IValue &result, c10::Device device)
{
    return changed(result,
                   [&](const Tensor &tensor) { return tensor_to_gpu(tensor, device); });
}

// Replaces a tensor of the GPU by what was computed for it, of whatever size.
inline void replace(const Tensor &output, const Tensor &result)
{
    if (output.layout() == at::kSparse) {
        Tensor made = tensor_to_gpu(result, output.device());
        auto *impl = static_cast<at::SparseTensorImpl *>(output.unsafeGetTensorImpl());
        impl->raw_resize_(made.sparse_dim(), made.dense_dim(), made.sizes());
        impl->set_indices_and_values_unsafe(made._indices(), made._values());
        output._coalesced_(made.is_coalesced());
        return;
    }
    if (is_sparse(output)) {
        Tensor made = tensor_to_gpu(result, output.device());
        auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(made);
        at::sparse_csr::get_sparse_csr_impl(output)->set_member_tensors(
            compressed, plain, made.values(), made.sizes());
        return;
    }
    if (output.sizes() != result.sizes())
        output.resize_(result.sizes());
    put_tensor(alias_tensor(output), result);
}

// All tensors of an argument or result, also in lists.
inline std::vector<Tensor> tensors(const IValue &value)
{
    if (value.isTensor())
        return {value.toTensor()};
    if (value.isTensorList())
        return value.toTensorVector();
    std::vector<Tensor> found;
    if (value.isOptionalTensorList())
        for (const auto &tensor : value.toOptionalTensorVector())
            if (tensor)
                found.push_back(*tensor);
    return found;
}

} // namespace oomph_values
