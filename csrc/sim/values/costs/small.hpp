// small.hpp - small tensors keep their values where memory is not real, and integers do
// in larger ones, too. Programs send sizes, ranks and counts through a GPU and decide
// by them. So an operator on such tensors alone is followed by a computation: if all
// that it reads is known, its CPU kernel gives what it writes. Else what it writes is
// not known, as that of any other; but which of some options is the best, as a router
// of experts asks, is told: each of them equally often.
#pragma once
#include "values/arguments.hpp"
#include "values/computation.hpp"
#include "values/costs/uses.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace oomph_values
{

// Of the simulated driver; nullptr where memory is real.
inline decltype(&oomph_sim_peek_view) sim_peek;
inline decltype(&oomph_sim_look_view) sim_look;
inline decltype(&oomph_sim_poke) sim_poke;
inline decltype(&oomph_sim_poke_zeros) sim_poke_zeros;

inline constexpr uint64_t SMALL_BYTES = 4096;
inline constexpr uint64_t INTEGERS_BYTES = 64 << 20; // as the driver keeps
inline constexpr size_t SMALL_COUNT = 16;            // tensors of an operator
inline constexpr int64_t OPTIONS_MAX = 1024; // more are those of a vocabulary, say

// Operators that name which of the options along a dimension is the best.
inline constexpr std::string_view CHOOSING[] = {"argmax", "argmin", "max.dim",
                                                "min.dim", "topk"};

// A tensor of the host in the place of one of the GPU. It has memory only while it is
// computed on: much later than the call, and perhaps often.
struct Mirror {
    uint64_t addr, bytes;
    Tensor tensor;
    bool is_read, is_written;
    std::vector<int64_t> strides = {}; // on the GPU; none: all bytes are as there

    bool look_up(decltype(sim_peek) look) const
    {
        const auto count = static_cast<int64_t>(bytes);
        const int64_t one = 1;
        oomph_sim_view_t view = {addr, 1, 1, &count, &one};
        if (!strides.empty())
            view = {addr, tensor.itemsize(), strides.size(), tensor.sizes().data(),
                    strides.data()};
        return look(&view, tensor.mutable_data_ptr()) != 0;
    }

    // Not by PyTorch's allocator: what the C library aligns it seldom finds room for
    // where the same has been before.
    bool allocate() const
    {
        void *data = std::malloc(bytes);
        tensor.storage().set_data_ptr_noswap(
            c10::DataPtr(data, data, &std::free, c10::kCPU));
        return data != nullptr;
    }

    void release() const
    {
        tensor.storage().set_data_ptr_noswap(c10::DataPtr(nullptr, c10::kCPU));
    }
};

// What an operator chooses from.
struct Options {
    int64_t dim, count = 0; // 0: it chooses nothing

    // Tells a tensor that each is the best equally often.
    void tell(const Tensor &chosen, bool has_dim) const
    {
        Tensor rows = has_dim ? chosen.movedim(dim, -1) : chosen;
        rows.copy_(at::arange(rows.numel(), chosen.options())
                       .remainder(count)
                       .view(rows.sizes()));
    }
};

// One call of an operator, on tensors of the host.
struct SmallComputation {
    const Cpu &cpu;
    std::vector<Mirror> mirrors = {};
    Stack arguments = {}, outputs = {}; // no arguments: they are not small
    Options options = {};
    bool keeps_dim = false; // its results have the dimension of the options

    // Whether all that is read is known, and lies in the mirrors now.
    bool is_loaded(decltype(sim_peek) look) const
    {
        const auto loads = [&](const Mirror &each) {
            return !each.is_read || (each.allocate() && each.look_up(look));
        };
        const auto is_ready = [](const Mirror &each) {
            return each.is_read || each.allocate();
        };
        return std::all_of(mirrors.begin(), mirrors.end(), loads) &&
               std::all_of(mirrors.begin(), mirrors.end(), is_ready);
    }

    // What the CPU's kernel gives; nothing if it refuses, or not all that it reads is
    // known.
    std::optional<Stack> results(decltype(sim_peek) look) const
    {
        if (arguments.empty() || !is_loaded(look))
            return std::nullopt;
        OnlyKernels only;
        at::DisableRecordFunctionGuard unseen;
        Stack stack = arguments;
        try {
            cpu.call(stack);
        } catch (const std::exception &) {
            return std::nullopt;
        }
        return stack;
    }

    bool is_put(const Stack &computed) const
    {
        OnlyKernels only;
        at::DisableRecordFunctionGuard unseen;
        try {
            for (size_t i = 0; i < computed.size(); i++)
                if (cpu.op.schema().returns()[i].alias_info() == nullptr)
                    put(outputs[i], computed[i]);
        } catch (const std::exception &) { // of another size
            return false;
        }
        return true;
    }

    // Whether what a mirror is to hold has been told, though it is not known.
    bool is_told(const Mirror &each) const
    {
        if (options.count == 0 || each.tensor.scalar_type() != at::kLong ||
            !each.allocate())
            return false;
        OnlyKernels only;
        at::DisableRecordFunctionGuard unseen;
        options.tell(each.tensor, keeps_dim);
        return true;
    }

    // Zeros take neither time nor memory: tuners write them often, and many.
    static int run_zeros(void *argument)
    {
        const auto *self = static_cast<SmallComputation *>(argument);
        for (const Mirror &each : self->mirrors)
            sim_poke_zeros(each.addr, each.bytes);
        return 0;
    }

    static int run(void *argument)
    {
        const auto *self = static_cast<SmallComputation *>(argument);
        const std::optional<Stack> computed = self->results(sim_peek);
        const bool is_known = computed && self->is_put(*computed);
        for (const Mirror &each : self->mirrors) {
            const bool has_value = each.is_written && (is_known || self->is_told(each));
            if (each.is_written)
                sim_poke(each.addr, has_value ? each.tensor.const_data_ptr() : nullptr,
                         each.bytes);
            each.release();
        }
        return 0;
    }

    static void release(void *argument)
    {
        delete static_cast<SmallComputation *>(argument);
    }
};

class Small
{
    Cpu cpu_;
    bool is_computed_, overwrites_, is_asked_, chooses_;

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

    static bool are_small(const Stack &values, size_t &count)
    {
        for (const IValue &value : values) {
            if (value.isList() && value.toListRef().size() > SMALL_COUNT)
                return false;
            for (const Tensor &tensor : tensors(value))
                if (tensor.defined() && (!is_small(tensor) || ++count > SMALL_COUNT))
                    return false;
        }
        return true;
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

    static bool zeroes(const SmallComputation &work)
    {
        const std::string &name = work.cpu.op.schema().name();
        const bool fills = name == "aten::fill_" && work.arguments[1].isScalar() &&
                           work.arguments[1].toScalar().equal(0);
        return (fills || name == "aten::zero_") && work.mirrors.size() == 1 &&
               !work.mirrors[0].is_read;
    }

    // Those that a call chooses from, if all that it writes can be told or forgotten.
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
        if (from.size(along) > OPTIONS_MAX || !is_small(outputs.back().toTensor()))
            return {};
        return {along, from.size(along)};
    }

  public:
    Small(const OperatorHandle &op, const std::string &name)
        : cpu_{op, equivalent(name)},
          is_computed_(sim_peek != nullptr && !draws(op) &&
                       op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)),
          overwrites_(Names(OVERWRITING).contain(own_name(op))),
          is_asked_(is_computed_ && name != "_local_scalar_dense" &&
                    (returns_no_tensor(op) || Names(SIZED_BY_VALUES).contain(name))),
          chooses_(is_computed_ && Names(CHOOSING).contain(name))
    {
        for (const c10::Argument &argument : op.schema().arguments())
            is_asked_ = is_asked_ && !argument.is_out();
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
        size_t count = 0;
        const bool is_whole =
            is_computed_ && are_small(outputs, count) && are_small(arguments, count);
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
            const c10::Argument &argument = cpu_.op.schema().arguments()[i];
            const c10::AliasInfo *alias = argument.alias_info();
            const bool is_written = alias != nullptr && alias->isWrite();
            const bool is_read = !is_written || !(overwrites_ || argument.is_out());
            mirror(arguments[i], is_read, is_written, made->arguments, made->mirrors);
        }
        for (size_t i = 0; i < outputs.size(); i++)
            if (cpu_.op.schema().returns()[i].alias_info() == nullptr)
                mirror(outputs[i], false, true, made->outputs, made->mirrors);
            else
                made->outputs.emplace_back();
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
