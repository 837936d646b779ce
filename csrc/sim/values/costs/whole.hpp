// whole.hpp - which larger floats may be whole numbers that are known. Routers of
// experts count in floats, too: masks of zeros and ones, numbers of experts that were
// converted. Such tensors are kept as integers are. Few operators give them: those that
// fill or convert, and those that read nothing else; only these are computed. What is
// noted here is a guess of where they lie; what is known the driver knows.
#pragma once
#include "values/alias.hpp"

#include <mutex>
#include <unordered_set>

namespace oomph_values
{

inline constexpr uint64_t WHOLE_BYTES = 16 << 20; // of a tensor

class Wholes
{
    std::mutex mutex_; // forward and backward run on threads of their own
    std::unordered_set<const void *> storages_;

    static const void *key(const Tensor &tensor)
    {
        return tensor.storage().unsafeGetStorageImpl()->data();
    }

  public:
    bool contain(const Tensor &tensor)
    {
        const std::lock_guard held(mutex_);
        return !storages_.empty() && storages_.count(key(tensor)) > 0;
    }

    // A tensor was written to, of whole numbers perhaps.
    void note(const Tensor &tensor, bool may_be_whole)
    {
        const std::lock_guard held(mutex_);
        if (may_be_whole)
            storages_.insert(key(tensor));
        else if (!storages_.empty())
            storages_.erase(key(tensor));
    }
};

inline Wholes wholes;

} // namespace oomph_values
