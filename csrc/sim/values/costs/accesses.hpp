// accesses.hpp - the loads and stores of single numbers. A pointwise operator takes
// vectors of numbers at a time while all that it works on lies alike and is of one
// type; otherwise it takes number by number, and that is what takes its time.
#pragma once
#include "values/alias.hpp"
#include "values/costs/flops.hpp"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string>
#include <vector>

namespace oomph_values
{

class Accesses
{
    bool is_pointwise_, is_copy_, joins_;
    size_t inputs_ = 0;     // arguments before those that are for results
    double per_number_ = 0; // of the first argument, whatever lies how

    // Kernels that are pointwise only in parts, or take single numbers always.
    static double always(const std::string &name)
    {
        if (name == "native_group_norm")
            return 1 + 4; // for the moments; then x, its channel's two factors, y
        if (name == "native_group_norm_backward")
            return 2 + 6; // for the sums; then dy, x, three factors, dx
        return 0;
    }

    static bool is_alike(const Tensor &a, const Tensor &b)
    {
        if (a.scalar_type() != b.scalar_type())
            return false;
        return (a.sizes() == b.sizes() && a.strides() == b.strides() &&
                a.is_non_overlapping_and_dense()) ||
               (a.numel() == b.numel() && a.is_contiguous() && b.is_contiguous());
    }

    static void add(const IValue &value, std::vector<Tensor> &found)
    {
        if (!value.isTensor() && !value.isTensorList())
            return;
        for (const Tensor &tensor : tensors(value))
            if (has_bytes(tensor) && tensor.numel() > 1)
                found.push_back(tensor);
    }

    static double of_pointwise(const std::vector<Tensor> &all)
    {
        const auto alike = [&](const Tensor &each) { return is_alike(each, all[0]); };
        int64_t numbers = 0;

        if (std::all_of(all.begin(), all.end(), alike))
            return 0;
        for (const Tensor &each : all)
            numbers = std::max(numbers, each.numel());
        return static_cast<double>(numbers) * static_cast<double>(all.size());
    }

    // What is put side by side, each number read and written.
    static double of_joined(const std::vector<Tensor> &all, const Tensor &result)
    {
        const auto contiguous = [](const Tensor &each) { return each.is_contiguous(); };

        return std::all_of(all.begin(), all.end(), contiguous)
                   ? 0
                   : 2 * static_cast<double>(result.numel());
    }

  public:
    explicit Accesses(const OperatorHandle &op)
        : is_pointwise_(op.hasTag(at::Tag::pointwise)),
          is_copy_(op.schema().name() == "aten::copy_"),
          joins_(op.schema().name() == "aten::cat"), per_number_(always(own_name(op)))
    {
        for (const c10::Argument &argument : op.schema().arguments())
            inputs_ += !argument.is_out();
    }

    double count(const Call &call) const
    {
        std::vector<Tensor> all;

        if (per_number_ > 0)
            return per_number_ * static_cast<double>(call.tensor(0).numel());
        if (!is_pointwise_ && !is_copy_ && !joins_)
            return 0;
        for (size_t i = 0; i < inputs_; i++)
            add(call.argument(i), all);
        if (all.empty())
            return 0;
        if (joins_)
            return of_joined(all, call.outputs[0].toTensor());
        if (!is_copy_)
            for (const IValue &output : call.outputs)
                add(output, all);
        return of_pointwise(all);
    }
};

} // namespace oomph_values
