// uses.hpp - which memory an operator works on, and how much of it is moved: each
// argument is read once and each result written once, apart from the exceptions below.
// What a view leaves out is not moved, nor what an expanded tensor repeats.
#pragma once
#include "alias.hpp"
#include "flops.hpp"
#include "operators.hpp"

#include <string>
#include <vector>

namespace oomph_values
{

// The bytes that a tensor has, each counted once.
inline uint64_t own_bytes(const Tensor &tensor)
{
    uint64_t count = tensor.element_size();

    for (int64_t i = 0; i < tensor.dim(); i++)
        if (tensor.stride(i) != 0 || tensor.size(i) == 0)
            count *= static_cast<uint64_t>(tensor.size(i));
    return count;
}

// In-place operators that do not read what they write.
inline constexpr std::string_view OVERWRITING[] = {
    "_foreach_copy_", "_foreach_zero_", "bernoulli_", "cauchy_",     "copy_",
    "exponential_",   "fill_",          "geometric_", "log_normal_", "normal_",
    "random_",        "uniform_",       "zero_",
};

// How much of an argument an operator works on.
enum class Extent {
    all,
    nothing,   // it only asks for its shape, or has it as another argument too
    of_result, // as many bytes as the result has
    of_index,  // a sector for each element of the argument that chooses
    of_source, // as many bytes as the argument that is put into it
};

struct Exception {
    const char *name, *argument; // of the operator, without overload
    Extent extent;
};

inline Extent extent_of(const std::string &name, const std::string &argument)
{
    static const Exception exceptions[] = {
        {"_cudnn_rnn", "weight_buf", Extent::nothing},
        {"_cudnn_rnn_backward", "weight_buf", Extent::nothing},
        {"_index_put_impl_", "self", Extent::of_source},
        {"gather", "self", Extent::of_result},
        {"index", "self", Extent::of_result},
        {"index_add_", "self", Extent::of_source},
        {"index_copy_", "self", Extent::of_source},
        {"index_put_", "self", Extent::of_source},
        {"index_select", "self", Extent::of_result},
        {"max_pool2d_with_indices_backward", "self", Extent::nothing},
        {"nll_loss_backward", "self", Extent::nothing},
        {"nll_loss2d_backward", "self", Extent::nothing},
        {"nll_loss_forward", "self", Extent::of_index},
        {"nll_loss2d_forward", "self", Extent::of_index},
        {"scatter_", "self", Extent::of_source},
        {"scatter_add_", "self", Extent::of_source},
    };

    for (const Exception &exception : exceptions)
        if (name == exception.name && argument == exception.argument)
            return exception.extent;
    return Extent::all;
}

// What an operator does with its arguments and results, known before any call.
class Uses
{
    struct Argument {
        bool reads, writes;
        Extent extent;
    };
    std::vector<Argument> arguments_;
    std::vector<bool> is_new_; // results that are no arguments

    static uint64_t first_bytes(const Call &call,
                                std::initializer_list<const char *> of)
    {
        for (const char *name : of) {
            const IValue *value = call.find(name);
            if (value != nullptr && value->isTensor() && value->toTensor().defined())
                return own_bytes(value->toTensor());
        }
        return 0;
    }

    static uint64_t moved_bytes(Extent extent, const Tensor &tensor, const Call &call)
    {
        const uint64_t sector = 32;
        const uint64_t all = own_bytes(tensor);

        switch (extent) {
        case Extent::nothing:
            return 0;
        case Extent::of_result:
            return std::min(all, own_bytes(call.outputs[0].toTensor()));
        case Extent::of_index:
            return std::min(all, sector * call.named("target").numel());
        case Extent::of_source:
            return std::min(all,
                            first_bytes(call, {"src", "source", "values", "index"}));
        default:
            return all;
        }
    }

    static void add(std::vector<oomph_sim_use_t> &uses, const Tensor &tensor,
                    uint64_t read, uint64_t written)
    {
        if (!has_bytes(tensor) || read + written == 0)
            return;
        uses.push_back({address_of(tensor), span_bytes(tensor), read, written});
    }

  public:
    explicit Uses(const OperatorHandle &op)
    {
        const c10::FunctionSchema &schema = op.schema();
        std::string name = schema.name().substr(6); // without aten::
        bool reads = !Names(OVERWRITING).contain(name);

        for (const c10::Argument &argument : schema.arguments()) {
            bool writes = argument.alias_info() != nullptr &&
                          argument.alias_info()->isWrite() &&
                          argument.name() != "grads"; // of fused optimizers
            arguments_.push_back({!writes || (reads && !argument.is_out()), writes,
                                  extent_of(name, argument.name())});
        }
        for (const c10::Argument &result : schema.returns())
            is_new_.push_back(result.alias_info() == nullptr);
    }

    void collect(const Call &call, std::vector<oomph_sim_use_t> &uses) const
    {
        for (size_t i = 0; i < arguments_.size(); i++) {
            const Argument &how = arguments_[i];
            each(call.argument(i), [&](const Tensor &tensor) {
                uint64_t bytes = moved_bytes(how.extent, tensor, call);
                add(uses, tensor, how.reads ? bytes : 0, how.writes ? bytes : 0);
            });
        }
        for (size_t i = 0; i < is_new_.size(); i++)
            if (is_new_[i])
                each(call.outputs[i], [&](const Tensor &tensor) {
                    add(uses, tensor, 0, own_bytes(tensor));
                });
    }

  private:
    // All tensors of a value on the GPU.
    template <typename Visit> static void each(const IValue &value, Visit visit)
    {
        if (value.isTensor()) {
            if (value.toTensor().defined() && value.toTensor().is_cuda())
                visit(value.toTensor());
        } else if (value.isList()) {
            for (const Tensor &tensor : tensors(value))
                if (tensor.defined() && tensor.is_cuda())
                    visit(tensor);
        }
    }
};

} // namespace oomph_values
