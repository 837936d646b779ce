/* slab.h - objects of one kind at addresses that stay valid: a destroyed object can
 * still be looked at, which is how the use of a stale handle is noticed. The caller
 * holds the driver's lock.
 *
 * Chunks of 256 objects that never move, and a list of the free ones: O(1) to take, to
 * give and to find by index. Memory is never returned to the host.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The first member of everything kept in a slab.
typedef struct sim_object {
    uint32_t index;      // its place in the slab
    uint32_t generation; // odd while in use; grows with every take and give
    struct sim_object *next_free;
} sim_object_t;

typedef struct sim_slab {
    size_t object_bytes;
    uint32_t count; // objects that exist, in use or free
    uint32_t live_count;
    uint32_t chunk_capacity;
    char **chunks;
    sim_object_t *free; // the one given back last comes first
} sim_slab_t;

// Returns an object, zero when new and as it was left when used before; NULL when the
// host has no memory.
void *sim_slab_take(sim_slab_t *slab);
void sim_slab_give(sim_slab_t *slab, sim_object_t *object);

// The object at `index`, in use or not; NULL past the end.
void *sim_slab_at(const sim_slab_t *slab, uint32_t index);

// The first object in use from `*index` on, which moves behind it; NULL: no more.
void *sim_slab_next(const sim_slab_t *slab, uint32_t *index);

// Gives back all objects that are in use.
void sim_slab_give_all(sim_slab_t *slab);

static inline bool sim_is_live(const sim_object_t *object)
{
    return object->generation & 1;
}
