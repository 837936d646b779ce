// skip.hpp - random numbers that nobody reads: PyTorch's generator for the CPU goes on
// as if they had been drawn.
//
// It is a Mersenne Twister (Matsumoto and Nishimura, ACM TOMACS 8, 1998): its state is
// 624 words, and the 624 numbers that follow are made of the next state, word by word.
// To pass by them takes the states alone.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>

namespace oomph_values
{

using TwisterState = std::array<uint32_t, at::MERSENNE_STATE_N>;

inline uint32_t twisted(uint32_t upper, uint32_t lower)
{
    const uint32_t bits = (upper & at::UMASK) | (lower & at::LMASK);
    return (bits >> 1) ^ (-(lower & 1) & at::MATRIX_A);
}

// So many words of the next state, which takes each of the place `far`.
template <size_t count> inline void twist_words(uint32_t *words, const uint32_t *far)
{
    for (size_t i = 0; i < count; i++)
        words[i] = far[i] ^ twisted(words[i], words[i + 1]);
}

// The loops are as long as a compiler needs them to take eight words at a time.
__attribute__((target_clones("avx2", "default"))) inline void twist(TwisterState &state)
{
    constexpr size_t n = at::MERSENNE_STATE_N, m = at::MERSENNE_STATE_M, lag = n - m;
    constexpr size_t first = lag / 8 * 8, last = (m - 1) / 8 * 8;
    uint32_t *s = state.data();

    twist_words<first>(s, s + m);
    twist_words<lag - first>(s + first, s + first + m);
    static_assert(first < lag && lag < last);
    twist_words<first>(s + lag, s); // what these read was just written
    twist_words<last - first>(s + lag + first, s + first);
    twist_words<m - 1 - last>(s + lag + last, s + last);
    s[n - 1] = s[m - 1] ^ twisted(s[n - 1], s[0]);
}

// Passes by so many numbers of 32 bits of the default generator.
inline void skip_draws(uint64_t count)
{
    auto generator = at::detail::getDefaultCPUGenerator();
    auto *cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
    std::lock_guard<std::mutex> guard(cpu->mutex_);
    at::mt19937 engine = cpu->engine();
    at::mt19937_data_pod data = engine.data();

    while (count > 0) {
        if (data.left_ == 1) { // the next number is the first of another state
            twist(data.state_);
            data.left_ = at::MERSENNE_STATE_N + 1;
            data.next_ = 0;
        }
        const uint64_t taken = std::min(count, uint64_t(data.left_ - 1));
        data.left_ -= int(taken);
        data.next_ += uint32_t(taken);
        count -= taken;
    }
    engine.set_data(data);
    cpu->set_engine(engine);
}

} // namespace oomph_values
