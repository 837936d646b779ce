// ipc.hpp - blocks that processes share: PyTorch's handles are the core's
// tickets.
#pragma once
#include "torch/base/core.hpp"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace oomph_torch
{

inline native::ShareableHandle share(void *block)
{
    oomph_ticket_t ticket = {};
    size_t offset = 0;

    check(core->export_block(address(block), &ticket, &offset));
    std::unique_ptr<void, decltype(&std::free)> owned(ticket.data, &std::free);
    return {static_cast<ptrdiff_t>(offset),
            std::string(static_cast<const char *>(ticket.data), ticket.bytes)};
}

// What is open of other processes' blocks: each once, as long as anybody uses it.
class Imports
{
    using Key = std::pair<int, std::string>;

    std::mutex mutex_;
    std::map<Key, std::weak_ptr<void>> open_;

    void close(const Key &key, oomph_addr_t addr)
    {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            auto found = open_.find(key);
            if (found != open_.end() && found->second.expired())
                open_.erase(found); // or else it has been opened again meanwhile
        }
        if (core->unimport_block(key.first, addr) != OOMPH_OK) {
            TORCH_WARN("oomph: ", core->error_detail());
        }
    }

  public:
    std::shared_ptr<void> open(int device, const std::string &handle)
    {
        const Key key(device, handle);
        // The core only reads what the ticket holds.
        const oomph_ticket_t ticket = {const_cast<char *>(handle.data()),
                                       handle.size()};
        std::lock_guard<std::mutex> guard(mutex_);
        auto known = open_.find(key);
        if (known != open_.end())
            if (std::shared_ptr<void> found = known->second.lock())
                return found;
        oomph_addr_t addr = 0;
        check(core->import_block(device, &ticket, &addr));
        std::shared_ptr<void> made(
            pointer(addr), [this, key](void *base) { close(key, address(base)); });
        open_[key] = made;
        return made;
    }
};

} // namespace oomph_torch
