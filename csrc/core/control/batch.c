/* batch.c - which blocks move, with which pages, and why others do not (oomph/move.h).
 *
 * What moves is whole pages. A page that blocks in use share moves when all of them are
 * to lie on the tier; what is FREE there goes along. A block moves with the pages that
 * it has for itself; one that has none needs all those that it shares. Blocks are taken
 * in the order given, as long as there is room. Each block looks at its two end pages
 * alone, so that a batch costs its blocks and their neighbours.
 */
#include "core/control/batch.h"
#include "core/device/lookup.h"

#include <stdlib.h>

const char *oomph_outcome_text(oomph_outcome_t outcome)
{
    static const char *const texts[OOMPH_OUTCOMES] = {
        "it is there already",
        "it is not a block in use on the device",
        "it is at most 1 MiB and shares its pages with other small blocks",
        "it shares its pages with blocks in use that do not move with it",
        "it belongs to a CUDA graph or a MemPool",
        "it is not made of pages that oomph maps",
        "other processes have its pages mapped",
        "it is pinned to the device",
        "there is not enough room for it",
    };

    return outcome >= 0 && outcome < OOMPH_OUTCOMES ? texts[outcome] : "unknown";
}

/* ---- Blocks */

static bool is_exported(const oomph_block_t *block)
{
    const oomph_segment_t *segment = block->segment;
    size_t last = oomph_block_last_page(block);

    for (size_t i = oomph_segment_page(segment, block->addr); i <= last; i++)
        if (oomph_segment_descriptor(segment, i) >= 0)
            return true;
    return false;
}

oomph_block_t *oomph_block_at(const oomph_device_t *device, oomph_addr_t addr)
{
    const oomph_segment_t *segment = oomph_device_segment(device, addr);
    if (segment == NULL)
        return NULL;

    oomph_block_t *block = oomph_segment_block(segment, addr);
    bool known = block->state == OOMPH_BLOCK_USED && !block->leaked && !block->buffer &&
                 block->use.requested_bytes > 0;
    return known ? block : NULL;
}

// Why the block cannot move; THERE if it can, or has already.
static bool may_move(const oomph_block_t *block, oomph_tier_t tier,
                     oomph_outcome_t *outcome)
{
    const oomph_pool_t *pool = oomph_block_pool(block);

    bool is_split = block->tier == OOMPH_TIER_HOST && block->mixed_tier &&
                    oomph_block_host_bytes(block) < block->bytes;

    *outcome = OOMPH_OUTCOME_THERE;
    if (block->tier == tier && !is_split)
        return false;
    if (pool->small)
        *outcome = OOMPH_OUTCOME_SMALL;
    else if (block->segment->kind != OOMPH_SEGMENT_VIRTUAL)
        *outcome = OOMPH_OUTCOME_ADOPTED;
    else if (pool->group != NULL)
        *outcome = OOMPH_OUTCOME_POOL;
    else if (is_exported(block))
        *outcome = OOMPH_OUTCOME_EXPORTED;
    else if (tier == OOMPH_TIER_HOST && block->pinned)
        *outcome = OOMPH_OUTCOME_PINNED;
    return *outcome == OOMPH_OUTCOME_THERE;
}

bool oomph_block_may_move(const oomph_block_t *block, oomph_tier_t tier)
{
    oomph_outcome_t outcome;

    return may_move(block, tier, &outcome);
}

/* ---- Pages */

// Whether all blocks in use that touch a page are to lie on the tier, or do already.
static bool all_on_tier(const oomph_batch_t *batch, const oomph_segment_t *segment,
                        size_t page)
{
    oomph_addr_t begin = oomph_segment_addr(segment, page);
    oomph_addr_t end = oomph_segment_addr(segment, page + 1);

    for (const oomph_block_t *b = oomph_page_block(segment, page);
         b != NULL && b->addr < end; b = b->next)
        if (b->state != OOMPH_BLOCK_FREE && oomph_block_end(b) > begin && !b->moving &&
            (b->state != OOMPH_BLOCK_USED || b->tier != batch->tier || b->leaked ||
             (batch->limits.idle_only && !b->idle_between_steps)))
            return false;
    return true;
}

// The pages that move for a block's sake: all, but for ends that others keep back, or
// move themselves. False if it has too few pages then to move at all.
static bool find_run(const oomph_batch_t *batch, const oomph_block_t *block,
                     oomph_swap_run_t *run)
{
    oomph_tier_t tier = batch->tier;
    oomph_segment_t *segment = block->segment;
    const oomph_page_entry_t *entries = segment->entries;
    size_t first = oomph_segment_page(segment, block->addr);
    size_t last = oomph_block_last_page(block);
    bool has_own = last - first >= 2;
    bool first_may = all_on_tier(batch, segment, first);
    bool last_may = all_on_tier(batch, segment, last);

    if (!has_own && !(first_may && last_may))
        return false;
    *run = (oomph_swap_run_t){.segment = segment, .first = first};
    if (has_own &&
        (tier == OOMPH_TIER_HOST ? entries[first + 1] : entries[last - 1]).moving)
        return true; // it was named before
    bool first_moves =
        first_may && !entries[first].moving && entries[first].tier != tier;
    bool last_moves = last_may && !entries[last].moving && entries[last].tier != tier;
    size_t end = last_moves ? last + 1 : last;
    run->first = first_moves ? first : first + 1;
    run->count = end > run->first ? end - run->first : 0;
    // Of a split block one part is there.
    while (run->count > 0 && entries[run->first].tier == tier) {
        run->first++;
        run->count--;
    }
    while (run->count > 0 && entries[run->first + run->count - 1].tier == tier)
        run->count--;
    return true;
}

static void choose_run(oomph_batch_t *batch, const oomph_swap_run_t *run)
{
    for (size_t i = run->first; i < run->first + run->count; i++)
        run->segment->entries[i].moving = true;
    if (run->count > 0)
        batch->runs[batch->run_count++] = *run;
    batch->page_count += run->count;
}

static int by_address(const void *left, const void *right)
{
    const oomph_swap_run_t *a = left, *b = right;
    oomph_addr_t from = oomph_segment_addr(a->segment, a->first);
    oomph_addr_t to = oomph_segment_addr(b->segment, b->first);

    return (from > to) - (from < to);
}

// Makes one of runs that follow each other.
static void join_runs(oomph_batch_t *batch)
{
    oomph_swap_run_t *runs = batch->runs;
    size_t joined = 0;

    if (batch->run_count == 0)
        return;
    qsort(runs, batch->run_count, sizeof *runs, by_address);
    for (size_t i = 1; i < batch->run_count; i++) {
        oomph_swap_run_t *last = &runs[joined];
        if (runs[i].segment == last->segment &&
            runs[i].first == last->first + last->count)
            last->count += runs[i].count;
        else
            runs[++joined] = runs[i];
    }
    batch->run_count = joined + 1;
}

void oomph_batch_choose(oomph_batch_t *batch, size_t room)
{
    oomph_swap_run_t run;

    batch->run_count = batch->page_count = 0;
    for (size_t i = 0; i < batch->count; i++) {
        oomph_block_t *block = oomph_block_at(batch->device, batch->moves[i].addr);
        if (block != NULL && batch->limits.idle_only && !block->idle_between_steps)
            block = NULL; // another has come in the place of the idle one
        batch->blocks[i] = block;
        if (block == NULL)
            batch->moves[i].outcome = OOMPH_OUTCOME_UNKNOWN;
        else
            block->moving = may_move(block, batch->tier, &batch->moves[i].outcome);
        batch->host_bytes[i] = block == NULL ? 0 : oomph_block_host_bytes(block);
    }
    for (size_t i = 0; i < batch->count; i++) {
        const oomph_block_t *block = batch->blocks[i];
        if (block == NULL || !block->moving)
            continue;
        if (!find_run(batch, block, &run))
            batch->moves[i].outcome = OOMPH_OUTCOME_NEIGHBOUR;
        else if (run.count > room - batch->page_count)
            batch->moves[i].outcome = OOMPH_OUTCOME_NO_ROOM;
        else
            choose_run(batch, &run);
    }
    join_runs(batch);
}

void oomph_batch_forget(const oomph_batch_t *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->blocks[i] != NULL)
            batch->blocks[i]->moving = false;
    for (size_t i = 0; i < batch->run_count; i++) {
        const oomph_swap_run_t *run = &batch->runs[i];
        for (size_t k = run->first; k < run->first + run->count; k++)
            run->segment->entries[k].moving = false;
    }
}
