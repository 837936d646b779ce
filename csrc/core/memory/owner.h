/* owner.h - which device an address belongs to, found without a lock.
 *
 * Reserved ranges are aligned to chunks of 1 GiB, so that a table of two levels
 * gives the device of any address. Adopted memory lies anywhere: a short list, looked
 * at only when there is any.
 */
#pragma once
#include "core/base/util.h"

#include <stdatomic.h>

enum {
    OOMPH_CHUNK_SHIFT = 30,
    OOMPH_LEAF_SHIFT = 13,
    OOMPH_ROOT_SHIFT = 14, // 57 bits of address in all
};

typedef struct oomph_owner_leaf {
    _Atomic(int8_t) device[1 << OOMPH_LEAF_SHIFT]; // device + 1, or 0
} oomph_owner_leaf_t;

typedef struct oomph_owner_root {
    _Atomic(oomph_owner_leaf_t *) leaf[1 << OOMPH_ROOT_SHIFT];
} oomph_owner_root_t;

extern oomph_owner_root_t oomph_owners;

// Notes that [addr, addr + bytes), whole chunks, belongs to `device`, or to none (-1).
// False without host memory; -1 never fails where a device was noted.
bool oomph_owner_note(oomph_addr_t addr, size_t bytes, int device);
// Notes that [addr, addr + bytes), anywhere, belongs to `device`. False without host
// memory.
bool oomph_owner_adopt(oomph_addr_t addr, size_t bytes, int device);
// Forgets what was adopted at `addr`.
void oomph_owner_forget(oomph_addr_t addr);
// The device that adopted memory at `addr` belongs to, or -1.
int oomph_owner_of_adopted(oomph_addr_t addr);

// The device that `addr` belongs to, or -1.
static inline int oomph_owner(oomph_addr_t addr)
{
    enum { LEAF_MASK = (1 << OOMPH_LEAF_SHIFT) - 1 };
    uint64_t chunk = addr >> OOMPH_CHUNK_SHIFT;
    uint64_t at = chunk >> OOMPH_LEAF_SHIFT;

    if (at >> OOMPH_ROOT_SHIFT == 0) {
        oomph_owner_leaf_t *leaf =
            atomic_load_explicit(&oomph_owners.leaf[at], memory_order_acquire);
        int owner = leaf == NULL
                        ? 0
                        : atomic_load_explicit(&leaf->device[chunk & LEAF_MASK],
                                               memory_order_acquire);
        if (owner != 0)
            return owner - 1;
    }
    return oomph_owner_of_adopted(addr);
}
