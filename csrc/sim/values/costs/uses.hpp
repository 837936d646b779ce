// uses.hpp - which memory an operator works on, and how much of it is moved: each
// argument is read once and each result written once, apart from the exceptions below.
// What a view leaves out is not moved, nor what an expanded tensor repeats.
#pragma once
#include "values/alias.hpp"
#include "values/costs/flops.hpp"
#include "values/operators.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace oomph_values
{

// The bytes that a tensor has, each counted once.
inline uint64_t own_bytes(const Tensor &tensor)
{
    uint64_t count = tensor.element_size();

    if (tensor.is_nested()) // which has no strides
        return count * static_cast<uint64_t>(tensor.numel());
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

// How often an argument is read after the first time.
struct Passes {
    unsigned again;  // by a later kernel
    unsigned reread; // by the threads that have just read it
    bool if_long;    // only where a row does not fit the memory of a block
};

struct Passing {
    const char *name, *argument;
    Passes passes;
};

inline Passes passes_of(const std::string &name, const std::string &argument)
{
    static const Passing passing[] = {
        {"_fused_rms_norm", "input", {0, 1, false}}, // for its mean, then to scale it
        {"_fused_rms_norm_backward", "grad_out", {1, 1, false}}, // then for weights
        {"_fused_rms_norm_backward", "input", {1, 1, false}},
        {"_log_softmax", "self", {0, 2, true}}, // maximum, sum, result
        {"_log_softmax_backward_data", "grad_output", {0, 1, true}},
        {"_log_softmax_backward_data", "output", {0, 1, true}},
        {"_softmax", "self", {0, 2, true}},
        {"_softmax_backward_data", "grad_output", {0, 1, true}},
        {"_softmax_backward_data", "output", {0, 1, true}},
        {"native_group_norm", "input", {1, 0, false}},
        {"native_group_norm_backward", "grad_out", {1, 0, false}},
        {"native_group_norm_backward", "input", {1, 0, false}},
        {"native_layer_norm", "input", {0, 1, false}},
        {"native_layer_norm_backward", "grad_out", {1, 1, false}},
        {"native_layer_norm_backward", "input", {1, 1, false}},
    };

    for (const Passing &each : passing)
        if (name == each.name && argument == each.argument)
            return each.passes;
    return {};
}

// What an operator does with its arguments and results, known before any call.
class Uses
{
    struct Argument {
        bool reads, writes;
        Extent extent;
        Passes passes;
    };
    bool sorts_; // each of its kernels reads and writes all
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

    // An argument that is given twice is read once.
    static void add(std::vector<oomph_sim_use_t> &uses, const Tensor &tensor,
                    uint64_t read, uint64_t written, Passes passes = {})
    {
        if (!has_bytes(tensor) || read + written == 0)
            return;
        const uint64_t addr = address_of(tensor), bytes = span_bytes(tensor);
        if (written == 0 && std::any_of(uses.begin(), uses.end(), [&](const auto &use) {
                return use.addr == addr && use.bytes == bytes && use.read_bytes == read;
            }))
            return;
        uses.push_back({addr, bytes, read, written, passes.again * read,
                        is_reread(passes, tensor) ? passes.reread * read : 0});
    }

    static bool is_reread(Passes passes, const Tensor &tensor)
    {
        const int64_t block_bytes = 48 << 10; // shared memory, unless one asks for more

        return !passes.if_long ||
               (tensor.dim() > 0 &&
                tensor.size(-1) * static_cast<int64_t>(tensor.element_size()) >
                    block_bytes);
    }

  public:
    explicit Uses(const OperatorHandle &op)
    {
        const c10::FunctionSchema &schema = op.schema();
        const std::string name = own_name(op);
        bool reads = !Names(OVERWRITING).contain(name);

        sorts_ = name == "sort";

        for (const c10::Argument &argument : schema.arguments()) {
            bool writes = argument.alias_info() != nullptr &&
                          argument.alias_info()->isWrite() &&
                          argument.name() != "grads"; // of fused optimizers
            arguments_.push_back({!writes || (reads && !argument.is_out()), writes,
                                  extent_of(name, argument.name()),
                                  passes_of(name, argument.name())});
        }
        for (const c10::Argument &result : schema.returns())
            is_new_.push_back(result.alias_info() == nullptr);
    }

    void collect(const Call &call, unsigned kernel_count,
                 std::vector<oomph_sim_use_t> &uses) const
    {
        const unsigned more = sorts_ && kernel_count > 1 ? kernel_count - 1 : 0;

        for (size_t i = 0; i < arguments_.size(); i++) {
            const Argument &how = arguments_[i];
            each(call.argument(i), [&](const Tensor &tensor) {
                uint64_t bytes = moved_bytes(how.extent, tensor, call);
                add(uses, tensor, how.reads ? bytes : 0, how.writes ? bytes : 0,
                    how.passes);
            });
        }
        for (size_t i = 0; i < is_new_.size(); i++)
            if (is_new_[i])
                each(call.outputs[i], [&](const Tensor &tensor) {
                    add(uses, tensor, 0, own_bytes(tensor));
                });
        for (oomph_sim_use_t &use : uses)
            use.again_bytes += more * (use.read_bytes + use.written_bytes);
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
