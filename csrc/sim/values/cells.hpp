// cells.hpp - one step of an LSTM or a GRU: one kernel on a GPU, several operators on
// the CPU. They run here in the CPU's order and layout, since the last bits depend on
// what lies side by side; so do the gradients that autograd derives from them.
#pragma once
#include "stack.hpp"

#include <vector>

namespace oomph_values
{

inline Tensor with_bias(const Tensor &gates, const std::optional<Tensor> &bias)
{
    return bias ? gates + *bias : gates.clone();
}

inline Tensor sum_of_batch(const Tensor &grad, bool is_wanted)
{
    return is_wanted ? grad.sum({0}) : Tensor();
}

// Leaves the state, the cell, and all gates for the backward.
inline void lstm_cell(Stack &s)
{
    Tensor gates = with_bias(s[1].toTensor(), maybe(s[4]))
                       .add_(with_bias(s[0].toTensor(), maybe(s[3])));
    auto parts = gates.chunk(4, 1);
    Tensor in = parts[0].sigmoid_(), forget = parts[1].sigmoid_();
    Tensor fresh = parts[2].tanh_(), out = parts[3].sigmoid_();
    Tensor cell = (forget * s[2].toTensor()).add_(in * fresh);
    s = {out * cell.tanh(), cell, gates};
}

inline void lstm_cell_backward(Stack &s)
{
    Tensor before = s[2].toTensor(), after = s[3].toTensor().tanh();
    auto gates = s[4].toTensor().chunk(4, 1);
    Tensor of_state = maybe(s[0]).value_or(at::zeros_like(before));
    Tensor of_cell = at::tanh_backward(of_state * gates[3], after);
    if (auto grad = maybe(s[1]))
        of_cell = of_cell + *grad;
    Tensor of_gates = at::cat({at::sigmoid_backward(of_cell * gates[2], gates[0]),
                               at::sigmoid_backward(of_cell * before, gates[1]),
                               at::tanh_backward(of_cell * gates[0], gates[2]),
                               at::sigmoid_backward(of_state * after, gates[3])},
                              1);
    s = {of_gates, of_cell * gates[1], sum_of_batch(of_gates, s[5].toBool())};
}

// Leaves the state, and for the backward the gates, the state before and what the reset
// gate is multiplied with.
inline void gru_cell(Stack &s)
{
    Tensor before = s[2].toTensor();
    auto in = with_bias(s[0].toTensor(), maybe(s[3])).chunk(3, 1);
    auto hidden = with_bias(s[1].toTensor(), maybe(s[4])).chunk(3, 1);
    Tensor reset = hidden[0].add_(in[0]).sigmoid_();
    Tensor update = hidden[1].add_(in[1]).sigmoid_();
    Tensor fresh = in[2].add(hidden[2] * reset).tanh_();
    s = {(before - fresh).mul_(update).add_(fresh),
         at::cat({reset, update, fresh, before, hidden[2]}, 1)};
}

inline void gru_cell_backward(Stack &s)
{
    Tensor grad = s[0].toTensor();
    auto kept = s[1].toTensor().chunk(5, 1);
    Tensor reset = kept[0], update = kept[1], fresh = kept[2].contiguous();
    Tensor of_before = grad * update;
    Tensor of_fresh = at::tanh_backward(grad - of_before, fresh);
    Tensor of_reset = at::sigmoid_backward(of_fresh * kept[4], reset);
    Tensor of_update = at::sigmoid_backward(grad * (kept[3] - fresh), update);
    Tensor of_in = at::cat({of_reset, of_update, of_fresh}, 1);
    Tensor of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
    bool has_bias = s[2].toBool();
    s = {of_in, of_hidden, of_before, sum_of_batch(of_in, has_bias),
         sum_of_batch(of_hidden, has_bias)};
}

} // namespace oomph_values
