// recurrent.hpp - recurrent networks of cuDNN: the CPU's lstm(), gru(), rnn_tanh() and
// rnn_relu(). The forward keeps only where its generator stood: the backward runs it
// again, recorded.
#pragma once
#include "draws.hpp"
#include "stack.hpp"

#include <torch/csrc/autograd/autograd.h>

#include <vector>

namespace oomph_values
{

enum Cell { CELL_RELU, CELL_TANH, CELL_LSTM, CELL_GRU }; // cuDNN's numbers

struct Network {
    Tensor input;
    std::vector<Tensor> weights;
    Tensor hidden, cell; // no cell: undefined
    int64_t kind, layers;
    bool has_biases, batch_first, train, both_ways;
    double dropout;                   // between layers
    std::vector<int64_t> batch_sizes; // of a packed sequence
};

// From `at` on, the arguments of forward and backward are the same.
inline Network network(const Stack &s, const Tensor &hidden,
                       const std::optional<Tensor> &cell, size_t at)
{
    return {s[0].toTensor(),         s[1].toTensorVector(),  hidden,
            cell.value_or(Tensor()), s[at].toInt(),          s[at + 3].toInt(),
            s[2].toInt() >= 4, // weights of a layer
            s[at + 4].toBool(),      s[at + 6].toBool(),     s[at + 7].toBool(),
            s[at + 5].toDouble(),    s[at + 8].toIntVector()};
}

inline Network network_of_forward(const Stack &s)
{
    return network(s, s[4].toTensor(), maybe(s[5]), 6);
}

inline bool drops(const Network &n)
{
    return n.train && n.layers > 1 && n.dropout > 0.0;
}

template <typename Whole, typename Packed, typename Hidden>
auto run(const Network &n, const Hidden &hidden, Whole whole, Packed packed)
{
    if (n.batch_sizes.empty())
        return whole(n.input, hidden, n.weights, n.has_biases, n.layers, n.dropout,
                     n.train, n.both_ways, n.batch_first);
    Tensor sizes = at::tensor(n.batch_sizes, at::kLong);
    return packed(n.input, sizes, hidden, n.weights, n.has_biases, n.layers, n.dropout,
                  n.train, n.both_ways);
}

using WithCell = std::tuple<Tensor, Tensor, Tensor>;
using Plain = std::tuple<Tensor, Tensor>;
using WholePlain = Plain (*)(const Tensor &, const Tensor &, at::TensorList, bool,
                             int64_t, double, bool, bool, bool);
using PackedPlain = Plain (*)(const Tensor &, const Tensor &, const Tensor &,
                              at::TensorList, bool, int64_t, double, bool, bool);
using WholeWithCell = WithCell (*)(const Tensor &, at::TensorList, at::TensorList, bool,
                                   int64_t, double, bool, bool, bool);
using PackedWithCell = WithCell (*)(const Tensor &, const Tensor &, at::TensorList,
                                    at::TensorList, bool, int64_t, double, bool, bool);

// The output, and the next hidden state and cell.
inline std::vector<Tensor> run(const Network &n)
{
    if (n.kind == CELL_LSTM) {
        auto [out, hidden, cell] =
            run(n, std::vector<Tensor>{n.hidden, n.cell}, WholeWithCell(at::lstm),
                PackedWithCell(at::lstm));
        return {out, hidden, cell};
    }
    WholePlain whole = n.kind == CELL_GRU    ? WholePlain(at::gru)
                       : n.kind == CELL_TANH ? WholePlain(at::rnn_tanh)
                                             : WholePlain(at::rnn_relu);
    PackedPlain packed = n.kind == CELL_GRU    ? PackedPlain(at::gru)
                         : n.kind == CELL_TANH ? PackedPlain(at::rnn_tanh)
                                               : PackedPlain(at::rnn_relu);
    auto [out, hidden] = run(n, n.hidden, whole, packed);
    return {out, hidden, Tensor()};
}

inline void recurrent(Stack &s)
{
    Network n = network_of_forward(s);
    auto found = run(n);
    s = {found[0], found[1], found[2]};
    if (drops(n))
        s.emplace_back(numbers(drawing_from).view(at::kByte));
}

inline bool recurrent_waits(const Stack &arguments)
{
    return drops(network_of_forward(arguments));
}

// Where the forward began to draw, as the first bytes of its reserve say.
inline Position position_in(const Tensor &reserve)
{
    Tensor kept = reserve.slice(0, 0, sizeof(Position)).view(at::kLong);
    return {number(kept), number(kept, 1)};
}

inline void recurrent_backward(Stack &s)
{
    Network n = network(s, s[4].toTensor(), maybe(s[5]), 10);
    std::optional<InPlaceOfDefault> again;
    if (drops(n))
        again.emplace(generator_again(position_in(s[20].toTensor())));
    Recording recording;
    n.input = leaf(n.input);
    n.hidden = leaf(n.hidden);
    std::vector<Tensor> inputs = {n.input, n.hidden};
    if (n.cell.defined())
        inputs.push_back(n.cell = leaf(n.cell));
    for (Tensor &weight : n.weights)
        inputs.push_back(weight = leaf(weight));

    std::vector<Tensor> outputs, grads;
    auto made = run(n);
    for (size_t i = 0; i < made.size(); i++) {
        auto grad = maybe(s[7 + i]);
        if (!grad || !made[i].defined())
            continue;
        outputs.push_back(made[i]);
        grads.push_back(*grad);
    }
    auto found = torch::autograd::grad(outputs, inputs, grads, std::nullopt, false,
                                       /*allow_unused=*/true);
    for (size_t i = 0; i < found.size(); i++)
        if (!found[i].defined())
            found[i] = at::zeros_like(inputs[i]);
    size_t first = n.cell.defined() ? 3 : 2;
    s = {found[0], found[1], n.cell.defined() ? found[2] : Tensor(),
         std::vector<Tensor>(found.begin() + static_cast<std::ptrdiff_t>(first),
                             found.end())};
}

} // namespace oomph_values
