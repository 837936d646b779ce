/* access.c - access set for all pages of a run at once: a call to the driver costs more
 * than a page. Each page remembers whether the CPU has it.
 */
#include "core/memory/access.h"

// Whether the CPU may use a page already, or never will.
static bool is_open(const oomph_page_entry_t *entry)
{
    return entry->cpu || entry->tier == OOMPH_TIER_DEVICE;
}

oomph_status_t oomph_segment_open_to_cpu(const oomph_block_t *block,
                                         const oomph_pages_t *pages)
{
    const oomph_segment_t *segment = block->segment;
    oomph_page_entry_t *entries = segment->entries;
    oomph_status_t status = OOMPH_OK;

    if (entries == NULL)
        return OOMPH_OK;
    size_t end = oomph_block_last_page(block) + 1;
    size_t first = oomph_segment_page(segment, block->addr);
    for (size_t next; first < end && status == OOMPH_OK; first = next) {
        for (next = first; next < end && !is_open(&entries[next]); next++)
            ;
        if (next > first)
            status = pages->driver->set_access(oomph_segment_addr(segment, first),
                                               (next - first) << segment->page_shift,
                                               pages->devices, true);
        for (size_t i = first; i < next && status == OOMPH_OK; i++)
            entries[i].cpu = true;
        while (next < end && is_open(&entries[next]))
            next++;
    }
    return status;
}

void oomph_segment_capture(const oomph_block_t *block)
{
    oomph_segment_t *segment = block->segment;

    if (segment->entries == NULL) {
        segment->captured = true;
        return;
    }
    size_t last = oomph_block_last_page(block);
    for (size_t i = oomph_segment_page(segment, block->addr); i <= last; i++)
        segment->entries[i].captured = true;
}

size_t oomph_segment_captured_bytes(const oomph_segment_t *segment)
{
    size_t count = segment->bytes >> segment->page_shift, bytes = 0;

    if (segment->entries == NULL)
        return segment->captured ? segment->bytes : 0;
    for (size_t i = 0; i < count; i++)
        if (segment->entries[i].captured)
            bytes += (size_t)1 << segment->page_shift;
    return bytes;
}

static oomph_status_t set_access(const oomph_segment_t *segment,
                                 const oomph_pages_t *pages, const oomph_block_t *block)
{
    size_t first = oomph_segment_page(segment, block->addr);
    size_t last = oomph_block_last_page(block);

    return pages->driver->set_access(oomph_segment_addr(segment, first),
                                     (last + 1 - first) << segment->page_shift,
                                     pages->devices, false);
}

oomph_status_t oomph_segment_set_access(const oomph_segment_t *segment,
                                        const oomph_pages_t *pages)
{
    oomph_status_t status = OOMPH_OK;

    if (segment->entries == NULL)
        return OOMPH_OK;
    for (const oomph_block_t *b = segment->first; b != NULL && status == OOMPH_OK;
         b = b->next)
        if (b->state != OOMPH_BLOCK_HOLE && !b->leaked)
            status = set_access(segment, pages, b);
    return status;
}
