// arguments.hpp - what can be known of an operator and of its arguments before it runs.
#pragma once
#include "alias.hpp"
#include "stack.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAFunctions.h>

#include <optional>
#include <string>
#include <utility>

namespace oomph_values
{

// The name without namespace and overload, if it is PyTorch's own; otherwise empty.
inline std::string own_name(const c10::OperatorHandle &op)
{
    const std::string &name = op.schema().name();
    const std::string space = "aten::";

    return name.rfind(space, 0) == 0 ? name.substr(space.size()) : "";
}

inline bool is_view(const c10::OperatorHandle &op)
{
    for (const c10::Argument &result : op.schema().returns())
        if (result.alias_info() == nullptr || result.alias_info()->isWrite())
            return false;
    return !op.schema().returns().empty();
}

inline bool returns_no_tensor(const c10::OperatorHandle &op)
{
    for (const c10::Argument &result : op.schema().returns()) {
        auto kind = result.type()->kind();
        if (kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType ||
            kind == c10::TypeKind::FloatType)
            return true;
    }
    return false;
}

// Which argument is a generator of random numbers, if any.
inline std::optional<size_t> generator_of(const c10::OperatorHandle &op)
{
    const auto &arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); i++) {
        const std::string type = arguments[i].type()->str();
        if (type == "Generator?" || type == "Generator")
            return i;
    }
    return std::nullopt;
}

inline bool draws(const c10::OperatorHandle &op)
{
    return op.hasTag(at::Tag::nondeterministic_seeded) || generator_of(op).has_value();
}

// The GPU that a call names or has tensors on; the current one if it has none.
inline c10::Device device_of(const Stack &arguments, const Stack &outputs = {})
{
    for (const Stack *values : {&arguments, &outputs})
        for (const IValue &value : *values) {
            if (value.isDevice() && value.toDevice().is_cuda() &&
                value.toDevice().has_index())
                return value.toDevice();
            for (const Tensor &tensor : tensors(value))
                if (tensor.defined() && tensor.is_cuda())
                    return tensor.device();
        }
    return {c10::kCUDA, c10::cuda::current_device()};
}

inline bool goes_to_host(const Stack &stack)
{
    const Tensor &to = stack[stack.size() - 3].toTensor();
    return to.is_cpu() && stack[stack.size() - 2].toTensor().is_cuda();
}

// Whether a copy is not from GPU to GPU.
inline bool leaves_gpu(const Stack &arguments)
{
    return !arguments[0].toTensor().is_cuda() || !arguments[1].toTensor().is_cuda();
}

inline bool leaves_device(const Stack &arguments)
{
    return arguments[0].toTensor().device() != arguments[1].toTensor().device();
}

// x[mask] begins with nonzero(mask), which must have values.
inline bool is_mask(const Tensor &tensor)
{
    return tensor.defined() &&
           (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
}

inline void masks_to_indices(Stack &arguments, Stack &stack, size_t base, size_t which)
{
    c10::List<std::optional<Tensor>> indices;
    bool any = false;
    for (const auto &index : arguments[which].toOptionalTensorVector()) {
        if (!index || !is_mask(*index)) {
            indices.push_back(index);
            continue;
        }
        any = true;
        for (Tensor &part : at::nonzero(*index).unbind(1))
            indices.push_back(std::optional<Tensor>(std::move(part)));
    }
    if (any)
        stack[base + which] = arguments[which] = indices;
}

inline Stack aliases(const Stack &values)
{
    Stack found;
    found.reserve(values.size());
    for (const IValue &value : values)
        found.push_back(alias(value));
    return found;
}

// Zeros in the place of all tensors: what a kernel refuses it refuses on them too.
inline Stack zeros_like(const Stack &values)
{
    Stack found;
    for (const IValue &value : values)
        found.push_back(changed(value, [](const Tensor &tensor) {
            return tensor.defined()
                       ? at::empty_strided(tensor.sizes(), tensor.strides(),
                                           tensor.options())
                             .zero_()
                       : tensor;
        }));
    return found;
}

// A hash of all that may decide whether a kernel takes these arguments.
inline size_t signature(const Stack &arguments)
{
    size_t found = arguments.size();
    auto mix = [&](int64_t value) {
        found = c10::hash_combine(found, static_cast<size_t>(value));
    };
    for (const IValue &value : arguments) {
        if (value.isInt() || value.isBool())
            mix(value.isInt() ? value.toInt() : value.toBool());
        for (const Tensor &tensor : tensors(value)) {
            if (!tensor.defined())
                continue;
            mix(static_cast<int64_t>(tensor.scalar_type()));
            mix(tensor.is_contiguous());
            for (int64_t size : tensor.sizes())
                mix(size);
        }
    }
    return found;
}

} // namespace oomph_values
