/* The address space of a pool (block.h, index.h), against a model that knows the state
 * of every 512 bytes. No driver: pages are numbers. */
#include "core/heap/heap.h"
#include "core/heap/index.h"
#include "core/heap/span.h"
#include "harness.h"

#include <string.h>

enum {
    PAGE_SHIFT = 12,
    PAGE_BYTES = 1 << PAGE_SHIFT,
    PAGES = 64,
    UNIT = OOMPH_ROUND_BYTES,
    UNITS = PAGES * PAGE_BYTES / UNIT,
    BASE = 1 << 30,
};

static oomph_slab_t slab;
static oomph_heap_t heap;
static oomph_segment_t segment;
static oomph_page_entry_t entries[PAGES];

static void start(bool small)
{
    memset(entries, 0, sizeof entries);
    CHECK(oomph_slab_reserve(&slab, 1) == OOMPH_OK);
    CHECK(oomph_heap_init(&heap, &slab, small, NULL) == OOMPH_OK);
    segment = (oomph_segment_t){.base = BASE,
                                .bytes = PAGES * PAGE_BYTES,
                                .page_shift = PAGE_SHIFT,
                                .entries = entries};
    oomph_heap_add(&heap, &segment, OOMPH_BLOCK_HOLE, OOMPH_TIER_DEVICE);
}

static void map_pages(size_t first, size_t count, oomph_tier_t tier)
{
    CHECK(oomph_slab_reserve(&slab, 2) == OOMPH_OK);
    for (size_t i = first; i < first + count; i++)
        entries[i].handle = i + 1;
    oomph_heap_fill(&segment, first, count, tier);
}

static void unmap_pages(size_t first, size_t count)
{
    CHECK(oomph_slab_reserve(&slab, 2) == OOMPH_OK);
    for (size_t i = first; i < first + count; i++)
        entries[i].handle = 0;
    oomph_heap_empty(&segment, first, count);
}

static oomph_block_t *take_at(oomph_addr_t addr, size_t bytes)
{
    CHECK(oomph_slab_reserve(&slab, 2) == OOMPH_OK);
    return oomph_heap_take(oomph_segment_block(&segment, addr), addr, bytes);
}

static oomph_block_t *take_fit(size_t bytes)
{
    oomph_block_t *block = oomph_heap_fit(&heap, bytes);

    return block == NULL ? NULL : take_at(block->addr, bytes);
}

/* ---- Single facts */

static void a_hole_serves_no_request(void)
{
    start(true);
    CHECK(oomph_heap_fit(&heap, UNIT) == NULL);
    map_pages(0, 1, OOMPH_TIER_DEVICE);
    CHECK(oomph_heap_fit(&heap, PAGE_BYTES) != NULL);
    CHECK(oomph_heap_fit(&heap, PAGE_BYTES + UNIT) == NULL);
}

static void the_smallest_block_that_fits_is_found(void)
{
    start(true);
    map_pages(0, 32, OOMPH_TIER_DEVICE);
    oomph_block_t *blocks[6];
    static const size_t units[6] = {20, 1, 6, 1, 9, 1};
    for (int i = 0; i < 6; i++)
        blocks[i] = take_fit(units[i] * UNIT);
    oomph_addr_t nine = blocks[4]->addr;
    for (int i = 0; i < 6; i += 2)
        oomph_heap_give(blocks[i]);
    CHECK(oomph_heap_fit(&heap, 8 * UNIT)->addr == nine);
}

static void freed_neighbours_become_one_block(void)
{
    start(true);
    map_pages(0, 2, OOMPH_TIER_DEVICE);
    oomph_block_t *a = take_fit(UNIT), *b = take_fit(UNIT), *c = take_fit(UNIT);
    oomph_addr_t first = a->addr;
    oomph_heap_give(a);
    oomph_heap_give(c);
    oomph_heap_give(b);
    oomph_block_t *whole = oomph_segment_block(&segment, first);
    CHECK(whole->state == OOMPH_BLOCK_FREE && whole->bytes == 2 * PAGE_BYTES);
}

static void device_and_host_pages_never_merge(void)
{
    start(false);
    map_pages(0, 2, OOMPH_TIER_DEVICE);
    map_pages(2, 2, OOMPH_TIER_HOST);
    CHECK(oomph_segment_block(&segment, BASE)->bytes == 2 * PAGE_BYTES);
    CHECK(oomph_heap_fit_host(&heap, 2 * PAGE_BYTES) != NULL);
    CHECK(oomph_heap_fit_host(&heap, 2 * PAGE_BYTES + UNIT) == NULL);
}

static void a_span_lies_where_the_fewest_pages_are_missing(void)
{
    oomph_span_t span;

    start(true);
    map_pages(0, 1, OOMPH_TIER_DEVICE);  // free
    map_pages(10, 3, OOMPH_TIER_DEVICE); // free
    CHECK(oomph_heap_best_span(&heap, 4 * PAGE_BYTES, &span));
    CHECK(span.missing_count == 1);
    CHECK(span.addr == BASE + 9 * PAGE_BYTES);
    take_at(BASE + 9 * PAGE_BYTES + PAGE_BYTES, PAGE_BYTES);
    CHECK(oomph_heap_best_span(&heap, 4 * PAGE_BYTES, &span));
    CHECK(span.missing_count == 2 && span.addr == BASE + 11 * PAGE_BYTES);
}

static void host_pages_are_in_the_way_of_a_span(void)
{
    oomph_span_t span;

    start(true);
    map_pages(1, PAGES - 1, OOMPH_TIER_HOST);
    CHECK(!oomph_heap_best_span(&heap, 2 * PAGE_BYTES, &span));
    CHECK(!oomph_heap_span_at(&segment, BASE, 2 * PAGE_BYTES, &span));
    CHECK(oomph_heap_span_at(&segment, BASE, PAGE_BYTES, &span));
}

static void a_span_beyond_the_segment_is_refused(void)
{
    oomph_span_t span;

    start(true);
    CHECK(!oomph_heap_span_at(&segment, BASE + (PAGES - 1) * PAGE_BYTES,
                              PAGE_BYTES + UNIT, &span));
    CHECK(!oomph_heap_span_at(&segment, BASE - UNIT, UNIT, &span));
    CHECK(!oomph_heap_span_at(&segment, BASE, SIZE_MAX, &span));
}

static void crumbs_between_large_blocks_wait_for_their_neighbours(void)
{
    start(false);
    map_pages(0, PAGES, OOMPH_TIER_DEVICE); // 256 KiB: nothing here is large
    CHECK(oomph_heap_fit(&heap, OOMPH_SMALL_MAX + UNIT) == NULL);
}

/* ---- Random operations against the model */

typedef enum unit_state { HOLE, FREE, FREE_HOST, USED } unit_state_t;

static unit_state_t model[UNITS];

static void paint(oomph_addr_t addr, size_t bytes, unit_state_t state)
{
    for (size_t i = 0; i < bytes / UNIT; i++)
        model[(addr - BASE) / UNIT + i] = state;
}

static unit_state_t state_of(const oomph_block_t *block)
{
    if (block->state == OOMPH_BLOCK_HOLE)
        return HOLE;
    if (block->state == OOMPH_BLOCK_USED)
        return USED;
    return block->tier == OOMPH_TIER_HOST ? FREE_HOST : FREE;
}

static void compare_with_model(void)
{
    oomph_addr_t end = BASE;

    for (oomph_block_t *b = segment.first; b != NULL; b = b->next) {
        CHECK(b->addr == end);
        end = oomph_block_end(b);
        for (size_t i = (b->addr - BASE) / UNIT; i < (end - BASE) / UNIT; i++)
            CHECK(model[i] == state_of(b));
        CHECK(b->next == NULL || state_of(b) == USED ||
              state_of(b) != state_of(b->next)); // merged
        for (oomph_addr_t a = b->addr; a < end; a += 7 * UNIT)
            CHECK(oomph_segment_block(&segment, a) == b);
    }
    CHECK(end == BASE + PAGES * PAGE_BYTES);
}

static bool pages_are(size_t first, size_t count, unit_state_t state)
{
    const size_t per_page = PAGE_BYTES / UNIT;

    for (size_t i = first * per_page; i < (first + count) * per_page; i++)
        if (model[i] != state)
            return false;
    return true;
}

static size_t largest_run(unit_state_t state)
{
    size_t best = 0, run = 0;

    for (size_t i = 0; i < UNITS; i++) {
        run = model[i] == state ? run + 1 : 0;
        best = oomph_max(best, run);
    }
    return best * UNIT;
}

static void random_operation(rng_t *rng, oomph_block_t **used, size_t *used_count)
{
    size_t first = rng_below(rng, PAGES), count = 1 + rng_below(rng, 6);
    size_t bytes = (1 + rng_below(rng, 24)) * UNIT;

    count = oomph_min(count, PAGES - first);
    switch (rng_below(rng, 5)) {
    case 0:
        if (!pages_are(first, count, HOLE))
            break;
        bool host = rng_below(rng, 4) == 0;
        map_pages(first, count, host ? OOMPH_TIER_HOST : OOMPH_TIER_DEVICE);
        paint(oomph_segment_addr(&segment, first), count * PAGE_BYTES,
              host ? FREE_HOST : FREE);
        break;
    case 1:
        if (!pages_are(first, count, FREE) && !pages_are(first, count, FREE_HOST))
            break;
        unmap_pages(first, count);
        paint(oomph_segment_addr(&segment, first), count * PAGE_BYTES, HOLE);
        break;
    case 2:
    case 3: {
        oomph_block_t *block = take_fit(bytes);
        CHECK((block != NULL) == (largest_run(FREE) >= bytes));
        if (block == NULL)
            break;
        CHECK(block->bytes == bytes);
        paint(block->addr, bytes, USED);
        used[(*used_count)++] = block;
        break;
    }
    default:
        if (*used_count == 0)
            break;
        size_t victim = rng_below(rng, (uint32_t)*used_count);
        oomph_block_t *block = used[victim];
        used[victim] = used[--*used_count];
        paint(block->addr, block->bytes,
              block->tier == OOMPH_TIER_HOST ? FREE_HOST : FREE);
        oomph_heap_give(block);
    }
}

static void random_operations_agree_with_the_model(void)
{
    rng_t rng = rng_seeded("test_block");
    static oomph_block_t *used[UNITS];
    size_t used_count = 0;

    start(true);
    for (int i = 0; i < 20000; i++) {
        random_operation(&rng, used, &used_count);
        compare_with_model();
    }
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(a_hole_serves_no_request),
        TEST(the_smallest_block_that_fits_is_found),
        TEST(freed_neighbours_become_one_block),
        TEST(device_and_host_pages_never_merge),
        TEST(a_span_lies_where_the_fewest_pages_are_missing),
        TEST(host_pages_are_in_the_way_of_a_span),
        TEST(a_span_beyond_the_segment_is_refused),
        TEST(crumbs_between_large_blocks_wait_for_their_neighbours),
        TEST(random_operations_agree_with_the_model),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
