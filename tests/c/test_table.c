/* The table of blocks in use (table.h), against a plain array. */
#include "core/heap/table.h"
#include "harness.h"

enum { BLOCKS = 3000 };

static oomph_map_t table;
static oomph_block_t blocks[BLOCKS];

static void an_empty_table_finds_nothing(void)
{
    CHECK(oomph_table_find(&table, 512) == NULL);
    CHECK(oomph_table_take(&table, 512) == NULL);
    CHECK(oomph_table_find(&table, 0) == NULL);
}

static void random_adds_and_takes_agree_with_an_array(void)
{
    rng_t rng = rng_seeded("test_table");
    static bool in[BLOCKS];

    for (size_t i = 0; i < BLOCKS; i++) // clusters, as segments give them
        blocks[i].addr = ((uint64_t)(1 + i % 3) << 32) + i / 3 * OOMPH_ROUND_BYTES;
    for (int turn = 0; turn < 200000; turn++) {
        size_t i = rng_below(&rng, BLOCKS);
        CHECK(oomph_table_find(&table, blocks[i].addr) == (in[i] ? &blocks[i] : NULL));
        if (in[i]) {
            CHECK(oomph_table_take(&table, blocks[i].addr) == &blocks[i]);
        } else {
            CHECK(oomph_table_reserve(&table) == OOMPH_OK);
            oomph_table_add(&table, &blocks[i]);
        }
        in[i] = !in[i];
    }
    for (size_t i = 0; i < BLOCKS; i++)
        CHECK(oomph_table_find(&table, blocks[i].addr) == (in[i] ? &blocks[i] : NULL));
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(an_empty_table_finds_nothing),
        TEST(random_adds_and_takes_agree_with_an_array),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
