// small.hpp - small tensors keep their values where memory is not real, and integers do
// in larger ones, too. Programs send sizes, ranks and counts through a GPU and decide
// by them. So an operator on such tensors alone is followed by a computation: if all
// that it reads is known, its CPU kernel gives what it writes. Else what it writes is
// not known, as that of any other; but which of some options is the best, as a router
// of experts asks, is given: each of them equally often. And what is not known picks
// from what is known as if it were spread evenly: the nodes that a graph keeps are of
// all graphs.
#pragma once
#include "values/arguments.hpp"
#include "values/costs/mirrors.hpp"
#include "values/costs/uses.hpp"
#include "values/costs/whole.hpp"

#include <ATen/EmptyTensor.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace oomph_values
{

inline constexpr uint64_t INTEGERS_BYTES = 64 << 20; // as the driver keeps
inline constexpr size_t SMALL_COUNT = 16;            // tensors of an operator,
inline constexpr size_t LIST_COUNT = 1024;   // or of one that works on lists of numbers
inline constexpr int64_t OPTIONS_MAX = 1024; // more are those of a vocabulary, say
inline constexpr uint64_t BITS_BYTES = 64 << 10; // of what may be certain in part

// Operators that name which of the options along a dimension is the best.
inline constexpr std::string_view CHOOSING[] = {
    "argmax", "argmin", "max.dim", "min.dim", "sort", "sort.stable", "topk"};

// Operators whose results are those of any values if they are the same for two: where
// all bits of what is not known are 0, and where all are 1.
inline constexpr std::string_view BITWISE[] = {
    "bitwise_and", "bitwise_and_", "bitwise_or", "bitwise_or_",
    "logical_and", "logical_and_", "logical_or", "logical_or_",
    "mul",         "mul_",         "where"};

// Operators that compare: floats that are not known are ordinary ones, so they are more
// than a score of -1e9, and finite.
inline constexpr std::string_view COMPARING[] = {"ge", "gt", "le", "lt"};
inline constexpr std::string_view MATCHING[] = {"eq", "ne"};

// Operators that pick from their first argument, by indices along a dimension.
inline constexpr std::string_view PICKING[] = {"gather", "index.Tensor",
                                               "index_select"};

class Small
{
    Cpu cpu_;
    bool is_computed_, overwrites_, is_asked_, chooses_, chooses_several_, is_bitwise_,
        picks_, compares_, matches_, moves_, seeks_;

    static bool is_plain(const Tensor &tensor)
    {
        return tensor.layout() == at::kStrided && !tensor.is_nested() &&
               tensor.has_storage() && !tensor.is_conj() && !tensor.is_neg() &&
               tensor.numel() > 0;
    }

    static bool is_small(const Tensor &tensor)
    {
        const bool is_integer = at::isIntegralType(tensor.scalar_type(), true);
        return is_plain(tensor) &&
               span_bytes(tensor) <= (is_integer ? INTEGERS_BYTES : SMALL_BYTES);
    }

    static bool is_large_float(const Tensor &tensor)
    {
        return at::isFloatingType(tensor.scalar_type()) &&
               span_bytes(tensor) > SMALL_BYTES;
    }

    static bool may_be_whole(const Tensor &tensor, bool is_read)
    {
        return is_plain(tensor) && is_large_float(tensor) &&
               span_bytes(tensor) <= WHOLE_BYTES &&
               (!is_read || wholes.contain(tensor));
    }

    static bool is_small(const IValue &value, bool is_read, size_t &count)
    {
        const bool is_list = value.isList();
        if (is_list && value.toListRef().size() > LIST_COUNT)
            return false;
        for (const Tensor &tensor : tensors(value)) {
            if (!tensor.defined())
                continue;
            count += !is_list || tensor.numel() > 1;
            if (!(is_small(tensor) || may_be_whole(tensor, is_read)) ||
                count > SMALL_COUNT)
                return false;
        }
        return true;
    }

    bool is_written(size_t argument) const
    {
        const c10::AliasInfo *alias =
            cpu_.op.schema().arguments()[argument].alias_info();
        return alias != nullptr && alias->isWrite();
    }

    // Whether the operator has a use for what an argument held.
    bool is_read(size_t argument) const
    {
        return !is_written(argument) ||
               !(overwrites_ || cpu_.op.schema().arguments()[argument].is_out());
    }

    bool are_small(const Stack &arguments, const Stack &outputs) const
    {
        size_t count = 0;
        for (const IValue &output : outputs)
            if (!is_small(output, false, count))
                return false;
        for (size_t i = 0; i < arguments.size(); i++)
            if (!is_small(arguments[i], is_read(i), count))
                return false;
        return true;
    }

    void note_writes(const Stack &arguments, const Stack &outputs, bool is_whole) const
    {
        const auto note = [&](const IValue &value) {
            for (const Tensor &tensor : tensors(value))
                if (tensor.defined() && is_plain(tensor) && is_large_float(tensor))
                    wholes.note(tensor, is_whole);
        };
        for (size_t i = 0; i < arguments.size(); i++)
            if (is_written(i))
                note(arguments[i]);
        for (const IValue &output : outputs)
            note(output);
    }

    static Tensor without_memory(const Tensor &like, uint64_t bytes,
                                 c10::IntArrayRef strides)
    {
        c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                             c10::DataPtr(nullptr, c10::kCPU), nullptr, false);
        Tensor made = at::detail::make_tensor<c10::TensorImpl>(
            std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
            like.dtype());
        made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), strides);
        return made;
    }

    // What lies far apart is gathered: experts look at a column each of a large mask.
    static Mirror mirror_of(const Tensor &tensor, bool is_read, bool is_written)
    {
        const uint64_t span = span_bytes(tensor), own = tensor.nbytes();
        if (is_written || own >= span)
            return {address_of(tensor), span,
                    without_memory(tensor, span, tensor.strides()),
                    is_read || !tensor.is_non_overlapping_and_dense(), is_written};
        Tensor made =
            without_memory(tensor, own, c10::contiguous_strides(tensor.sizes()));
        return {address_of(tensor), own, made, is_read, false, tensor.strides().vec()};
    }

    static void mirror(const IValue &value, bool is_read, bool is_written, Stack &to,
                       std::vector<Mirror> &mirrors)
    {
        if (value.isDevice()) {
            to.emplace_back(c10::Device(c10::kCPU));
            return;
        }
        to.push_back(changed(value, [&](const Tensor &tensor) {
            if (!tensor.defined() || !tensor.is_cuda())
                return alias_tensor(tensor);
            mirrors.push_back(mirror_of(tensor, is_read, is_written));
            return mirrors.back().tensor;
        }));
    }

    // Of `where`, which computes nothing, floats are bits, too.
    bool are_bits(const std::vector<Mirror> &mirrors) const
    {
        return std::all_of(mirrors.begin(), mirrors.end(), [this](const Mirror &each) {
            return each.bytes <= BITS_BYTES &&
                   (moves_ || at::isIntegralType(each.tensor.scalar_type(), true));
        });
    }

    // Whether what is compared is the same for all ordinary floats if it is for two: an
    // equation is if it is with itself, or with infinity.
    bool decides(const Stack &arguments) const
    {
        for (const IValue &value : arguments)
            if (value.isTensor() && is_large_float(value.toTensor()))
                return false;
        if (!matches_)
            return compares_;
        const IValue &other = arguments[1];
        if (!other.isTensor())
            return !other.toScalar().isComplex() &&
                   !std::isfinite(other.toScalar().toDouble());
        return address_of(other.toTensor()) == address_of(arguments[0].toTensor());
    }

    // No token that is not known is one of those that are asked for.
    std::optional<bool> guess(const Stack &arguments) const
    {
        return seeks_ ? std::optional(arguments[3].toBool()) : std::nullopt;
    }

    static bool zeroes(const SmallComputation &work)
    {
        const std::string &name = work.cpu.op.schema().name();
        const bool fills = name == "aten::fill_" && work.arguments[1].isScalar() &&
                           work.arguments[1].toScalar().equal(0);
        return (fills || name == "aten::zero_") && work.mirrors.size() == 1 &&
               !work.mirrors[0].is_read;
    }

    // Those that a call chooses from, if all that it writes can be given or forgotten.
    Options options_of(const Stack &arguments, const Stack &outputs) const
    {
        if (!chooses_ || outputs.empty() || !arguments[0].toTensor().is_cuda())
            return {};
        const Tensor &from = arguments[0].toTensor();
        const auto dim = cpu_.op.schema().argumentIndexWithName("dim");
        if (!dim || !arguments[*dim].isInt() || from.dim() == 0)
            return {};
        for (const IValue &output : outputs)
            if (!is_plain(output.toTensor()))
                return {};
        const int64_t along = c10::maybe_wrap_dim(arguments[*dim].toInt(), from.dim());
        const bool are_many = from.size(along) > OPTIONS_MAX;
        if ((are_many && !chooses_several_) || !is_small(outputs.back().toTensor()))
            return {};
        return {along, from.size(along), are_many};
    }

    // Notes what picks from the first argument how much it may pick from. Nothing
    // is noted of a mask beside indices.
    static void note_ranges(const Stack &arguments, const Stack &outputs,
                            std::vector<Mirror> &mirrors)
    {
        const Tensor &from = arguments[0].toTensor();
        Mirror *next = mirrors.data() + 1; // the first is that of `from`
        if (!from.is_cuda() || from.dim() == 0)
            return;
        if (arguments[1].isInt()) {
            const int64_t along = c10::maybe_wrap_dim(arguments[1].toInt(), from.dim());
            note_range(arguments[2].toTensor(), from.size(along), next);
            return;
        }
        bool is_noted = false;
        int64_t along = 0;
        for (const IValue &value : arguments[1].toListRef()) {
            const Tensor index = value.isNone() ? Tensor() : value.toTensor();
            if (index.defined() && index.scalar_type() == at::kBool) {
                next->picks = outputs[0].toTensor().size(along);
                if (!is_noted)
                    note_range(index, index.numel(), next);
                else
                    for (Mirror &each : mirrors)
                        each.range = 0;
                return;
            }
            is_noted |= note_range(index, from.size(along++), next);
        }
    }

    static bool note_range(const Tensor &index, int64_t range, Mirror *&next)
    {
        if (!index.defined() || !index.is_cuda())
            return false;
        (next++)->range = range;
        return true;
    }

  public:
    Small(const OperatorHandle &op, const std::string &name)
        : cpu_{op, equivalent(name)},
          is_computed_(sim_peek != nullptr && !draws(op) &&
                       op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)),
          overwrites_(Names(OVERWRITING).contain(own_name(op))),
          is_asked_(is_computed_ && name != "_local_scalar_dense" &&
                    (returns_no_tensor(op) || Names(SIZED_BY_VALUES).contain(name))),
          chooses_(is_computed_ && Names(CHOOSING).contain(name)),
          chooses_several_(chooses_ && name == "topk"),
          is_bitwise_(Names(BITWISE).contain(own_name(op))),
          picks_(Names(PICKING).contain(name)),
          compares_(Names(COMPARING).contain(own_name(op))),
          matches_(Names(MATCHING).contain(own_name(op))),
          moves_(own_name(op) == "where"), seeks_(name == "isin.Tensor_Tensor")
    {
        for (const c10::Argument &argument : op.schema().arguments())
            is_asked_ = is_asked_ && !argument.is_out();
    }

    // Whether it says what is probable of what is not known.
    bool guesses() const
    {
        return seeks_;
    }

    // Computes a call whose result the host decides by, if all that it reads is known:
    // takes the arguments off the stack and leaves the results, as the GPU's kernel.
    bool answers(Stack &stack, size_t argument_count) const
    {
        if (!is_asked_ || is_capturing())
            return false;
        auto count = static_cast<std::ptrdiff_t>(argument_count);
        const Stack arguments(stack.end() - count, stack.end());
        auto work = computation(arguments, {});
        if (work == nullptr || work->mirrors.empty())
            return false;
        c10::Device device = device_of(arguments);
        c10::cuda::CUDAGuard guard(device);
        c10::cuda::getCurrentCUDAStream().synchronize();
        const std::optional<Stack> computed = work->results(sim_look);
        if (!computed)
            return false;
        stack.resize(stack.size() - argument_count);
        for (const IValue &value : *computed)
            stack.push_back(changed(
                value, [&](const Tensor &tensor) { return tensor.to(device); }));
        return true;
    }

    // That of one call; nullptr: there is none, as not all is small.
    std::unique_ptr<SmallComputation> computation(const Stack &arguments,
                                                  const Stack &outputs) const
    {
        const bool is_whole = is_computed_ && are_small(arguments, outputs);
        note_writes(arguments, outputs, is_whole);
        const Options options = options_of(arguments, outputs);
        if (!is_whole && options.count == 0)
            return nullptr;
        auto made = std::make_unique<SmallComputation>(SmallComputation{cpu_});
        made->options = options;
        if (options.count > 0)
            made->keeps_dim =
                outputs.back().toTensor().dim() == arguments[0].toTensor().dim();
        if (!is_whole) {
            for (const IValue &output : outputs)
                mirror(output, false, true, made->outputs, made->mirrors);
            return made;
        }
        for (size_t i = 0; i < arguments.size(); i++) {
            mirror(arguments[i], is_read(i), is_written(i), made->arguments,
                   made->mirrors);
        }
        for (size_t i = 0; i < outputs.size(); i++)
            if (cpu_.op.schema().returns()[i].alias_info() == nullptr)
                mirror(outputs[i], false, true, made->outputs, made->mirrors);
            else
                made->outputs.emplace_back();
        made->is_bitwise = is_bitwise_ && are_bits(made->mirrors);
        made->compares = (compares_ || matches_) && decides(arguments);
        made->guess = guess(arguments);
        if (picks_)
            note_ranges(arguments, outputs, made->mirrors);
        return made;
    }

    // Gives the current stream the computation, behind the kernels of the operator.
    void follow(const std::string &name, std::unique_ptr<SmallComputation> work) const
    {
        oomph_sim_compute_t what = {name.c_str(),
                                    /*ranges=*/nullptr,
                                    /*range_count=*/0,
                                    zeroes(*work) ? &SmallComputation::run_zeros
                                                  : &SmallComputation::run,
                                    &SmallComputation::release,
                                    work.release(),
                                    /*makes_calls=*/0,
                                    /*is_waited_for=*/0,
                                    /*meeting=*/nullptr,
                                    /*cost_ns=*/0};
        check_taken(called(name),
                    sim_compute(&what, c10::cuda::getCurrentCUDAStream().stream()));
    }
};

} // namespace oomph_values
