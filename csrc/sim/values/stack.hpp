// stack.hpp - arguments that may be missing, and gradients of what was recorded.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace oomph_values
{

using at::Tensor;
using torch::jit::Stack;

inline std::optional<Tensor> maybe(const c10::IValue &value)
{
    if (value.isNone() || !value.toTensor().defined())
        return std::nullopt;
    return value.toTensor();
}

inline std::optional<double> maybe_double(const c10::IValue &value)
{
    return value.isNone() ? std::nullopt : std::optional<double>(value.toDouble());
}

// While it lives, autograd records. Its engine calls the driver, so a computation that
// a stream runs must not use it.
class Recording
{
    c10::impl::ForceDispatchKeyGuard guard_;
    at::AutoGradMode mode_{true};

  public:
    Recording()
        : guard_(c10::impl::tls_local_dispatch_key_set().included_,
                 c10::impl::tls_local_dispatch_key_set().excluded_ -
                     c10::autograd_dispatch_keyset_with_ADInplaceOrView)
    {
    }
};

// The same values, as tensors that get gradients.
inline Tensor leaf(const Tensor &tensor)
{
    return tensor.detach().requires_grad_(true);
}

} // namespace oomph_values
