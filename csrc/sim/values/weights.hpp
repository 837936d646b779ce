// weights.hpp - weights in the host's memory whose bytes nobody writes.
//
// What memory a program takes of the GPU does not depend on the values of its model. So
// an operator of the CPU that fills, changes or copies a large weight as a whole can be
// left out: its pages are never touched, and the system gives them no memory. Whoever
// reads them finds zeros; random numbers that follow are those that would have
// followed.
#pragma once
#include "arguments.hpp"
#include "operators.hpp"
#include "skip.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace oomph_values
{

constexpr size_t LARGE_BYTES = 1 << 20;
constexpr uint64_t NORMAL_BLOCK = 16; // numbers; the last of an uneven count come again

inline std::atomic<uint64_t> unwritten_bytes{0};

// The storages of weights.
class Weights
{
    std::mutex mutex_; // guards:
    // A weak reference keeps the address from being another's.
    std::unordered_map<c10::StorageImpl *, c10::weak_intrusive_ptr<c10::StorageImpl>>
        storages_;
    size_t kept_count_ = 1024; // until those that are gone are dropped

  public:
    void add(const c10::Storage &storage)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        storages_.try_emplace(storage.unsafeGetStorageImpl(),
                              storage.getWeakStorageImpl());
        if (storages_.size() <= kept_count_)
            return;
        for (auto each = storages_.begin(); each != storages_.end();)
            each = each->second.expired() ? storages_.erase(each) : std::next(each);
        kept_count_ = std::max(kept_count_, 2 * storages_.size());
    }

    bool contain(const c10::Storage &storage)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        return storages_.count(storage.unsafeGetStorageImpl()) > 0;
    }
};

inline Weights &weights()
{
    static auto *all = new Weights; // threads may call while the process ends
    return *all;
}

// Whether the tensor has all of a large storage to itself.
inline bool is_large(const Tensor &tensor)
{
    return tensor.defined() && tensor.has_storage() && tensor.nbytes() >= LARGE_BYTES &&
           tensor.nbytes() == tensor.storage().nbytes();
}

inline bool is_weight(const Tensor &tensor)
{
    return is_large(tensor) && weights().contain(tensor.storage());
}

// Whether the operator changes the values of its first argument, and nothing else.
inline bool changes_one(const OperatorHandle &op)
{
    const auto &arguments = op.schema().arguments();
    const std::string name = own_name(op);
    const bool is_known = !draws(op) || name == "uniform_" || name == "normal_";

    for (size_t i = 0; i < arguments.size(); i++) {
        const auto *alias = arguments[i].alias_info();
        if ((alias != nullptr && alias->isWrite()) != (i == 0))
            return false;
    }
    return !arguments.empty() && name.back() == '_' && is_known &&
           arguments[0].type()->kind() == c10::TypeKind::TensorType;
}

// An operator of the CPU, which is left out where it would write a weight.
class Unwritten final : public c10::OperatorKernel
{
    c10::SafeKernelFunction native_;
    std::string name_;

  public:
    explicit Unwritten(const OperatorHandle &op)
        : native_(op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU)),
          name_(own_name(op))
    {
    }

    void operator()(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack)
    {
        const size_t count = op.schema().arguments().size();
        const auto arguments = torch::jit::last(*stack, count);
        const Tensor self = arguments[0].toTensor();
        if (!is_large(self) || !is_needless(self, arguments.slice(1))) {
            native_.callBoxed(op, keys, stack);
            return;
        }
        weights().add(self.storage());
        unwritten_bytes += self.nbytes();
        torch::jit::drop(*stack, count);
        stack->emplace_back(self);
    }

  private:
    bool is_needless(const Tensor &self, c10::ArrayRef<c10::IValue> others) const
    {
        if (name_ == "copy_") {
            const Tensor &source = others[0].toTensor();
            return source.numel() == self.numel() &&
                   (is_weight(self) || is_weight(source));
        }
        if (!is_weight(self))
            return false;
        if (name_ == "uniform_" || name_ == "normal_")
            return pass_by(self, others.back());
        for (const c10::IValue &other : others)
            for (const Tensor &tensor : tensors(other))
                if (tensor.defined() && tensor.dim() > 0 && !is_weight(tensor))
                    return false;
        return true;
    }

    // False if it is not known which numbers of the generator are drawn.
    bool pass_by(const Tensor &self, const c10::IValue &generator) const
    {
        const auto type = self.scalar_type();
        const bool takes_32_bits = type == at::kFloat || type == at::kBFloat16 ||
                                   type == at::kHalf; // for each number
        if (!generator.isNone() || !takes_32_bits || !self.is_contiguous())
            return false;
        const auto numbers = static_cast<uint64_t>(self.numel());
        const bool is_uneven = name_ == "normal_" && numbers % NORMAL_BLOCK != 0;
        skip_draws(numbers + (is_uneven ? NORMAL_BLOCK : 0));
        return true;
    }
};

} // namespace oomph_values
