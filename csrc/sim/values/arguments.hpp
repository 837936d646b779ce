// arguments.hpp - what can be told of an operator and of its arguments before it runs.
#pragma once
#include "alias.hpp"

#include <ATen/core/dispatch/Dispatcher.h>

namespace oomph_values
{

inline bool is_view(const c10::OperatorHandle &op)
{
    for (const c10::Argument &result : op.schema().returns())
        if (result.alias_info() == nullptr || result.alias_info()->isWrite())
            return false;
    return !op.schema().returns().empty();
}

// x[mask] begins with nonzero(mask), which must have values.
inline bool is_mask(const Tensor &tensor)
{
    return tensor.defined() &&
           (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
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

// Of all that may decide whether a kernel takes these arguments.
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
