/* owner.c - the table by which the device of an address is found. Its leaves are made
 * when first needed, and never freed.
 */
#include "core/memory/owner.h"

#include <pthread.h>
#include <stdlib.h>

typedef oomph_owner_leaf_t leaf_t;

typedef struct adopted {
    struct adopted *next;
    oomph_addr_t addr;
    size_t bytes;
    int device;
} adopted_t;

oomph_owner_root_t oomph_owners;
static pthread_mutex_t adopted_lock = PTHREAD_MUTEX_INITIALIZER;
static adopted_t *adopted; // guarded by adopted_lock
static atomic_int adopted_count;

/* ---- Chunks */

// The leaf of the chunk, made if need be; NULL without host memory.
static leaf_t *leaf_of(uint64_t chunk)
{
    if (chunk >> (OOMPH_LEAF_SHIFT + OOMPH_ROOT_SHIFT) != 0)
        return NULL;

    _Atomic(leaf_t *) *place = &oomph_owners.leaf[chunk >> OOMPH_LEAF_SHIFT];
    leaf_t *leaf = atomic_load_explicit(place, memory_order_acquire);
    if (leaf != NULL)
        return leaf;
    leaf_t *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return NULL;
    if (atomic_compare_exchange_strong(place, &leaf, fresh))
        return fresh;
    free(fresh);
    return leaf;
}

bool oomph_owner_note(oomph_addr_t addr, size_t bytes, int device)
{
    for (oomph_addr_t a = addr; a < addr + bytes; a += OOMPH_CHUNK_BYTES) {
        uint64_t chunk = a >> OOMPH_CHUNK_SHIFT;
        leaf_t *leaf = leaf_of(chunk);
        if (leaf == NULL)
            return false;
        atomic_store_explicit(&leaf->device[chunk & ((1 << OOMPH_LEAF_SHIFT) - 1)],
                              (int8_t)(device + 1), memory_order_release);
    }
    return true;
}

/* ---- Adopted memory */

bool oomph_owner_adopt(oomph_addr_t addr, size_t bytes, int device)
{
    adopted_t *entry = malloc(sizeof *entry);
    if (entry == NULL)
        return false;
    pthread_mutex_lock(&adopted_lock);
    *entry = (adopted_t){adopted, addr, bytes, device};
    adopted = entry;
    atomic_fetch_add(&adopted_count, 1);
    pthread_mutex_unlock(&adopted_lock);
    return true;
}

void oomph_owner_forget(oomph_addr_t addr)
{
    pthread_mutex_lock(&adopted_lock);
    adopted_t **link = &adopted;
    while ((*link)->addr != addr)
        link = &(*link)->next;
    adopted_t *entry = *link;
    *link = entry->next;
    atomic_fetch_sub(&adopted_count, 1);
    pthread_mutex_unlock(&adopted_lock);
    free(entry);
}

int oomph_owner_of_adopted(oomph_addr_t addr)
{
    int device = -1;

    if (atomic_load(&adopted_count) == 0)
        return -1;
    pthread_mutex_lock(&adopted_lock);
    for (const adopted_t *entry = adopted; entry != NULL; entry = entry->next)
        if (addr - entry->addr < entry->bytes)
            device = entry->device;
    pthread_mutex_unlock(&adopted_lock);
    return device;
}
