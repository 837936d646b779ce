/* Numbers of call sites and what is counted of them (map.h, site.h). */
#include "core/base/map.h"
#include "core/base/site.h"
#include "harness.h"

#include <stdlib.h>
#include <string.h>

enum { KEYS = 3000, MISSING = 7 };

static void random_adds_and_takes_agree_with_an_array(void)
{
    rng_t rng = rng_seeded("test_site");
    static bool in[KEYS];
    oomph_map_t map = {0};

    for (int turn = 0; turn < 200000; turn++) {
        size_t i = rng_below(&rng, KEYS);
        uint64_t key = (uint64_t)(i + 1) << (i % 3 * 16); // clusters
        uint64_t found = oomph_map_get(&map, key, MISSING);
        CHECK(found == (in[i] ? (uint32_t)i + 10 : MISSING));
        if (in[i])
            oomph_map_take(&map, key, 0);
        else
            CHECK(oomph_map_add(&map, key, (uint32_t)i + 10));
        in[i] = !in[i];
    }
    oomph_map_clear(&map);
    CHECK(oomph_map_get(&map, 1, MISSING) == MISSING);
}

static void a_key_that_is_not_there_is_taken_without_harm(void)
{
    oomph_map_t map = {0};

    oomph_map_take(&map, 1, 0);
    CHECK(oomph_map_add(&map, 1, 2));
    oomph_map_take(&map, 3, 0);
    CHECK(map.count == 1);
}

static void equal_lines_have_equal_numbers(void)
{
    char file[] = "train.py", function[] = "main";
    oomph_site_t site = oomph_site("train.py", "main", 12);

    CHECK(site != 0);
    CHECK(oomph_site(file, function, 12) == site);
}

static void any_difference_makes_another_number(void)
{
    oomph_site_t site = oomph_site("train.py", "main", 12);

    CHECK(oomph_site("train.py", "main", 13) != site);
    CHECK(oomph_site("train.py", "main2", 12) != site);
    CHECK(oomph_site("train.pyx", "main", 12) != site);
    CHECK(oomph_site("train.pym", "ain", 12) != site);
}

static void a_number_tells_its_line_inferred_or_not(void)
{
    oomph_site_t site = oomph_site("model.py", "Model.forward", 40);
    oomph_site_info_t info;

    for (int i = 0; i < 5000; i++) // the list of names moves meanwhile
        CHECK(oomph_site("model.py", "f", i) != 0);
    CHECK(oomph_site_info(site | OOMPH_SITE_INFERRED, &info) == OOMPH_OK);
    CHECK(strcmp(info.file, "model.py") == 0);
    CHECK(strcmp(info.function, "Model.forward") == 0);
    CHECK(info.line == 40);
}

static void an_unknown_number_is_an_error(void)
{
    oomph_site_info_t info;

    CHECK(oomph_site_info(0, &info) == OOMPH_ERR_INVALID);
    CHECK(oomph_site_info(OOMPH_SITE_INFERRED, &info) == OOMPH_ERR_INVALID);
    CHECK(oomph_site_info(1 << 30, &info) == OOMPH_ERR_INVALID);
}

static void what_a_site_holds_is_told_apart_from_what_is_inferred(void)
{
    oomph_site_counters_t counters = {0};
    oomph_site_bytes_t rows[4];
    const oomph_site_t site = 3000, inferred = site | OOMPH_SITE_INFERRED;

    CHECK(oomph_site_counters_reserve(&counters, inferred) == OOMPH_OK);
    oomph_site_count(&counters, site, 100);
    oomph_site_count(&counters, inferred, 20);
    oomph_site_count(&counters, inferred, 30);
    oomph_site_count(&counters, inferred, -20);
    CHECK(oomph_site_counters_report(&counters, false, rows, 4) == 2);
    CHECK(rows[0].site == site && rows[0].bytes == 100 && rows[0].count == 1);
    CHECK(rows[1].site == inferred && rows[1].bytes == 30 && rows[1].count == 1);
    oomph_site_count(&counters, site, -100);
    CHECK(oomph_site_counters_report(&counters, false, rows, 4) == 1);
    free(counters.list);
}

// The obvious way: all figures are copied at each new peak.
static void what_the_sites_held_at_the_peak_agrees_with_copies(void)
{
    enum { SITES = 5, BLOCKS = 40 };
    rng_t rng = rng_seeded("test_site");
    oomph_site_counters_t counters = {0};
    oomph_site_bytes_t rows[SITES];
    int64_t held[SITES] = {0}, at_peak[SITES] = {0}, all = 0, peak = 0;
    int64_t blocks[BLOCKS] = {0}; // bytes; 0: free

    for (int turn = 0; turn < 20000; turn++) {
        size_t block = rng_below(&rng, BLOCKS), i = block % SITES;
        oomph_site_t site = (oomph_site_t)i + 1;
        int64_t bytes =
            blocks[block] != 0 ? -blocks[block] : (int64_t)rng_below(&rng, 1000) + 1;
        CHECK(oomph_site_counters_reserve(&counters, site) == OOMPH_OK);
        oomph_site_count(&counters, site, bytes);
        blocks[block] = bytes > 0 ? bytes : 0;
        held[i] += bytes;
        all += bytes;
        bool reset = rng_below(&rng, 500) == 0;
        if (reset)
            oomph_site_reset_peak(&counters);
        if (reset || all > peak) {
            peak = all;
            memcpy(at_peak, held, sizeof held);
        }
        size_t count = oomph_site_counters_report(&counters, true, rows, SITES);
        int64_t sum = 0;
        for (size_t row = 0; row < count; row++) {
            CHECK((int64_t)rows[row].bytes == at_peak[rows[row].site - 1]);
            sum += (int64_t)rows[row].bytes;
        }
        CHECK(sum == peak);
    }
    free(counters.list);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(random_adds_and_takes_agree_with_an_array),
        TEST(a_key_that_is_not_there_is_taken_without_harm),
        TEST(equal_lines_have_equal_numbers),
        TEST(any_difference_makes_another_number),
        TEST(a_number_tells_its_line_inferred_or_not),
        TEST(an_unknown_number_is_an_error),
        TEST(what_a_site_holds_is_told_apart_from_what_is_inferred),
        TEST(what_the_sites_held_at_the_peak_agrees_with_copies),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
