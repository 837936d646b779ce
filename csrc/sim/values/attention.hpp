// attention.hpp - attention: each of the GPU's kinds is what the CPU would run.
//
// Without dropout that is the CPU's one fused kind. With dropout it is the composition
// of plain operators; the forward leaves the position of its generator in the outputs
// meant for it, and the backward draws the same mask from there.
#pragma once
#include "draws.hpp"
#include "stack.hpp"

#include <torch/csrc/autograd/autograd.h>

#include <tuple>
#include <utility>

namespace oomph_values
{

struct Attention {
    Tensor query, key, value;
    std::optional<Tensor> bias;
    double dropout;
    bool causal;
    std::optional<double> scale;
};

// Heads of the query may share those of key and value.
inline Tensor attend_in_parts(const Attention &a)
{
    bool is_grouped = a.query.size(-3) != a.key.size(-3);
    return std::get<0>(at::_scaled_dot_product_attention_math(
        a.query, a.key, a.value, a.bias, a.dropout, a.causal, std::nullopt, a.scale,
        is_grouped));
}

// Whether the CPU, too, attends by single operators.
inline bool is_in_parts(const Attention &a)
{
    return a.dropout > 0.0 || a.query.size(-1) != a.value.size(-1);
}

// The output and the logarithm of each row's sum, which single operators do not need.
inline std::pair<Tensor, Tensor> attend(const Attention &a)
{
    if (is_in_parts(a))
        return {attend_in_parts(a), Tensor()};
    auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        a.query, a.key, a.value, 0.0, a.causal, a.bias, a.scale);
    return {out, sums};
}

struct AttentionGradients {
    Tensor query, key, value, bias;
};

inline AttentionGradients attend_backward_in_parts(Attention a, const Tensor &grad,
                                                   const Position &drawn)
{
    std::optional<InPlaceOfDefault> again;
    if (a.dropout > 0.0)
        again.emplace(generator_again(drawn));
    Recording recording;
    a.query = leaf(a.query);
    a.key = leaf(a.key);
    a.value = leaf(a.value);
    std::vector<Tensor> inputs = {a.query, a.key, a.value};
    if (a.bias)
        inputs.push_back(*(a.bias = leaf(*a.bias)));
    auto found = torch::autograd::grad({attend_in_parts(a)}, inputs, {grad});
    return {found[0], found[1], found[2], a.bias ? found[3] : Tensor()};
}

inline AttentionGradients attend_backward(const Attention &a, const Tensor &grad,
                                          const Tensor &out, const Tensor &sums,
                                          const Position &drawn)
{
    if (is_in_parts(a))
        return attend_backward_in_parts(a, grad, drawn);
    auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, a.query, a.key, a.value, out, sums, 0.0, a.causal, a.bias, a.scale);
    return {query, key, value, Tensor()};
}

/* ---- Where the generator stood: in one output, or in two */

inline Position position_in(const Attention &a, const Tensor &seed,
                            const Tensor &offset)
{
    if (a.dropout == 0.0)
        return {};
    if (seed.numel() == 2)
        return {number(seed), number(seed, 1)};
    return {number(seed), number(offset)};
}

/* ---- Flash attention */

inline void flash(Stack &s)
{
    Attention a{s[0].toTensor(), s[1].toTensor(), s[2].toTensor(),   std::nullopt,
                s[3].toDouble(), s[4].toBool(),   maybe_double(s[6])};
    auto [out, sums] = attend(a);
    s = {out, sums};
    if (a.dropout > 0.0) {
        s.resize(6);
        s.emplace_back(numbers(drawing_from));
    }
}

inline void flash_backward(Stack &s)
{
    Attention a{s[1].toTensor(),  s[2].toTensor(), s[3].toTensor(),    std::nullopt,
                s[10].toDouble(), s[11].toBool(),  maybe_double(s[14])};
    auto found = attend_backward(a, s[0].toTensor(), s[4].toTensor(), s[5].toTensor(),
                                 position_in(a, s[12].toTensor(), s[13].toTensor()));
    s = {found.query, found.key, found.value};
}

/* ---- Memory-efficient attention */

// The GPU pads the sums of each row to a multiple of 32.
inline Tensor padded(const Tensor &sums)
{
    int64_t over = sums.size(-1) % 32;
    return over == 0 ? sums : at::constant_pad_nd(sums, {0, 32 - over});
}

inline void efficient(Stack &s)
{
    Attention a{s[0].toTensor(), s[1].toTensor(), s[2].toTensor(),   maybe(s[3]),
                s[5].toDouble(), s[6].toBool(),   maybe_double(s[7])};
    bool wants_sums = s[4].toBool();
    auto [out, sums] = attend(a);
    s = {out, wants_sums && sums.defined() ? padded(sums) : Tensor()};
    if (a.dropout > 0.0) {
        s.emplace_back(number(drawing_from.seed));
        s.emplace_back(number(drawing_from.offset));
    }
}

inline void efficient_backward(Stack &s)
{
    Attention a{s[1].toTensor(), s[2].toTensor(), s[3].toTensor(),    maybe(s[4]),
                s[9].toDouble(), s[11].toBool(),  maybe_double(s[12])};
    TORCH_CHECK_NOT_IMPLEMENTED(
        a.dropout > 0.0 || !s[10].toBoolList()[3],
        "the CPU's fused attention gives no gradient of the mask; use "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)");
    Tensor sums = s[6].toTensor();
    if (a.dropout == 0.0)
        sums = sums.slice(-1, 0, a.query.size(2));
    auto found = attend_backward(a, s[0].toTensor(), s[5].toTensor(), sums,
                                 position_in(a, s[7].toTensor(), s[8].toTensor()));
    s = {found.query, found.key, found.value, found.bias};
}

/* ---- cuDNN's attention */

inline void cudnn(Stack &s)
{
    Attention a{s[0].toTensor(), s[1].toTensor(), s[2].toTensor(),   maybe(s[3]),
                s[5].toDouble(), s[6].toBool(),   maybe_double(s[8])};
    bool wants_sums = s[4].toBool();
    auto [out, sums] = attend(a);
    s = {out, wants_sums ? sums : Tensor()};
    if (a.dropout > 0.0) {
        s.resize(6);
        s.emplace_back(number(drawing_from.seed));
        s.emplace_back(number(drawing_from.offset));
    }
}

inline void cudnn_backward(Stack &s)
{
    Attention a{s[1].toTensor(),  s[2].toTensor(), s[3].toTensor(),    maybe(s[8]),
                s[13].toDouble(), s[14].toBool(),  maybe_double(s[15])};
    Tensor sums = s[5].toTensor();
    if (sums.dim() == 4)
        sums = sums.squeeze(-1);
    auto found = attend_backward(a, s[0].toTensor(), s[4].toTensor(), sums,
                                 position_in(a, s[6].toTensor(), s[7].toTensor()));
    s = {found.query, found.key, found.value};
}

} // namespace oomph_values
