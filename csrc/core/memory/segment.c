/* segment.c - pages mapped one by one, with access set once for all. What fails
 * half-way is unmapped again; what cannot even be unmapped is leaked, and nobody may
 * have it.
 */
#include "core/memory/segment.h"
#include "core/heap/heap.h"
#include "core/memory/owner.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Counting */

static void count_up(const oomph_heap_t *heap, oomph_pages_t *pages, size_t bytes)
{
    oomph_counter_up(&pages->mapped_bytes, heap->small, (int64_t)bytes);
    if (heap->mapped_bytes != NULL)
        oomph_counter_up(heap->mapped_bytes, heap->small, (int64_t)bytes);
}

static void count_down(const oomph_heap_t *heap, oomph_pages_t *pages, size_t bytes)
{
    oomph_counter_down(&pages->mapped_bytes, heap->small, (int64_t)bytes);
    if (heap->mapped_bytes != NULL)
        oomph_counter_down(heap->mapped_bytes, heap->small, (int64_t)bytes);
}

/* ---- Segments */

// Entries are mapped apart from the heap, so that those never used cost nothing.
static oomph_page_entry_t *entries_create(size_t count)
{
    void *entries =
        mmap(NULL, count * sizeof(oomph_page_entry_t), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return entries == MAP_FAILED ? NULL : entries;
}

static void entries_destroy(const oomph_segment_t *segment)
{
    free(segment->exported);
    if (segment->entries != NULL)
        munmap(segment->entries,
               (segment->bytes >> segment->page_shift) * sizeof(oomph_page_entry_t));
}

static oomph_segment_t *segment_create(oomph_heap_t *heap, const oomph_pages_t *pages,
                                       size_t bytes)
{
    if (oomph_slab_reserve(heap->slab, 1) != OOMPH_OK)
        return NULL;
    oomph_segment_t *segment = calloc(1, sizeof *segment);
    if (segment == NULL)
        return NULL;
    segment->bytes = bytes;
    segment->page_shift = (unsigned)__builtin_ctzll(pages->page_bytes);
    return segment;
}

oomph_status_t oomph_segment_reserve_at(oomph_heap_t *heap, oomph_pages_t *pages,
                                        oomph_addr_t base, size_t bytes,
                                        oomph_segment_t **out)
{
    oomph_segment_t *segment = segment_create(heap, pages, bytes);
    if (segment == NULL)
        goto no_host_memory;
    segment->entries = entries_create(bytes >> segment->page_shift);
    if (segment->entries == NULL)
        goto undo_segment;
    segment->base = base;
    if (!oomph_owner_note(base, bytes, pages->device))
        goto undo_entries;
    oomph_heap_add(heap, segment, OOMPH_BLOCK_HOLE, OOMPH_TIER_DEVICE);
    oomph_counter_up(&pages->segment, heap->small, 1);
    *out = segment;
    return OOMPH_OK;

undo_entries:
    entries_destroy(segment);
undo_segment:
    free(segment);
no_host_memory:
    return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for a segment");
}

oomph_status_t oomph_segment_reserve(oomph_heap_t *heap, oomph_pages_t *pages,
                                     size_t bytes, oomph_segment_t **out)
{
    oomph_addr_t base;

    bytes = oomph_round_up(bytes, OOMPH_CHUNK_BYTES);
    oomph_status_t status = oomph_pages_reserve(pages, bytes, OOMPH_CHUNK_BYTES, &base);
    if (status != OOMPH_OK)
        return status;
    status = oomph_segment_reserve_at(heap, pages, base, bytes, out);
    if (status != OOMPH_OK) {
        oomph_owner_note(base, bytes, -1);
        pages->driver->unreserve(base, bytes);
    }
    return status;
}

oomph_status_t oomph_segment_adopt(oomph_heap_t *heap, oomph_pages_t *pages,
                                   oomph_segment_kind_t kind, oomph_tier_t tier,
                                   oomph_addr_t addr, size_t bytes,
                                   oomph_segment_t **out)
{
    oomph_segment_t *segment = segment_create(heap, pages, bytes);
    if (segment == NULL || !oomph_owner_adopt(addr, bytes, pages->device)) {
        free(segment);
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for a segment");
    }
    segment->kind = kind;
    segment->base = addr;
    oomph_heap_add(heap, segment, OOMPH_BLOCK_FREE, tier);
    oomph_counter_up(&pages->segment, heap->small, 1);
    count_up(heap, pages, bytes);
    pages->adopted_bytes[tier] += bytes;
    oomph_pages_note_peak(pages, tier);
    *out = segment;
    return OOMPH_OK;
}

static void forget(oomph_segment_t *segment, oomph_pages_t *pages)
{
    oomph_counter_down(&pages->segment, segment->heap->small, 1);
    oomph_heap_remove(segment);
    entries_destroy(segment);
    free(segment);
}

void oomph_segment_retire(oomph_segment_t *segment, oomph_pages_t *pages)
{
    oomph_assert(segment->mapped_count == 0 && segment->kind == OOMPH_SEGMENT_VIRTUAL);
    forget(segment, pages);
}

oomph_status_t oomph_segment_drop(oomph_segment_t *segment, oomph_pages_t *pages)
{
    oomph_assert(segment->mapped_count == 0);
    if (segment->kind == OOMPH_SEGMENT_VIRTUAL) {
        oomph_owner_note(segment->base, segment->bytes, -1);
        oomph_status_t status = pages->driver->unreserve(segment->base, segment->bytes);
        if (status != OOMPH_OK) {
            oomph_owner_note(segment->base, segment->bytes, pages->device);
            return status;
        }
    } else {
        oomph_owner_forget(segment->base);
        count_down(segment->heap, pages, segment->bytes);
        pages->adopted_bytes[segment->first->tier] -= segment->bytes;
    }
    forget(segment, pages);
    return OOMPH_OK;
}

/* ---- Pages */

static size_t range_bytes(const oomph_segment_t *segment, size_t count)
{
    return count << segment->page_shift;
}

void oomph_segment_count_mapped(oomph_segment_t *segment, oomph_pages_t *pages,
                                size_t count)
{
    segment->mapped_count += count;
    count_up(segment->heap, pages, range_bytes(segment, count));
}

void oomph_segment_count_unmapped(oomph_segment_t *segment, oomph_pages_t *pages,
                                  size_t count)
{
    segment->mapped_count -= count;
    count_down(segment->heap, pages, range_bytes(segment, count));
}

// Pages that could not be unmapped again, perhaps without access: nobody may have them.
// They stay in use for ever, as a block that no caller knows.
static void leak(oomph_segment_t *segment, size_t first, size_t count,
                 oomph_tier_t tier)
{
    oomph_heap_fill(segment, first, count, tier);
    oomph_block_t *block = oomph_heap_take(oomph_page_block(segment, first),
                                           oomph_segment_addr(segment, first),
                                           range_bytes(segment, count));
    block->use.requested_bytes = 0;
    block->use.user = NULL;
}

oomph_status_t oomph_segment_map(oomph_segment_t *segment, oomph_pages_t *pages,
                                 size_t first, size_t count, oomph_tier_t tier)
{
    const oomph_driver_t *driver = pages->driver;
    oomph_handle_t handle;
    size_t done = 0;

    oomph_status_t status = oomph_slab_reserve(segment->heap->slab, 4);
    if (status != OOMPH_OK)
        return status;
    for (; done < count; done++) {
        status = oomph_page_take(pages, tier, &handle);
        if (status != OOMPH_OK)
            goto undo_mapped;
        status = driver->map(oomph_segment_addr(segment, first + done),
                             pages->page_bytes, handle);
        if (status != OOMPH_OK)
            goto undo_page;
        segment->entries[first + done].handle = handle;
    }
    status = driver->set_access(oomph_segment_addr(segment, first),
                                range_bytes(segment, count), pages->devices, false);
    if (status != OOMPH_OK)
        goto undo_mapped;
    oomph_segment_count_mapped(segment, pages, count);
    oomph_heap_fill(segment, first, count, tier);
    oomph_notices_add(&pages->notices,
                      (oomph_notice_t){.kind = OOMPH_NOTICE_MAPPED,
                                       .device = pages->device,
                                       .addr = oomph_segment_addr(segment, first),
                                       .bytes = range_bytes(segment, count)});
    return OOMPH_OK;

undo_page:
    oomph_page_give(pages, tier, handle);
undo_mapped:
    if (done == 0)
        return status;
    if (driver->unmap(oomph_segment_addr(segment, first), range_bytes(segment, done)) !=
        OOMPH_OK) {
        oomph_segment_count_mapped(segment, pages, done);
        leak(segment, first, done, tier);
        return status;
    }
    while (done-- > 0) {
        oomph_page_give(pages, tier, segment->entries[first + done].handle);
        segment->entries[first + done].handle = 0;
    }
    return status;
}

oomph_status_t oomph_segment_map_span(const oomph_span_t *span, oomph_pages_t *pages)
{
    oomph_status_t status = OOMPH_OK;
    oomph_page_run_t lacks;

    // What an earlier turn mapped stays mapped: FREE pages, as good there as spare.
    while (status == OOMPH_OK && (lacks = oomph_span_lacks(span)).count > 0)
        status = oomph_segment_map(lacks.segment, pages, lacks.first, lacks.count,
                                   OOMPH_TIER_DEVICE);
    return status;
}

static void unexport(oomph_segment_t *segment, size_t page)
{
    close(oomph_segment_descriptor(segment, page));
    segment->exported[page] = 0;
}

oomph_status_t oomph_segment_export(oomph_segment_t *segment,
                                    const oomph_pages_t *pages, size_t first,
                                    size_t count)
{
    oomph_status_t status = OOMPH_OK;
    int *exported, descriptor;
    size_t done = 0;

    if (segment->exported == NULL)
        segment->exported =
            calloc(segment->bytes >> segment->page_shift, sizeof *segment->exported);
    if (segment->exported == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for exported pages");
    exported = segment->exported + first;
    for (; done < count && status == OOMPH_OK; done++) {
        if (exported[done] != 0)
            continue;
        status = pages->driver->export_page(
            pages->device, segment->entries[first + done].handle, &descriptor);
        if (status == OOMPH_OK)
            exported[done] = -(descriptor + 1); // negative: by this call
    }
    for (size_t i = 0; i < done; i++) {
        if (exported[i] >= 0)
            continue;
        exported[i] = -exported[i];
        if (status != OOMPH_OK)
            unexport(segment, first + i);
    }
    return status;
}

// Unmaps pages of a block; its record is the caller's business.
static oomph_status_t unmap(oomph_segment_t *segment, oomph_pages_t *pages,
                            size_t first, size_t count)
{
    oomph_status_t status = pages->driver->unmap(oomph_segment_addr(segment, first),
                                                 range_bytes(segment, count));
    if (status != OOMPH_OK)
        return status;
    oomph_segment_count_unmapped(segment, pages, count);
    for (size_t i = first; i < first + count; i++) {
        oomph_tier_t tier = (oomph_tier_t)segment->entries[i].tier;
        if (oomph_segment_descriptor(segment, i) < 0) {
            oomph_page_give(pages, tier, segment->entries[i].handle);
        } else {
            unexport(segment, i);
            oomph_page_retire(pages, tier, segment->entries[i].handle);
        }
        segment->entries[i].handle = 0;
        segment->entries[i].cpu = segment->entries[i].captured = false;
    }
    return OOMPH_OK;
}

oomph_status_t oomph_segment_unmap(oomph_segment_t *segment, oomph_pages_t *pages,
                                   size_t first, size_t count)
{
    oomph_status_t status = oomph_slab_reserve(segment->heap->slab, 2);
    if (status == OOMPH_OK)
        status = unmap(segment, pages, first, count);
    if (status == OOMPH_OK)
        oomph_heap_empty(segment, first, count);
    return status;
}

oomph_status_t oomph_segment_unmap_block(const oomph_block_t *block,
                                         oomph_pages_t *pages)
{
    oomph_segment_t *segment = block->segment;

    return unmap(segment, pages, oomph_segment_page(segment, block->addr),
                 block->bytes >> segment->page_shift);
}
