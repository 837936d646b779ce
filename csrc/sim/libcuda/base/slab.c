#include "libcuda/base/slab.h"

#include <stdlib.h>

enum { CHUNK_OBJECTS = 256 };

void *sim_slab_at(const sim_slab_t *slab, uint32_t index)
{
    if (index >= slab->count)
        return NULL;
    return slab->chunks[index / CHUNK_OBJECTS] +
           index % CHUNK_OBJECTS * slab->object_bytes;
}

static bool grow_directory(sim_slab_t *slab)
{
    uint32_t capacity = slab->chunk_capacity ? slab->chunk_capacity * 2 : 16;
    char **chunks = realloc(slab->chunks, capacity * sizeof *chunks);

    if (chunks == NULL)
        return false;
    slab->chunks = chunks;
    slab->chunk_capacity = capacity;
    return true;
}

static bool add_chunk(sim_slab_t *slab)
{
    uint32_t chunk = slab->count / CHUNK_OBJECTS;

    if (chunk == slab->chunk_capacity && !grow_directory(slab))
        return false;
    slab->chunks[chunk] = calloc(CHUNK_OBJECTS, slab->object_bytes);
    return slab->chunks[chunk] != NULL;
}

static sim_object_t *new_object(sim_slab_t *slab)
{
    if (slab->count % CHUNK_OBJECTS == 0 && !add_chunk(slab))
        return NULL;
    sim_object_t *object = sim_slab_at(slab, slab->count++);
    object->index = slab->count - 1;
    return object;
}

void *sim_slab_take(sim_slab_t *slab)
{
    sim_object_t *object = slab->free;

    if (object != NULL)
        slab->free = object->next_free;
    else
        object = new_object(slab);
    if (object == NULL)
        return NULL;
    object->generation++;
    slab->live_count++;
    return object;
}

void sim_slab_give(sim_slab_t *slab, sim_object_t *object)
{
    object->generation++;
    object->next_free = slab->free;
    slab->free = object;
    slab->live_count--;
}

void *sim_slab_next(const sim_slab_t *slab, uint32_t *index)
{
    sim_object_t *object;

    while ((object = sim_slab_at(slab, *index)) != NULL) {
        ++*index;
        if (sim_is_live(object))
            return object;
    }
    return NULL;
}

void sim_slab_give_all(sim_slab_t *slab)
{
    sim_object_t *object;

    for (uint32_t i = 0; (object = sim_slab_next(slab, &i)) != NULL;)
        sim_slab_give(slab, object);
}
