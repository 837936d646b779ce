// flops.hpp - the arithmetic of operators: multiplications of matrices, convolutions,
// attention, recurrent networks. A product and a sum are two operations, as in
// torch.utils.flop_counter; unlike there, causal attention counts half, as kernels
// leave the other half out. All other operators are bound by memory: they count none.
#pragma once
#include "sim.h"
#include "values/stack.hpp"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <string>

namespace oomph_values
{

using c10::IValue;
using c10::OperatorHandle;

// The arguments and results of a call, by the names of the schema.
class Call
{
    const c10::FunctionSchema &schema_;
    const Stack &arguments_;

  public:
    const Stack &outputs;

    Call(const OperatorHandle &op, const Stack &arguments, const Stack &results)
        : schema_(op.schema()), arguments_(arguments), outputs(results)
    {
    }

    const IValue *find(const char *name) const
    {
        auto index = schema_.argumentIndexWithName(name);
        return index ? &arguments_[static_cast<size_t>(*index)] : nullptr;
    }

    const IValue &argument(size_t i) const
    {
        return arguments_[i];
    }

    const Tensor &tensor(size_t i) const
    {
        return arguments_[i].toTensor();
    }

    const Tensor &named(const char *name) const
    {
        return find(name)->toTensor();
    }

    bool is_true(const char *name) const
    {
        const IValue *value = find(name);
        return value != nullptr && value->isBool() && value->toBool();
    }
};

// ---- matrices

// [..., m, k] times [..., k, n], `first` and the argument after it.
template <size_t first> double matrix_flops(const Call &call)
{
    const Tensor &a = call.tensor(first), &b = call.tensor(first + 1);
    double groups = a.dim() > b.dim() ? static_cast<double>(a.size(0)) : 1;

    return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1)) /
           groups;
}

// ---- convolutions

// Every weight meets every place: of the output, or of the input if transposed.
inline double convolution_pass(const Tensor &places, const Tensor &weight)
{
    return 2.0 * static_cast<double>(weight.numel()) *
           static_cast<double>(places.numel()) / static_cast<double>(places.size(1));
}

inline double convolution_flops(const Call &call)
{
    return convolution_pass(call.is_true("transposed") ? call.tensor(0)
                                                       : call.outputs[0].toTensor(),
                            call.tensor(1));
}

inline double transposed_convolution_flops(const Call &call)
{
    return convolution_pass(call.tensor(0), call.tensor(1));
}

// A pass for the gradient of the input, and one for that of the weight.
inline double convolution_backward_flops(const Call &call)
{
    const IValue *mask = call.find("output_mask");
    const Tensor &places = call.tensor(call.is_true("transposed") ? 1 : 0);
    double passes = 0;

    for (size_t i = 0; i < 2; i++)
        passes += mask == nullptr || mask->toListRef()[i].toBool();
    return passes * convolution_pass(places, call.tensor(2));
}

// ---- attention

struct Scores {
    double pairs;   // of queries and keys
    double in, out; // size of a query, and of a value
};

// Of sequences of different lengths, packed one after the other, as if all were equal.
inline Scores scores_of(const Call &call, int64_t sequence)
{
    const Tensor &query = call.named("query"), &key = call.named("key");
    const Tensor &value = call.named("value");
    double keys = static_cast<double>(key.size(query.dim() == 3 ? 0 : sequence));
    const IValue *ends = call.find("cum_seq_k");

    if (ends == nullptr)
        ends = call.find("cu_seqlens_k");
    if (ends != nullptr && ends->isTensor() && ends->toTensor().defined() &&
        ends->toTensor().numel() > 1 && (query.dim() == 3 || query.size(0) == 1))
        keys /= static_cast<double>(ends->toTensor().numel() - 1);
    double causal = call.is_true("is_causal") ? 0.5 : 1;
    if (const IValue *mask = call.find("custom_mask_type"))
        causal = mask->toInt() != 0 ? 0.5 : 1;
    double size = static_cast<double>(query.size(-1));
    return {static_cast<double>(query.numel()) / size * keys * causal, size,
            static_cast<double>(value.size(-1))};
}

// Scores, then the sum of values.
template <int64_t sequence> double attention_flops(const Call &call)
{
    Scores of = scores_of(call, sequence);
    return 2 * of.pairs * (of.in + of.out);
}

// Scores once more, and the gradients of values, scores, queries and keys.
template <int64_t sequence> double attention_backward_flops(const Call &call)
{
    Scores of = scores_of(call, sequence);
    return 2 * of.pairs * (3 * of.in + 2 * of.out);
}

// ---- recurrent networks

// Every matrix meets every token.
inline double recurrent_flops(const Call &call)
{
    const Tensor &input = call.tensor(0);
    double weights = 0;

    for (const Tensor &weight : call.find("weight")->toTensorVector())
        if (weight.dim() == 2)
            weights += static_cast<double>(weight.numel());
    return 2 * weights * static_cast<double>(input.numel()) /
           static_cast<double>(input.size(-1));
}

inline double recurrent_backward_flops(const Call &call)
{
    return 2 * recurrent_flops(call);
}

// ---- all

using at::Float32Op;

// How to count the arithmetic of an operator.
struct Arithmetic {
    double (*count)(const Call &);
    size_t operand; // the argument whose type decides the speed
    Float32Op kind; // whether PyTorch may round what is fp32 to tf32 for it
};

// By name, without overload and the underscore of what works in place.
inline const std::map<std::string, Arithmetic> &arithmetics()
{
    constexpr Float32Op matrix = Float32Op::MATMUL, conv = Float32Op::CONV;
    static const std::map<std::string, Arithmetic> known = {
        {"mm", {matrix_flops<0>, 0, matrix}},
        {"bmm", {matrix_flops<0>, 0, matrix}},
        {"_int_mm", {matrix_flops<0>, 0, matrix}},
        {"_scaled_mm", {matrix_flops<0>, 0, matrix}},
        {"_grouped_mm", {matrix_flops<0>, 0, matrix}},
        {"_scaled_grouped_mm", {matrix_flops<0>, 0, matrix}},
        {"addmm", {matrix_flops<1>, 1, matrix}},
        {"_addmm_activation", {matrix_flops<1>, 1, matrix}},
        {"baddbmm", {matrix_flops<1>, 1, matrix}},
        {"convolution", {convolution_flops, 0, conv}},
        {"cudnn_convolution", {convolution_flops, 0, conv}},
        {"cudnn_convolution_relu", {convolution_flops, 0, conv}},
        {"cudnn_convolution_add_relu", {convolution_flops, 0, conv}},
        {"_slow_conv2d_forward", {convolution_flops, 0, conv}},
        {"slow_conv_dilated2d", {convolution_flops, 0, conv}},
        {"slow_conv_dilated3d", {convolution_flops, 0, conv}},
        {"_conv_depthwise2d", {convolution_flops, 0, conv}},
        {"conv_depthwise3d", {convolution_flops, 0, conv}},
        {"cudnn_convolution_transpose", {transposed_convolution_flops, 0, conv}},
        {"slow_conv_transpose2d", {transposed_convolution_flops, 0, conv}},
        {"slow_conv_transpose3d", {transposed_convolution_flops, 0, conv}},
        {"convolution_backward", {convolution_backward_flops, 1, conv}},
        {"_slow_conv2d_backward", {convolution_backward_flops, 1, conv}},
        {"_scaled_dot_product_flash_attention", {attention_flops<2>, 0, matrix}},
        {"_scaled_dot_product_efficient_attention", {attention_flops<2>, 0, matrix}},
        {"_scaled_dot_product_cudnn_attention", {attention_flops<2>, 0, matrix}},
        {"_flash_attention_forward", {attention_flops<1>, 0, matrix}},
        {"_efficient_attention_forward", {attention_flops<1>, 0, matrix}},
        {"_scaled_dot_product_flash_attention_backward",
         {attention_backward_flops<2>, 1, matrix}},
        {"_scaled_dot_product_efficient_attention_backward",
         {attention_backward_flops<2>, 1, matrix}},
        {"_scaled_dot_product_cudnn_attention_backward",
         {attention_backward_flops<2>, 1, matrix}},
        {"_flash_attention_backward", {attention_backward_flops<1>, 1, matrix}},
        {"_efficient_attention_backward", {attention_backward_flops<1>, 1, matrix}},
        {"_cudnn_rnn", {recurrent_flops, 0, Float32Op::RNN}},
        {"_cudnn_rnn_backward", {recurrent_backward_flops, 0, Float32Op::RNN}},
    };
    return known;
}

// The arithmetic of an operator; null: it has none.
inline const Arithmetic *arithmetic_of(const OperatorHandle &op)
{
    std::string name = own_name(op);
    auto found = arithmetics().find(name);

    if (found == arithmetics().end() && !name.empty() && name.back() == '_') {
        name.pop_back();
        found = arithmetics().find(name);
    }
    return found == arithmetics().end() ? nullptr : &found->second;
}

inline oomph_sim_precision_t precision_of(const Arithmetic &arithmetic,
                                          const Tensor &operand)
{
    switch (operand.scalar_type()) {
    case at::kHalf:
        return OOMPH_SIM_FP16;
    case at::kBFloat16:
        return OOMPH_SIM_BF16;
    case at::kFloat:
        return at::globalContext().float32Precision(at::Float32Backend::CUDA,
                                                    arithmetic.kind) ==
                       at::Float32Precision::TF32
                   ? OOMPH_SIM_TF32
                   : OOMPH_SIM_FP32;
    default:
        return operand.element_size() == 1 ? OOMPH_SIM_FP8 : OOMPH_SIM_FP32;
    }
}

} // namespace oomph_values
