/* deferred.c - freed blocks in a list, oldest first. A look at it costs one poll for
 * each clock that is waited for, and a walk over the list.
 */
#include "core/stream/deferred.h"

#include <stdlib.h>

enum { USE_ROOM = 4 }; // uses that a record has room for, and grows by

static size_t uses_bytes(size_t count)
{
    return sizeof(oomph_uses_t) + count * sizeof(oomph_use_t);
}

static void note(oomph_uses_t *uses, oomph_clock_t *clock)
{
    uses->use[uses->count++] = (oomph_use_t){.clock = clock};
    clock->stream->users++;
}

oomph_uses_t *oomph_uses_new(oomph_clock_t *clock)
{
    oomph_uses_t *uses = calloc(1, uses_bytes(USE_ROOM));

    if (uses != NULL)
        note(uses, clock);
    return uses;
}

void oomph_uses_free(oomph_uses_t *uses)
{
    for (size_t i = 0; uses != NULL && i < uses->count; i++)
        uses->use[i].clock->stream->users--;
    free(uses);
}

void oomph_uses_attach(oomph_uses_t *uses, oomph_block_t *block)
{
    uses->block = block;
    uses->user = block->use.user;
    block->use.user = uses;
    block->shared = true;
}

oomph_status_t oomph_uses_add(oomph_block_t *block, oomph_clock_t *clock)
{
    oomph_uses_t *uses = block->shared ? block->use.user : NULL;
    size_t count = uses == NULL ? 0 : uses->count;

    for (size_t i = 0; i < count; i++)
        if (uses->use[i].clock == clock)
            return OOMPH_OK;
    if (uses == NULL) {
        uses = oomph_uses_new(clock);
        if (uses == NULL)
            goto no_host_memory;
        oomph_uses_attach(uses, block);
        return OOMPH_OK;
    }
    if (count % USE_ROOM == 0) {
        oomph_uses_t *grown = realloc(uses, uses_bytes(count + USE_ROOM));
        if (grown == NULL)
            goto no_host_memory;
        block->use.user = uses = grown;
    }
    note(uses, clock);
    return OOMPH_OK;

no_host_memory:
    return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory to record a stream");
}

void oomph_uses_wait(oomph_deferred_t *deferred, oomph_uses_t *uses)
{
    uses->next = NULL;
    if (deferred->first == NULL)
        deferred->last = &deferred->first;
    *deferred->last = uses;
    deferred->last = &uses->next;
    deferred->count++;
}

void oomph_uses_defer(oomph_deferred_t *deferred, oomph_streams_t *streams,
                      oomph_block_t *block, const oomph_stream_state_t *own)
{
    oomph_uses_t *uses = block->use.user;

    for (size_t i = 0; i < uses->count; i++) {
        oomph_clock_t *clock = uses->use[i].clock;
        uses->use[i].epoch = clock->wanted = clock->open;
        if (!clock->stream->lives && clock->stream != own)
            oomph_clock_close(streams, clock, true); // its handle may be gone later
    }
    block->state = OOMPH_BLOCK_DEFERRED;
    oomph_uses_wait(deferred, uses);
}

static bool have_passed(const oomph_uses_t *uses)
{
    for (size_t i = 0; i < uses->count; i++)
        if (uses->use[i].epoch > uses->use[i].clock->passed)
            return false;
    return true;
}

// Looks whether what deferred frees wait for has passed, and sees to it that it can.
static void look(oomph_streams_t *streams, oomph_clock_t *clock)
{
    if (clock->wanted >= clock->open)
        oomph_clock_close(streams, clock, false);
    if (clock->wanted > clock->passed)
        oomph_clock_poll(streams, clock);
}

oomph_uses_t *oomph_uses_collect(oomph_deferred_t *deferred, oomph_streams_t *streams)
{
    oomph_uses_t *done = NULL, **link = &deferred->first;

    for (oomph_stream_state_t *s = streams->list; s != NULL; s = s->next)
        look(streams, &s->clock);
    while (*link != NULL) {
        oomph_uses_t *uses = *link;
        if (!have_passed(uses)) {
            link = &uses->next;
            continue;
        }
        *link = uses->next;
        uses->next = done;
        done = uses;
        deferred->count--;
    }
    deferred->last = link;
    return done;
}

static bool have_wait(oomph_streams_t *streams, const oomph_uses_t *uses,
                      const oomph_stream_state_t *stream)
{
    for (size_t i = 0; i < uses->count; i++)
        if (!oomph_clock_have_wait(streams, uses->use[i].clock, uses->use[i].epoch,
                                   stream))
            return false;
    return true;
}

oomph_uses_t *oomph_uses_overtake(oomph_deferred_t *deferred, oomph_streams_t *streams,
                                  const oomph_heap_t *heap,
                                  const oomph_stream_state_t *stream, int64_t step)
{
    oomph_uses_t **link = &deferred->first;

    while (*link != NULL &&
           !((*link)->block->buffer && (*link)->block->segment->heap == heap))
        link = &(*link)->next;
    oomph_uses_t *uses = *link;
    if (uses == NULL || uses->freed_in_step >= step ||
        !have_wait(streams, uses, stream))
        return NULL;
    *link = uses->next;
    if (*link == NULL)
        deferred->last = link;
    deferred->count--;
    uses->next = NULL;
    return uses;
}
