// equivalents.hpp - operators that the CPU has under another name, or not at all.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/stack.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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

/* ---- Attention: every kind is the CPU's one kind */

struct Attention {
    Tensor query, key, value;
    std::optional<Tensor> bias;
    double dropout;
    bool causal;
    std::optional<double> scale;
};

inline void refuse_dropout(double dropout)
{
    TORCH_CHECK_NOT_IMPLEMENTED(dropout == 0.0,
                                "attention with dropout has no CPU counterpart; use "
                                "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)");
}

inline std::pair<Tensor, Tensor> attend(const Attention &a)
{
    refuse_dropout(a.dropout);
    auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        a.query, a.key, a.value, 0.0, a.causal, a.bias, a.scale);
    return {out, sums};
}

inline std::tuple<Tensor, Tensor, Tensor> attend_backward(const Attention &a,
                                                          const Tensor &grad,
                                                          const Tensor &out,
                                                          const Tensor &sums)
{
    refuse_dropout(a.dropout);
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, a.query, a.key, a.value, out, sums, 0.0, a.causal, a.bias, a.scale);
}

inline void flash(Stack &s)
{
    auto [out, sums] =
        attend({s[0].toTensor(), s[1].toTensor(), s[2].toTensor(), std::nullopt,
                s[3].toDouble(), s[4].toBool(), maybe_double(s[6])});
    s = {out, sums};
}

inline void flash_backward(Stack &s)
{
    auto [query, key, value] = attend_backward(
        {s[1].toTensor(), s[2].toTensor(), s[3].toTensor(), std::nullopt,
         s[10].toDouble(), s[11].toBool(), maybe_double(s[14])},
        s[0].toTensor(), s[4].toTensor(), s[5].toTensor());
    s = {query, key, value};
}

// The GPU pads the sums of each row to a multiple of 32.
inline Tensor padded(const Tensor &sums)
{
    int64_t over = sums.size(-1) % 32;
    return over == 0 ? sums : at::constant_pad_nd(sums, {0, 32 - over});
}

inline void efficient(Stack &s)
{
    auto [out, sums] =
        attend({s[0].toTensor(), s[1].toTensor(), s[2].toTensor(), maybe(s[3]),
                s[5].toDouble(), s[6].toBool(), maybe_double(s[7])});
    s = {out, s[4].toBool() ? padded(sums) : Tensor()};
}

inline void efficient_backward(Stack &s)
{
    Tensor query = s[1].toTensor();
    auto [grad_query, key, value] = attend_backward(
        {query, s[2].toTensor(), s[3].toTensor(), maybe(s[4]), s[9].toDouble(),
         s[11].toBool(), maybe_double(s[12])},
        s[0].toTensor(), s[5].toTensor(), s[6].toTensor().slice(-1, 0, query.size(2)));
    s = {grad_query, key, value};
}

inline void cudnn(Stack &s)
{
    auto [out, sums] =
        attend({s[0].toTensor(), s[1].toTensor(), s[2].toTensor(), maybe(s[3]),
                s[5].toDouble(), s[6].toBool(), maybe_double(s[8])});
    s = {out, s[4].toBool() ? sums : Tensor()};
}

inline void cudnn_backward(Stack &s)
{
    Tensor sums = s[5].toTensor();
    if (sums.dim() == 4)
        sums = sums.squeeze(-1);
    auto [query, key, value] =
        attend_backward({s[1].toTensor(), s[2].toTensor(), s[3].toTensor(), maybe(s[8]),
                         s[13].toDouble(), s[14].toBool(), maybe_double(s[15])},
                        s[0].toTensor(), s[4].toTensor(), sums);
    s = {query, key, value};
}

/* ---- Normalisation */

inline void batch_norm(Stack &s)
{
    auto [out, mean, invstd] = at::native_batch_norm(
        s[0].toTensor(), maybe(s[1]), maybe(s[2]), maybe(s[3]), maybe(s[4]),
        s[5].toBool(), s[6].toDouble(), s[7].toDouble());
    s = {out, mean, invstd};
}

inline void batch_norm_backward(Stack &s)
{
    auto [input, weight, bias] = at::native_batch_norm_backward(
        s[1].toTensor(), s[0].toTensor(), maybe(s[2]), maybe(s[3]), maybe(s[4]),
        maybe(s[5]), maybe(s[6]), true, s[7].toDouble(), {true, true, true});
    s = {input, weight, bias};
}

// Statistics of half-precision inputs are float on the GPU, the input's type on the
// CPU.
inline void match_statistics(Stack &s, const Tensor &input,
                             const std::optional<Tensor> &weight, size_t first)
{
    if (weight && weight->scalar_type() != input.scalar_type())
        return;
    for (size_t i = first; i < first + 2; i++)
        s[i] = s[i].toTensor().to(input.scalar_type());
}

inline void layer_norm_backward(Stack &s)
{
    match_statistics(s, s[1].toTensor(), maybe(s[5]), 3);
    auto mask = s[7].toBoolList();
    auto [input, weight, bias] = at::native_layer_norm_backward(
        s[0].toTensor(), s[1].toTensor(), s[2].toIntVector(), s[3].toTensor(),
        s[4].toTensor(), maybe(s[5]), maybe(s[6]), {mask[0], mask[1], mask[2]});
    s = {input, weight, bias};
}

inline void group_norm_backward(Stack &s)
{
    match_statistics(s, s[1].toTensor(), maybe(s[4]), 2);
    auto mask = s[9].toBoolList();
    auto [input, weight, bias] = at::native_group_norm_backward(
        s[0].toTensor(), s[1].toTensor(), s[2].toTensor(), s[3].toTensor(), maybe(s[4]),
        s[5].toInt(), s[6].toInt(), s[7].toInt(), s[8].toInt(),
        {mask[0], mask[1], mask[2]});
    s = {input, weight, bias};
}

inline void rms_norm_backward(Stack &s)
{
    Tensor grad = s[0].toTensor(), input = s[1].toTensor(), rstd = s[3].toTensor();
    std::optional<Tensor> weight = maybe(s[4]);
    int64_t outer = input.dim() - static_cast<int64_t>(s[2].toIntVector().size());
    std::vector<int64_t> normalised, others;
    for (int64_t i = 0; i < input.dim(); i++)
        (i < outer ? others : normalised).push_back(i);

    Tensor x = input * rstd, g = weight ? grad * *weight : grad;
    Tensor grad_input = (g - x * (g * x).mean(normalised, true)) * rstd;
    Tensor grad_weight;
    if (weight)
        grad_weight = (others.empty() ? grad * x : (grad * x).sum(others))
                          .to(weight->scalar_type());
    s = {grad_input.to(input.scalar_type()), grad_weight};
}

inline void fused_dropout(Stack &s)
{
    double kept = s[1].toDouble();
    Tensor input = s[0].toTensor();
    Tensor mask =
        at::empty_like(input).bernoulli_(kept, s[2].toOptional<at::Generator>());
    s = {input * mask / kept, mask.to(at::kByte)};
}

// Takes arguments as CPU kernels do, and leaves results in the order of the operator's.
using Equivalent = void (*)(Stack &stack);

// That of an operator ("cudnn_batch_norm"), or nullptr.
inline Equivalent equivalent(const std::string &name)
{
    static const std::map<std::string, Equivalent> all = {
        {"_scaled_dot_product_flash_attention", flash},
        {"_scaled_dot_product_flash_attention_backward", flash_backward},
        {"_scaled_dot_product_efficient_attention", efficient},
        {"_scaled_dot_product_efficient_attention_backward", efficient_backward},
        {"_scaled_dot_product_cudnn_attention", cudnn},
        {"_scaled_dot_product_cudnn_attention_backward", cudnn_backward},
        {"cudnn_batch_norm", batch_norm},
        {"cudnn_batch_norm_backward", batch_norm_backward},
        {"native_layer_norm_backward", layer_norm_backward},
        {"native_group_norm_backward", group_norm_backward},
        {"_fused_rms_norm_backward", rms_norm_backward},
        {"_fused_dropout", fused_dropout},
    };
    auto found = all.find(name);

    return found == all.end() ? nullptr : found->second;
}

} // namespace oomph_values
