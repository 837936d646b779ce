// packed.hpp - attention of sequences that lie one after the other, as nested tensors
// have them: each is what the CPU would run for it alone.
//
// Nothing of the forward is kept: the backward runs it again.
#pragma once
#include "attention.hpp"

namespace oomph_values
{

// Tensors of tokens, heads and widths, and where sequences begin and end.
struct Packed {
    Tensor query, key, value;
    Tensor query_ends, key_ends; // undefined: they are not packed
    double dropout;
    bool causal;
    std::optional<double> scale;
};

inline Tensor ends(const c10::IValue &value)
{
    return maybe(value).value_or(Tensor());
}

inline void check(const Packed &p, bool is_plain)
{
    TORCH_CHECK_NOT_IMPLEMENTED(
        p.query_ends.defined() && p.key_ends.defined() && is_plain && p.dropout == 0.0,
        "attention of packed sequences has values without dropout, mask, bias and "
        "window alone; leave these out, or simulate shapes alone");
}

// Some tokens of one sequence, as attention takes them: a batch of one, heads first.
inline Tensor sequence(const Tensor &packed, int64_t begin, int64_t end)
{
    return packed.slice(0, begin, end).transpose(0, 1).unsqueeze(0);
}

// Calls with the attention of each sequence that is not empty and where its query and
// its key lie.
template <typename Use> void for_each_sequence(const Packed &p, Use use)
{
    Tensor query_ends = p.query_ends.to(at::kLong), key_ends = p.key_ends.to(at::kLong);
    for (int64_t i = 0; i + 1 < query_ends.numel(); i++) {
        int64_t q[] = {query_ends[i].item<int64_t>(),
                       query_ends[i + 1].item<int64_t>()};
        int64_t k[] = {key_ends[i].item<int64_t>(), key_ends[i + 1].item<int64_t>()};
        if (q[0] == q[1])
            continue;
        TORCH_CHECK_NOT_IMPLEMENTED(!p.causal || q[1] - q[0] == k[1] - k[0],
                                    "causal attention needs as many keys as queries");
        Attention a{sequence(p.query, q[0], q[1]),
                    sequence(p.key, k[0], k[1]),
                    sequence(p.value, k[0], k[1]),
                    std::nullopt,
                    0.0,
                    p.causal,
                    p.scale};
        use(a, q, k);
    }
}

inline Tensor attend(const Packed &p)
{
    Tensor out = at::zeros_like(p.query);
    for_each_sequence(p, [&](const Attention &a, const int64_t *q, const int64_t *) {
        sequence(out, q[0], q[1]).copy_(attend(a).first);
    });
    return out;
}

inline AttentionGradients attend_backward(const Packed &p, const Tensor &grad)
{
    AttentionGradients all{at::zeros_like(p.query), at::zeros_like(p.key),
                           at::zeros_like(p.value), Tensor()};
    for_each_sequence(p, [&](const Attention &a, const int64_t *q, const int64_t *k) {
        auto [out, sums] = attend(a);
        auto found = attend_backward(a, sequence(grad, q[0], q[1]), out, sums, {});
        sequence(all.query, q[0], q[1]).copy_(found.query);
        sequence(all.key, k[0], k[1]).copy_(found.key);
        sequence(all.value, k[0], k[1]).copy_(found.value);
    });
    return all;
}

// NaN in the place of what nobody needs: it shows if somebody does.
inline Tensor not_made()
{
    return at::empty({0}, at::kFloat);
}

/* ---- Flash attention */

inline void packed_flash(Stack &s)
{
    Packed p{s[0].toTensor(), s[1].toTensor(), s[2].toTensor(), ends(s[3]),
             ends(s[4]),      s[7].toDouble(), s[8].toBool(),   maybe_double(s[10])};
    check(p, s[11].isNone() && s[12].isNone() && !maybe(s[13]) && !maybe(s[14]));
    s = {attend(p), not_made()};
}

inline void packed_flash_backward(Stack &s)
{
    Packed p{s[1].toTensor(), s[2].toTensor(),  s[3].toTensor(), ends(s[6]),
             ends(s[7]),      s[10].toDouble(), s[11].toBool(),  maybe_double(s[14])};
    check(p, s[15].isNone() && s[16].isNone());
    auto found = attend_backward(p, s[0].toTensor());
    s = {found.query, found.key, found.value};
}

/* ---- Memory-efficient attention: a batch of one */

inline void packed_efficient(Stack &s)
{
    Packed p{s[0].toTensor().squeeze(0),
             s[1].toTensor().squeeze(0),
             s[2].toTensor().squeeze(0),
             ends(s[4]),
             ends(s[5]),
             s[8].toDouble(),
             s[9].toInt() != 0,
             maybe_double(s[11])};
    check(p, !maybe(s[3]) && !maybe(s[12]) && s[13].isNone());
    s = {attend(p).unsqueeze(0), not_made()};
}

inline void packed_efficient_backward(Stack &s)
{
    Packed p{s[1].toTensor().squeeze(0),
             s[2].toTensor().squeeze(0),
             s[3].toTensor().squeeze(0),
             ends(s[6]),
             ends(s[7]),
             s[11].toDouble(),
             s[14].toInt() != 0,
             maybe_double(s[16])};
    check(p, !maybe(s[4]) && s[18].isNone());
    auto found = attend_backward(p, s[0].toTensor().squeeze(0));
    s = {found.query.unsqueeze(0), found.key.unsqueeze(0), found.value.unsqueeze(0)};
}

} // namespace oomph_values
