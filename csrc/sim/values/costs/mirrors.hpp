// mirrors.hpp - one call of an operator on the host, on tensors in the places of those
// that lie on a GPU whose memory is not real.
#pragma once
#include "values/computation.hpp"

#include <ATen/record_function.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace oomph_values
{

// Of the simulated driver; nullptr where memory is real.
inline decltype(&oomph_sim_peek_view) sim_peek;
inline decltype(&oomph_sim_look_view) sim_look;
inline decltype(&oomph_sim_poke) sim_poke;
inline decltype(&oomph_sim_poke_zeros) sim_poke_zeros;

inline constexpr uint64_t SMALL_BYTES = 4096; // of floats that are not whole numbers
inline constexpr double ORDINARY = 1e6; // what is not known lies between it and -it

// A tensor of the host in the place of one of the GPU. It has memory only while it is
// computed on: much later than the call, and perhaps often.
struct Mirror {
    uint64_t addr, bytes;
    Tensor tensor;
    bool is_read, is_written;
    std::vector<int64_t> strides = {}; // on the GPU; none: all bytes are as there
    int64_t range = 0, picks = 0;      // from so many, and a mask so many; 0: nothing

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

    // All bits are 0, or all are 1; a float is ORDINARY at most, of either sign.
    void fill(bool bits) const
    {
        if (at::isFloatingType(tensor.scalar_type())) {
            tensor.fill_(bits ? ORDINARY : -ORDINARY);
            return;
        }
        const int whole = tensor.scalar_type() == at::kBool ? 1 : 0xff;
        std::memset(tensor.mutable_data_ptr(), bits ? whole : 0, bytes);
    }

    // Picks from all of its range alike, in order. False: it picks from nothing.
    bool spread() const
    {
        if (range == 0)
            return false;
        const bool is_mask = tensor.scalar_type() == at::kBool;
        const int64_t count = is_mask ? picks : tensor.numel();
        const Tensor places = at::arange(count, tensor.options().dtype(at::kLong))
                                  .mul_(range)
                                  .floor_divide_(count);
        if (is_mask)
            tensor.zero_().view(-1).index_fill_(0, places, true);
        else
            tensor.copy_(places.view(tensor.sizes()));
        return true;
    }

    // Of larger floats only whole numbers.
    bool may_be_kept() const
    {
        return bytes <= SMALL_BYTES || !at::isFloatingType(tensor.scalar_type()) ||
               tensor.equal(tensor.trunc());
    }

    void release() const
    {
        tensor.storage().set_data_ptr_noswap(c10::DataPtr(nullptr, c10::kCPU));
    }
};

// What an operator chooses from.
struct Options {
    int64_t dim, count = 0; // 0: it chooses nothing
    bool are_many = false;

    // Has a tensor say that each is the best equally often. Of many, those that are
    // chosen together lie in the middle of parts of the same size: the first and the
    // last of a vocabulary are no words.
    void spread(const Tensor &chosen, bool has_dim) const
    {
        Tensor rows = has_dim ? chosen.movedim(dim, -1) : chosen;
        const int64_t each = are_many ? rows.size(-1) : rows.numel();
        const Tensor places = at::arange(each, chosen.options());
        if (rows.size(-1) == count && !are_many) // all in an order: each row another
            rows.copy_(places.add(places.floor_divide(count))
                           .remainder(count)
                           .view(rows.sizes()));
        else if (are_many)
            rows.copy_(places.mul(2).add_(1).mul_(count).floor_divide_(2 * each));
        else
            rows.copy_(places.remainder(count).view(rows.sizes()));
    }
};

// One call of an operator, on tensors of the host.
struct SmallComputation {
    const Cpu &cpu;
    std::vector<Mirror> mirrors = {};
    Stack arguments = {}, outputs = {}; // no arguments: they are not small
    Options options = {};
    bool keeps_dim = false;         // its results have the dimension of the options
    bool is_bitwise = false;        // two values of what is not known decide for all
    bool compares = false;          // so they do if it is one tensor of floats
    std::optional<bool> guess = {}; // what it gives for what is not known

    // Whether all that is read is known, but for what picks, and lies in the mirrors
    // now.
    bool is_loaded(decltype(sim_peek) look) const
    {
        const auto loads = [&](const Mirror &each) {
            return !each.is_read ||
                   (each.allocate() && (each.look_up(look) || each.spread()));
        };
        return std::all_of(mirrors.begin(), mirrors.end(), loads) && has_room();
    }

    // The same where these bits stand for each value that is not known.
    bool is_loaded(decltype(sim_peek) look, bool bits) const
    {
        const Mirror *unknown = nullptr;
        for (const Mirror &each : mirrors) {
            if (each.is_read && !each.allocate())
                return false;
            if (!each.is_read || each.look_up(look))
                continue;
            const bool is_other = unknown != nullptr && unknown->addr != each.addr;
            if (compares &&
                (is_other || !at::isFloatingType(each.tensor.scalar_type())))
                return false;
            each.fill(bits);
            unknown = &each;
        }
        return has_room();
    }

    // What the CPU's kernel gives; nothing if it refuses, or not all that it reads is
    // known and decides.
    std::optional<Stack> results(decltype(sim_peek) look) const
    {
        if (arguments.empty())
            return std::nullopt;
        OnlyKernels only;
        at::DisableRecordFunctionGuard unseen;
        if (is_loaded(look))
            return computed();
        return is_bitwise || compares ? certain(look) : std::nullopt;
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

    // Whether a mirror was given what it is to hold, though that is not known.
    bool is_given(const Mirror &each) const
    {
        const bool chooses =
            options.count > 0 && each.tensor.scalar_type() == at::kLong;
        if ((!chooses && !guess) || !each.allocate())
            return false;
        OnlyKernels only;
        at::DisableRecordFunctionGuard unseen;
        if (chooses)
            options.spread(each.tensor, keeps_dim);
        else
            each.tensor.fill_(*guess);
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
            const bool has_value =
                each.is_written && (is_known ? is_kept(each) : self->is_given(each));
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

  private:
    static bool is_kept(const Mirror &each)
    {
        OnlyKernels only;
        at::DisableRecordFunctionGuard unseen;
        return each.may_be_kept();
    }

    bool has_room() const
    {
        return std::all_of(mirrors.begin(), mirrors.end(), [](const Mirror &each) {
            return each.is_read || each.allocate();
        });
    }

    std::optional<Stack> computed() const
    {
        Stack stack = arguments;
        try {
            cpu.call(stack);
        } catch (const std::exception &) {
            return std::nullopt;
        }
        return stack;
    }

    // What it gives whatever the values are that are not known: `unknown & 0`.
    std::optional<Stack> certain(decltype(sim_peek) look) const
    {
        std::optional<Stack> of_zeros, of_ones;
        if (is_loaded(look, false))
            of_zeros = computed();
        if (!of_zeros)
            return std::nullopt;
        for (IValue &value : *of_zeros) // what is in place is written again
            value = value.toTensor().clone();
        if (is_loaded(look, true))
            of_ones = computed();
        for (size_t i = 0; of_ones && i < of_ones->size(); i++)
            if (!(*of_ones)[i].toTensor().equal((*of_zeros)[i].toTensor()))
                return std::nullopt;
        return of_ones;
    }
};

} // namespace oomph_values
