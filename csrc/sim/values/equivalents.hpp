// equivalents.hpp - operators that the CPU has under another name, or not at all.
#pragma once
#include "attention.hpp"
#include "cells.hpp"
#include "packed.hpp"
#include "recurrent.hpp"
#include "stack.hpp"

#include <ATen/OpMathType.h>
#include <map>
#include <string>
#include <vector>

namespace oomph_values
{

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
        if (auto statistic = maybe(s[i]))
            s[i] = statistic->to(input.scalar_type());
}

inline void native_batch_norm_backward(Stack &s)
{
    match_statistics(s, s[1].toTensor(), maybe(s[2]), 5);
    auto mask = s[9].toBoolList();
    auto [input, weight, bias] = at::native_batch_norm_backward(
        s[0].toTensor(), s[1].toTensor(), maybe(s[2]), maybe(s[3]), maybe(s[4]),
        maybe(s[5]), maybe(s[6]), s[7].toBool(), s[8].toDouble(),
        {mask[0], mask[1], mask[2]});
    s = {input, weight, bias};
}

// `s[10]`, which cuDNN's forward left, is not needed.
inline void any_batch_norm_backward(Stack &s)
{
    s.pop_back();
    native_batch_norm_backward(s);
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

    // As autograd derives it from what rms_norm() is on the CPU, operator by operator:
    // another order rounds otherwise.
    Tensor x = input.to(at::kFloat), g = grad.to(at::kFloat), grad_weight;
    if (input.scalar_type() == at::kDouble)
        x = input, g = grad;
    if (weight) {
        Tensor each = g * (x * rstd);
        if (!others.empty())
            each = each.sum(others);
        grad_weight = each.to(weight->scalar_type());
        g = g * *weight;
    }
    Tensor of_rstd = (g * x).sum(normalised, true);
    Tensor of_mean = rstd.pow(3).mul(-0.5) * of_rstd;
    int64_t count = input.numel() / std::max<int64_t>(rstd.numel(), 1);
    Tensor of_square = of_mean.expand(x.sizes()) / at::Scalar(count);
    s = {(g * rstd + of_square * (x.pow(1.0) * 2.0)).to(input.scalar_type()),
         grad_weight};
}

/* ---- Others */

inline void fused_dropout(Stack &s)
{
    double kept = s[1].toDouble();
    Tensor input = s[0].toTensor();
    Tensor mask =
        at::empty_like(input).bernoulli_(kept, s[2].toOptional<at::Generator>());
    s = {input * mask / kept, mask.to(at::kByte)};
}

// The CPU's backward needs a buffer that the GPU's forward does not make.
inline void log_sigmoid_backward(Stack &s)
{
    Tensor buffer = std::get<1>(at::log_sigmoid_forward(s[1].toTensor()));
    s = {at::log_sigmoid_backward(s[0].toTensor(), s[1].toTensor(), buffer)};
}

// The GPU says to which bag each index belongs even where the CPU does not need it.
inline Tensor bags(const Tensor &indices, Tensor offsets, bool with_last)
{
    if (with_last)
        offsets = offsets.slice(0, 0, offsets.size(0) - 1);
    Tensor found = at::zeros({indices.size(0) + 1}, offsets.options());
    found.index_add_(0, offsets, at::ones_like(offsets));
    return (found.cumsum(0) - 1).slice(0, 0, indices.size(0));
}

template <bool for_backward> void embedding_bag(Stack &s)
{
    Tensor indices = s[1].toTensor(), offsets = s[2].toTensor();
    bool with_last = s[7].toBool();
    auto call = for_backward ? at::_embedding_bag : at::_embedding_bag_forward_only;
    auto [out, of_indices, sizes, greatest] =
        call(s[0].toTensor(), indices, offsets, s[3].toBool(), s[4].toInt(),
             s[5].toBool(), maybe(s[6]), with_last, s[8].toInt());
    if (of_indices.numel() != indices.numel())
        of_indices = bags(indices, offsets, with_last);
    s = {out, of_indices, sizes, greatest};
}

// Puts a result where a caller wants it, who may have given `out` as its last argument.
inline void put_result(Stack &s, size_t argument_count, Tensor found)
{
    if (s.size() > argument_count)
        found = s.back().toTensor().resize_(found.sizes()).copy_(found);
    s = {found};
}

// The CPU counts only floating-point numbers. As on the GPU, what is found is rounded
// down, and the last bin includes its upper end.
inline Tensor count_integers(const Tensor &x, int64_t bins, int64_t least,
                             int64_t greatest)
{
    Tensor values = x.flatten().to(at::kLong);
    if (least == greatest && values.numel() > 0) {
        least = values.min().item<int64_t>();
        greatest = values.max().item<int64_t>();
    }
    if (least == greatest) {
        least--;
        greatest++;
    }
    TORCH_CHECK(bins > 0, "bins must be > 0");
    TORCH_CHECK(least < greatest, "max must be larger than min");
    values = values.index({(values >= least).logical_and(values <= greatest)});
    Tensor bin = ((values - least) * bins).floor_divide(greatest - least);
    return at::bincount(bin.clamp_max(bins - 1), {}, bins).to(x.scalar_type());
}

inline void histogram(Stack &s)
{
    Tensor x = s[0].toTensor();
    at::Scalar least = s[2].toScalar(), greatest = s[3].toScalar();
    Tensor found =
        at::isIntegralType(x.scalar_type(), /*includeBool=*/false)
            ? count_integers(x, s[1].toInt(), least.toLong(), greatest.toLong())
            : at::histc(x, s[1].toInt(), least, greatest);
    put_result(s, 4, found);
}

// Products in a wider type than that of their factors, which a GPU makes at once.
template <bool of_batches> void wide_product(Stack &s)
{
    const at::ScalarType type = s[2].toScalarType();
    Tensor a = s[0].toTensor().to(type), b = s[1].toTensor().to(type);
    put_result(s, 3, of_batches ? at::bmm(a, b) : at::mm(a, b));
}

template <bool of_batches> void wide_sum(Stack &s)
{
    const at::ScalarType type = s[3].toScalarType();
    const at::Scalar beta = s[4].toScalar(), alpha = s[5].toScalar();
    Tensor sum = s[0].toTensor().to(type);
    Tensor a = s[1].toTensor().to(type), b = s[2].toTensor().to(type);
    put_result(s, 6,
               of_batches ? at::baddbmm(sum, a, b, beta, alpha)
                          : at::addmm(sum, a, b, beta, alpha));
}

// The CPU's kernel for 16 bits reads momenta as if they were float and leaves most
// parameters as they were (pytorch/pytorch#191763).
template <typename Rate> void fused_sgd(Stack &s)
{
    std::vector<std::vector<Tensor>> wide;
    for (size_t i = 0; i < 3; i++) {
        wide.emplace_back();
        for (const Tensor &tensor : s[i].toTensorVector())
            wide[i].push_back(
                tensor.to(at::toOpMathType(tensor.scalar_type()), false, true));
    }
    at::_fused_sgd_(wide[0], wide[1], wide[2], s[3].toDouble(), s[4].toDouble(),
                    s[5].to<Rate>(), s[6].toDouble(), s[7].toBool(), s[8].toBool(),
                    s[9].toBool(), maybe(s[10]), maybe(s[11]));
    for (size_t i = 0; i < 3; i++) {
        std::vector<Tensor> tensors = s[i].toTensorVector();
        for (size_t j = 0; j < tensors.size(); j++)
            tensors[j].copy_(wide[i][j]);
    }
    s = {};
}

struct Equivalent {
    // Takes arguments as CPU kernels do, and leaves results in the order of the
    // operator's.
    void (*compute)(Stack &stack) = nullptr;
    // Whether it draws or records, which cannot be put off into a stream.
    bool (*waits)(const Stack &arguments) = nullptr;
};

inline bool never(const Stack &)
{
    return false;
}

inline bool always(const Stack &)
{
    return true;
}

template <size_t index> bool if_dropped(const Stack &arguments)
{
    return arguments[index].toDouble() > 0.0;
}

// The equivalent of an operator ("cudnn_batch_norm"), if it has one.
inline Equivalent equivalent(const std::string &name)
{
    static const std::map<std::string, Equivalent> all = {
        {"_scaled_dot_product_flash_attention", {flash, if_dropped<3>}},
        {"_scaled_dot_product_flash_attention_backward",
         {flash_backward, if_dropped<10>}},
        {"_scaled_dot_product_efficient_attention", {efficient, if_dropped<5>}},
        {"_scaled_dot_product_efficient_attention_backward",
         {efficient_backward, if_dropped<9>}},
        {"_scaled_dot_product_cudnn_attention", {cudnn, if_dropped<5>}},
        {"_scaled_dot_product_cudnn_attention_backward",
         {cudnn_backward, if_dropped<13>}},
        {"_flash_attention_forward", {packed_flash, never}},
        {"_flash_attention_backward", {packed_flash_backward, never}},
        {"_efficient_attention_forward", {packed_efficient, never}},
        {"_efficient_attention_backward", {packed_efficient_backward, never}},
        {"_cudnn_rnn", {recurrent, recurrent_waits}},
        {"_cudnn_rnn_backward", {recurrent_backward, always}},
        {"_thnn_fused_lstm_cell", {lstm_cell, never}},
        {"_thnn_fused_lstm_cell_backward_impl", {lstm_cell_backward, never}},
        {"_thnn_fused_gru_cell", {gru_cell, never}},
        {"_thnn_fused_gru_cell_backward", {gru_cell_backward, never}},
        {"cudnn_batch_norm", {batch_norm, never}},
        {"cudnn_batch_norm_backward", {batch_norm_backward, never}},
        {"native_batch_norm_backward", {native_batch_norm_backward, never}},
        {"batch_norm_backward", {any_batch_norm_backward, never}},
        {"native_layer_norm_backward", {layer_norm_backward, never}},
        {"native_group_norm_backward", {group_norm_backward, never}},
        {"_fused_rms_norm_backward", {rms_norm_backward, never}},
        {"_fused_sgd_", {fused_sgd<double>, never}},
        {"_fused_sgd_.tensor_lr", {fused_sgd<Tensor>, never}},
        {"_fused_dropout", {fused_dropout, always}},
        {"log_sigmoid_backward", {log_sigmoid_backward, never}},
        {"log_sigmoid_backward.grad_input", {log_sigmoid_backward, never}},
        {"histc", {histogram, never}},
        {"histc.out", {histogram, never}},
        {"mm.dtype", {wide_product<false>, never}},
        {"mm.dtype_out", {wide_product<false>, never}},
        {"bmm.dtype", {wide_product<true>, never}},
        {"bmm.dtype_out", {wide_product<true>, never}},
        {"addmm.dtype", {wide_sum<false>, never}},
        {"addmm.dtype_out", {wide_sum<false>, never}},
        {"baddbmm.dtype", {wide_sum<true>, never}},
        {"baddbmm.dtype_out", {wide_sum<true>, never}},
        {"_embedding_bag", {embedding_bag<true>, never}},
        {"_embedding_bag_forward_only", {embedding_bag<false>, never}},
    };
    auto found = all.find(name);

    return found == all.end() ? Equivalent() : found->second;
}

} // namespace oomph_values
