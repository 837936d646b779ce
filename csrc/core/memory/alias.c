/* alias.c - a list of old addresses, looked through whenever epochs may have passed.
 *
 * It is short: as long as what the host has queued beyond what has finished. Mapping
 * costs what it costs anywhere; the old address costs one call to unmap it, later.
 */
#include "core/memory/alias.h"

#include <stdlib.h>

static bool make_room(oomph_aliases_t *aliases)
{
    size_t capacity = aliases->capacity * 2 + 16;

    if (aliases->count < aliases->capacity)
        return true;
    oomph_alias_t *list = realloc(aliases->list, capacity * sizeof *list);
    if (list == NULL)
        return false;
    aliases->list = list;
    aliases->capacity = capacity;
    return true;
}

// Leaves pages mapped where they are nobody's, FREE or a HOLE until now.
static void leave(oomph_aliases_t *aliases, oomph_page_run_t run, uint64_t epoch)
{
    oomph_heap_set_aside(run);
    aliases->list[aliases->count++] = (oomph_alias_t){run, epoch};
}

static size_t bytes_of(oomph_page_run_t run)
{
    return run.count << run.segment->page_shift;
}

// Maps the pages of `from` at `to`; gives how many are mapped there.
static oomph_status_t map(const oomph_pages_t *pages, oomph_page_run_t to,
                          oomph_page_run_t from, size_t *done)
{
    const oomph_driver_t *driver = pages->driver;
    oomph_status_t status = OOMPH_OK;

    for (*done = 0; *done < from.count && status == OOMPH_OK;
         *done += status == OOMPH_OK)
        status = driver->map(oomph_segment_addr(to.segment, to.first + *done),
                             pages->page_bytes,
                             from.segment->entries[from.first + *done].handle);
    return status == OOMPH_OK
               ? driver->set_access(oomph_segment_addr(to.segment, to.first),
                                    bytes_of(to), pages->devices, false)
               : status;
}

oomph_status_t oomph_alias(oomph_aliases_t *aliases, oomph_pages_t *pages,
                           oomph_page_run_t to, oomph_page_run_t from, uint64_t epoch)
{
    oomph_page_entry_t *old = &from.segment->entries[from.first];
    oomph_page_entry_t *entries = &to.segment->entries[to.first];
    size_t done;

    oomph_assert(to.count == from.count && from.segment->exported == NULL);
    oomph_status_t status = oomph_slab_reserve(to.segment->heap->slab, 4);
    if (status != OOMPH_OK)
        return status;
    if (!make_room(aliases))
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for a list of pages");
    status = map(pages, to, from, &done);
    if (status != OOMPH_OK) {
        to.count = done;
        if (done > 0 && pages->driver->unmap(oomph_segment_addr(to.segment, to.first),
                                             bytes_of(to)) != OOMPH_OK)
            leave(aliases, to, epoch);
        return status;
    }
    for (size_t i = 0; i < from.count; i++) {
        entries[i].handle = old[i].handle;
        entries[i].epoch = old[i].epoch;
        old[i].handle = 0;
    }
    oomph_segment_count_unmapped(from.segment, pages, from.count);
    leave(aliases, from, epoch);
    oomph_segment_count_mapped(to.segment, pages, to.count);
    oomph_heap_fill(to.segment, to.first, to.count, OOMPH_TIER_DEVICE);
    return OOMPH_OK;
}

void oomph_aliases_end(oomph_aliases_t *aliases, oomph_pages_t *pages, uint64_t passed)
{
    size_t left = 0;

    for (size_t i = 0; i < aliases->count; i++) {
        oomph_alias_t alias = aliases->list[i];
        oomph_segment_t *segment = alias.run.segment;
        if (alias.epoch > passed ||
            oomph_slab_reserve(segment->heap->slab, 2) != OOMPH_OK ||
            pages->driver->unmap(oomph_segment_addr(segment, alias.run.first),
                                 bytes_of(alias.run)) != OOMPH_OK)
            aliases->list[left++] = alias;
        else
            oomph_heap_readmit(alias.run);
    }
    aliases->count = left;
}
