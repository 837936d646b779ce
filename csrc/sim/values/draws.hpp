// draws.hpp - random numbers: a generator of the GPU has a seed and an offset, and
// these determine what is drawn.
//
// What is drawn is what a CPU generator with the same seed draws, one operator after
// the other, so that a script which seeds both draws the same on either device. The
// state of the CPU generator is kept for each offset that was reached; going back to
// one, as checkpointing does, draws the same again. An offset is moved by a digest of
// the state that it stands for, so that two generators with one seed never share an
// offset unless they drew the same.
#pragma once
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace oomph_values
{

// Where a generator of the GPU stands.
struct Position {
    uint64_t seed, offset;
};

constexpr size_t KEPT_MAX = 4096; // states, 5 KB each

using Key = std::pair<uint64_t, uint64_t>;

struct Kept {
    std::mutex mutex;
    std::map<Key, at::Tensor> states;
    std::deque<Key> order;        // oldest first
    std::set<uint64_t> forgotten; // seeds of states that are kept no longer
};

inline Kept &kept()
{
    static auto *states = new Kept; // threads may draw while the process ends
    return *states;
}

// For an offset that was never reached: a seed of its own.
inline uint64_t mixed(const Position &from)
{
    uint64_t value = from.seed + 0x9e3779b97f4a7c15ull * (from.offset + 1);

    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

// A generator given as an argument, or the device's default one.
inline at::Generator of_device(const std::optional<at::Generator> &generator,
                               c10::Device device)
{
    return generator.has_value() && generator->defined()
               ? *generator
               : at::globalContext().defaultGenerator(device);
}

inline Position position(const std::optional<at::Generator> &generator,
                         c10::Device device)
{
    at::Generator of_gpu = of_device(generator, device);
    std::lock_guard<std::mutex> guard(of_gpu.mutex());

    return {of_gpu.current_seed(), of_gpu.get_offset()};
}

// The state that was kept for it, or an undefined tensor.
inline at::Tensor state_at(const Position &position)
{
    std::lock_guard<std::mutex> guard(kept().mutex);
    auto found = kept().states.find({position.seed, position.offset});

    return found == kept().states.end() ? at::Tensor() : found->second;
}

[[noreturn]] inline void throw_forgotten()
{
    TORCH_CHECK(false, "what was drawn cannot be drawn again: more than ", KEPT_MAX,
                " draws were made since");
}

// Whether a state of a generator with this seed was kept once.
inline bool has_forgotten(uint64_t seed)
{
    std::lock_guard<std::mutex> guard(kept().mutex);
    return kept().forgotten.count(seed) != 0;
}

// A CPU generator for what is drawn from there. Fails if its state may have been
// forgotten: that other numbers come would go unnoticed.
inline at::Generator generator_at(const Position &from)
{
    at::Generator made = at::detail::createCPUGenerator(from.seed);
    at::Tensor state = state_at(from);

    if (state.defined())
        made.set_state(state);
    else if (from.offset != 0 && has_forgotten(from.seed))
        throw_forgotten();
    else if (from.offset != 0)
        made.set_current_seed(mixed(from));
    return made;
}

// The same, for what was drawn from there before.
inline at::Generator generator_again(const Position &from)
{
    if (from.offset != 0 && !state_at(from).defined())
        throw_forgotten();
    return generator_at(from);
}

// Remembers the state of a CPU generator for whoever draws from `position` again.
inline void remember(const Position &position, at::Tensor state)
{
    Key key{position.seed, position.offset};
    std::lock_guard<std::mutex> guard(kept().mutex);

    if (kept().states.insert_or_assign(key, std::move(state)).second)
        kept().order.push_back(key);
    if (kept().order.size() > KEPT_MAX) {
        kept().forgotten.insert(kept().order.front().first);
        kept().states.erase(kept().order.front());
        kept().order.pop_front();
    }
}

// 32 bits of FNV-1a.
inline uint64_t digest(const at::Tensor &state)
{
    uint32_t value = 2166136261u;
    const auto *bytes = state.const_data_ptr<uint8_t>();

    for (int64_t i = 0; i < state.numel(); i++)
        value = (value ^ bytes[i]) * 16777619u;
    return value;
}

// The GPU's generator moves on from `from`, as the CPU's has drawn.
inline void move_on(const std::optional<at::Generator> &generator, c10::Device device,
                    const Position &from, const at::Tensor &before,
                    const at::Tensor &state)
{
    at::Generator of_gpu = of_device(generator, device);
    Position next = from;

    remember(from, before);
    if (!at::equal(before, state)) {
        next.offset += 4 * (1 + digest(state)); // Philox counts in fours
        remember(next, state);
    }
    std::lock_guard<std::mutex> guard(of_gpu.mutex());
    // Not set_offset(), after which recurrent networks seed their dropout again.
    at::check_generator<at::CUDAGeneratorImpl>(of_gpu)->set_philox_offset_per_thread(
        next.offset);
}

// Where the operator that this thread computes draws from.
inline thread_local Position drawing_from;

/* ---- Positions in tensors, as a forward leaves them to its backward */

inline at::Tensor number(uint64_t value)
{
    return at::scalar_tensor(static_cast<int64_t>(value), at::kLong);
}

inline uint64_t number(const at::Tensor &tensor, int64_t index = 0)
{
    return static_cast<uint64_t>(tensor.to(at::kLong).flatten()[index].item<int64_t>());
}

inline at::Tensor numbers(const Position &position)
{
    return at::stack({number(position.seed), number(position.offset)});
}

// While it lives, the default generator of the CPU stands where another does; after
// that, the other has drawn what was drawn meanwhile.
class InPlaceOfDefault
{
    at::Generator generator_;
    at::Tensor kept_; // the default one's state

  public:
    explicit InPlaceOfDefault(at::Generator generator)
        : generator_(std::move(generator))
    {
        at::Generator of_cpu = at::detail::getDefaultCPUGenerator();
        std::lock_guard<std::mutex> guard(of_cpu.mutex());

        kept_ = of_cpu.get_state();
        of_cpu.set_state(generator_.get_state());
    }

    ~InPlaceOfDefault()
    {
        at::Generator of_cpu = at::detail::getDefaultCPUGenerator();
        std::lock_guard<std::mutex> guard(of_cpu.mutex());

        generator_.set_state(of_cpu.get_state());
        of_cpu.set_state(kept_);
    }

    InPlaceOfDefault(const InPlaceOfDefault &) = delete;
    InPlaceOfDefault &operator=(const InPlaceOfDefault &) = delete;
};

/* ---- Draws that a graph captured */

// Where a replay draws from, and where the next operator of the graph does: PyTorch
// writes the seed and the offset of a replay to memory of the GPU.
struct Captured {
    const int64_t *seed, *offset;
    uint64_t begin, end; // beyond the offset

    Position from() const
    {
        return at_offset(begin);
    }
    Position to() const
    {
        return at_offset(end);
    }

  private:
    Position at_offset(uint64_t within) const
    {
        return {static_cast<uint64_t>(*seed), static_cast<uint64_t>(*offset) + within};
    }
};

// Moves the captured generator on by `count`. Returns where it stood.
inline at::PhiloxCudaState step(at::Generator of_gpu, uint64_t count)
{
    std::lock_guard<std::mutex> guard(of_gpu.mutex());
    return at::check_generator<at::CUDAGeneratorImpl>(of_gpu)->philox_cuda_state(count);
}

} // namespace oomph_values
