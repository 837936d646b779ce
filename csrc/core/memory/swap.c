/* swap.c - all contents are copied first, then the pages change places run by run. If
 * one run fails, those before it change back.
 *
 * So until the copy is done a failure has nothing to undo, and after it either set of
 * pages has the contents. It costs as many pages again for that time, a copy of each
 * over the link, and two maps for each: at the staging address, and at its own.
 */
#include "core/memory/swap.h"

#include <stdio.h>
#include <stdlib.h>

// What a swap needs to know all along. The pages of all runs follow each other in
// `handles`: first those that are to come, later those that went.
typedef struct swap {
    oomph_pages_t *pages;
    oomph_swap_run_t *runs;
    size_t run_count;
    oomph_handle_t *handles;
    size_t count;
    bool aliased;  // the new pages are still mapped at the staging address
    char why[256]; // the error, where there is one
} swap_t;

static oomph_tier_t other(oomph_tier_t tier)
{
    return tier == OOMPH_TIER_HOST ? OOMPH_TIER_DEVICE : OOMPH_TIER_HOST;
}

// Keeps the text of an error, which undoing may replace.
static oomph_status_t note_why(swap_t *swap, oomph_status_t status)
{
    if (status != OOMPH_OK)
        snprintf(swap->why, sizeof swap->why, "%s", oomph_error_detail());
    return status;
}

static oomph_addr_t run_addr(const oomph_swap_run_t *run)
{
    return oomph_segment_addr(run->segment, run->first);
}

/* ---- Mapping */

// Maps pages one behind the other and makes them accessible; gives in `left` how many
// are mapped, more than none also where a failure could not be undone.
static oomph_status_t map_pages(const oomph_pages_t *pages, oomph_addr_t addr,
                                const oomph_handle_t *handles, size_t count, bool cpu,
                                size_t *left)
{
    const oomph_driver_t *driver = pages->driver;
    size_t bytes = pages->page_bytes, done = 0;
    oomph_status_t status = OOMPH_OK;

    for (; done < count && status == OOMPH_OK; done += status == OOMPH_OK)
        status = driver->map(addr + done * bytes, bytes, handles[done]);
    if (status == OOMPH_OK)
        status = driver->set_access(addr, count * bytes, pages->devices, cpu);
    if (status != OOMPH_OK && done > 0 && driver->unmap(addr, done * bytes) == OOMPH_OK)
        done = 0;
    *left = done;
    return status;
}

/* ---- The contents */

static oomph_status_t copy_to(const swap_t *swap, oomph_addr_t staging)
{
    size_t page_bytes = swap->pages->page_bytes;
    oomph_copy_t *copies = malloc(swap->run_count * sizeof *copies);
    if (copies == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory to move blocks");

    for (size_t i = 0; i < swap->run_count; i++) {
        const oomph_swap_run_t *run = &swap->runs[i];
        copies[i] = (oomph_copy_t){staging, run_addr(run), run->count * page_bytes};
        staging += run->count * page_bytes;
    }
    oomph_status_t status =
        swap->pages->driver->copy_all(swap->pages->device, copies, swap->run_count);
    free(copies);
    return status;
}

// Copies what the runs hold into the new pages, mapped for that time only.
static oomph_status_t fill(swap_t *swap)
{
    oomph_pages_t *pages = swap->pages;
    size_t bytes = swap->count * pages->page_bytes, mapped = 0;
    oomph_addr_t staging;

    oomph_status_t status =
        oomph_pages_reserve(pages, bytes, pages->page_bytes, &staging);
    if (status != OOMPH_OK)
        return status;
    status = map_pages(pages, staging, swap->handles, swap->count, false, &mapped);
    if (status == OOMPH_OK)
        status = copy_to(swap, staging);
    swap->aliased =
        !oomph_pages_unreserve(pages, staging, bytes, mapped * pages->page_bytes);
    return status == OOMPH_OK && swap->aliased ? OOMPH_ERR_DRIVER : status;
}

/* ---- The exchange */

// The pages of a run and those of `handles` change places in the books.
static void trade(oomph_swap_run_t *run, oomph_handle_t *handles)
{
    oomph_page_entry_t *entries = &run->segment->entries[run->first];

    for (size_t i = 0; i < run->count; i++) {
        oomph_handle_t handle = entries[i].handle;
        entries[i].handle = handles[i];
        handles[i] = handle;
    }
    run->moved = !run->moved;
}

// Maps the pages of `handles` in place of those of a run, which take theirs. If that
// fails the old ones are mapped again; else the run is leaked.
static oomph_status_t exchange(const swap_t *swap, oomph_swap_run_t *run,
                               oomph_handle_t *handles, oomph_tier_t tier)
{
    oomph_pages_t *pages = swap->pages;
    oomph_addr_t addr = run_addr(run);
    size_t left;

    oomph_status_t status = pages->driver->unmap(addr, run->count * pages->page_bytes);
    if (status != OOMPH_OK)
        return status;
    bool cpu = tier == OOMPH_TIER_HOST; // blocks of the program: see host.c
    status = map_pages(pages, addr, handles, run->count, cpu, &left);
    trade(run, handles);
    if (status == OOMPH_OK)
        return OOMPH_OK;
    if (left > 0 ||
        map_pages(pages, addr, handles, run->count, !cpu, &left) != OOMPH_OK) {
        run->leaked = true;
    }
    trade(run, handles);
    return status;
}

static oomph_status_t exchange_all(swap_t *swap, oomph_tier_t tier)
{
    oomph_status_t status = OOMPH_OK;
    size_t done = 0, page = 0;

    for (; done < swap->run_count; done++) {
        oomph_swap_run_t *run = &swap->runs[done];
        status = exchange(swap, run, &swap->handles[page], tier);
        if (status != OOMPH_OK)
            break;
        page += run->count;
    }
    if (status == OOMPH_OK)
        return OOMPH_OK;
    note_why(swap, status);
    while (done-- > 0) {
        oomph_swap_run_t *run = &swap->runs[done];
        page -= run->count;
        // One that cannot go back stays moved, or is leaked: it is marked.
        exchange(swap, run, &swap->handles[page], other(tier));
    }
    return status;
}

/* ---- The books */

// Nobody may have the pages of a run that is leaked: what is in use there stays so, and
// what is free becomes a block that no caller knows.
static void leak(const oomph_swap_run_t *run)
{
    oomph_addr_t begin = run_addr(run);
    oomph_addr_t end = oomph_segment_addr(run->segment, run->first + run->count);
    oomph_block_t *block = oomph_page_block(run->segment, run->first);

    for (; block != NULL && block->addr < end; block = block->next) {
        if (block->state == OOMPH_BLOCK_FREE) {
            oomph_addr_t from = oomph_max(block->addr, begin);
            block = oomph_heap_take(block, from,
                                    oomph_min(oomph_block_end(block), end) - from);
            block->use.requested_bytes = 0;
            block->use.user = NULL;
        }
        block->leaked = true;
    }
}

static void record(const swap_t *swap, oomph_tier_t tier)
{
    size_t page = 0;

    for (size_t i = 0; i < swap->run_count; i++) {
        const oomph_swap_run_t *run = &swap->runs[i];
        oomph_tier_t left = run->moved ? other(tier) : tier;
        for (size_t k = 0; k < run->count; k++, page++) {
            // What may still be mapped elsewhere is not for anybody.
            if (run->leaked || swap->aliased)
                oomph_page_retire(swap->pages, left, swap->handles[page]);
            else
                oomph_page_give(swap->pages, left, swap->handles[page]);
        }
        for (size_t k = run->first; run->moved && k < run->first + run->count; k++)
            run->segment->entries[k].cpu = tier == OOMPH_TIER_HOST;
        if (run->moved)
            oomph_heap_retier(run->segment, run->first, run->count, tier);
        if (run->leaked)
            leak(run);
    }
}

/* ---- All of it */

// Why the swap failed, and what the driver would not undo.
static void say_why(const swap_t *swap, oomph_status_t status)
{
    size_t leaked_bytes = 0;
    oomph_addr_t leaked = 0;

    for (size_t i = 0; i < swap->run_count; i++)
        if (swap->runs[i].leaked) {
            leaked_bytes += swap->runs[i].count * swap->pages->page_bytes;
            leaked = run_addr(&swap->runs[i]);
        }
    if (leaked == 0)
        oomph_fail(status, "%s", swap->why);
    else
        oomph_fail(
            status,
            "%s; the driver then failed to undo the move, so %s of memory in use is "
            "lost, including address 0x%llx",
            swap->why, oomph_size_text(leaked_bytes).text, (unsigned long long)leaked);
}

static oomph_status_t take_pages(oomph_pages_t *pages, oomph_tier_t tier,
                                 oomph_handle_t *handles, size_t count)
{
    oomph_status_t status = OOMPH_OK;
    size_t done = 0;

    for (; done < count && status == OOMPH_OK; done += status == OOMPH_OK)
        status = oomph_page_take(pages, tier, &handles[done]);
    while (status != OOMPH_OK && done > 0)
        oomph_page_give(pages, tier, handles[--done]);
    return status;
}

oomph_status_t oomph_swap(oomph_pages_t *pages, oomph_swap_run_t *runs,
                          size_t run_count, oomph_tier_t tier)
{
    swap_t swap = {.pages = pages, .runs = runs, .run_count = run_count};

    for (size_t i = 0; i < run_count; i++)
        swap.count += runs[i].count;
    oomph_assert(swap.count > 0);
    oomph_status_t status =
        oomph_slab_reserve(runs[0].segment->heap->slab, 6 * run_count);
    if (status != OOMPH_OK)
        return status;
    swap.handles = malloc(swap.count * sizeof *swap.handles);
    if (swap.handles == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory to move blocks");
    status = take_pages(pages, tier, swap.handles, swap.count);
    if (status == OOMPH_OK) {
        status = note_why(&swap, fill(&swap));
        if (status == OOMPH_OK)
            status = exchange_all(&swap, tier);
        record(&swap, tier);
        if (status != OOMPH_OK)
            say_why(&swap, status);
    }
    free(swap.handles);
    return status;
}
