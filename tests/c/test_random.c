/* Random operations on random cards, held against a simple model: a list of what is
 * live, whose contents are checked, and a driver that reports memory unmapped under
 * work. */
#include "card.h"

#include <cuda.h>

#ifdef __SANITIZE_THREAD__ // under which one takes twelve times as long
enum { OPERATIONS = 1000 };
#else
enum { OPERATIONS = 3000 };
#endif
enum { LIVE_MAX = 300, STREAMS = 4 };
enum { MOVES_MIN = 4, OPERATIONS_MAX = 20 * OPERATIONS };

typedef struct item {
    oomph_addr_t addr;
    size_t bytes;
    int stream;
    bool marked; // else work is queued that writes it
} item_t;

static item_t live[LIVE_MAX];
static size_t live_count;
static oomph_stream_t streams[STREAMS];
static rng_t rng;
static size_t live_bytes, moves_made;

static size_t random_size(void)
{
    switch (rng_below(&rng, 4)) {
    case 0:
        return 1 + rng_below(&rng, 4096);
    case 1:
        return 1 + rng_below(&rng, MIB);
    case 2:
        return MIB + 1 + rng_below(&rng, 6 * MIB);
    default: // sizes that come again
        return (1 + rng_below(&rng, 6)) * 2 * MIB;
    }
}

static void random_take(void)
{
    int stream = (int)rng_below(&rng, STREAMS);
    size_t bytes = random_size();
    oomph_addr_t addr;

    if (live_count == LIVE_MAX)
        return;
    oomph_status_t status = try_take(bytes, streams[stream], &addr);
    if (status != OOMPH_OK) {
        CHECK(status == OOMPH_ERR_NO_MEMORY);
        return;
    }
    for (size_t i = 0; i < live_count; i++)
        CHECK(addr + bytes <= live[i].addr || live[i].addr + live[i].bytes <= addr);
    bool marked = rng_below(&rng, 2) == 0;
    if (marked) {
        // Written by the CPU: what others queued for this memory must be done.
        CHECK(cuStreamSynchronize(streams[stream]) == CUDA_SUCCESS);
        mark(addr, bytes, addr);
    } else {
        CHECK(oomph_sim_launch(streams[stream], addr, bytes, 1,
                               rng_below(&rng, 100000)) == CUDA_SUCCESS);
    }
    live[live_count++] = (item_t){addr, bytes, stream, marked};
    live_bytes += oomph_round_up(bytes, OOMPH_ROUND_BYTES);
}

static void random_give(void)
{
    if (live_count == 0)
        return;
    size_t i = rng_below(&rng, (uint32_t)live_count);
    item_t item = live[i];
    if (item.marked)
        CHECK(is_marked(item.addr, item.bytes, item.addr));
    if (rng_below(&rng, 4) == 0) { // another stream uses it, too
        int other = (int)rng_below(&rng, STREAMS);
        CHECK(oomph_record_stream(item.addr, 0, streams[other], false) == OOMPH_OK);
        order_streams(streams[item.stream], streams[other]);
        CHECK(oomph_sim_launch(streams[other], item.addr, item.bytes, 0,
                               rng_below(&rng, 100000)) == CUDA_SUCCESS);
    }
    live_bytes -= oomph_round_up(item.bytes, OOMPH_ROUND_BYTES);
    live[i] = live[--live_count];
    give(item.addr);
}

// Moves some of what is live, on pages of theirs or not; work is still under way.
static void random_move(void)
{
    oomph_tier_t tier = rng_below(&rng, 2) ? OOMPH_TIER_HOST : OOMPH_TIER_DEVICE;
    uint32_t share = 1 + rng_below(&rng, 3);
    oomph_move_t moves[LIVE_MAX];
    oomph_block_info_t info;
    size_t count = 0, moved_bytes;

    for (size_t i = 0; i < live_count; i++)
        if (rng_below(&rng, share) == 0)
            moves[count++].addr = live[i].addr;
    oomph_status_t status = oomph_move(0, tier, moves, count, &moved_bytes);
    if (status != OOMPH_OK)
        return; // no host pages can be mapped, or a call was made to fail
    moves_made += moved_bytes > 0;
    for (size_t i = 0; i < count; i++) {
        CHECK(oomph_lookup(moves[i].addr, &info) == OOMPH_OK);
        bool is_there = moves[i].outcome == OOMPH_OUTCOME_THERE;
        bool is_split = tier == OOMPH_TIER_HOST && info.host_bytes < info.bytes;
        CHECK((info.tier == tier) == is_there || (is_split && !is_there));
    }
}

static void random_other(void)
{
    size_t freed;

    switch (rng_below(&rng, 14)) {
    case 4:
    case 5:
        random_move();
        break;
    case 0:
        CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
        break;
    case 2:
        oomph_sim_advance(rng_below(&rng, 1000000));
        break;
    case 3:
        CHECK(cuStreamSynchronize(streams[rng_below(&rng, STREAMS)]) == CUDA_SUCCESS);
        break;
    default:
        oomph_step();
    }
}

/* Goes on, where blocks are to be moved, until `moves_min` moves have found something
 * to move: one to where all blocks are already finds nothing, and a few in a row are
 * drawn like that once in hundreds of seeds. */
static void run_card(const char *card, size_t host_limit_bytes, size_t moves_min)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = host_limit_bytes;
    config.host_ahead_bytes = host_limit_bytes / 4;
    start_card(card, &config);
    give(take(MIB, NULL)); // opens the device
    for (int i = 0; i < STREAMS; i++)
        streams[i] = new_stream();
    for (int i = 0; i < OPERATIONS || moves_made < moves_min; i++) {
        CHECK(i < OPERATIONS_MAX);
        uint32_t choice = rng_below(&rng, 20);
        if (choice < 10)
            random_take();
        else if (choice < 19)
            random_give();
        else
            random_other();
        check_sound();
        CHECK(stats_of(0).allocated_bytes[0].current >= (int64_t)live_bytes);
    }
    for (size_t i = 0; i < live_count; i++)
        CHECK(!live[i].marked || is_marked(live[i].addr, live[i].bytes, live[i].addr));
    oomph_stop();
    check_sound();
}

static void on_a_card_that_is_large_enough(void)
{
    rng = rng_seeded(__func__);
    run_card("1GiB,context=0,memory=real", 0, 0);
}

static void on_a_card_that_is_short(void)
{
    rng = rng_seeded(__func__);
    run_card("128MiB,context=0,memory=real", 0, 0);
}

static void on_a_card_that_spills(void)
{
    rng = rng_seeded(__func__);
    run_card("64MiB,context=0,memory=real", 256 * MIB, MOVES_MIN);
}

static void on_a_card_that_spills_to_pinned_blocks(void)
{
    rng = rng_seeded(__func__);
    run_card("64MiB,context=0,memory=real,host-pages=none", 256 * MIB, 0);
}

/* ---- The same with failures */

static void with_calls_that_fail_at_random(void)
{
    oomph_config_t config = test_config();

    rng = rng_seeded(__func__);
    config.host_limit_bytes = 128 * MIB;
    start_card("64MiB,context=0,memory=real", &config);
    for (int i = 0; i < STREAMS; i++)
        streams[i] = new_stream();
    for (int i = 0; i < OPERATIONS; i++) {
        if (rng_below(&rng, 10) == 0)
            fail_call(1 + rng_below(&rng, 6),
                      rng_below(&rng, 2) ? OOMPH_ERR_DRIVER : OOMPH_ERR_NO_MEMORY);
        size_t before = live_count;
        oomph_addr_t addr;
        if (rng_below(&rng, 2) == 0 && live_count < LIVE_MAX) {
            size_t bytes = random_size();
            if (try_take(bytes, streams[rng_below(&rng, STREAMS)], &addr) == OOMPH_OK) {
                mark(addr, bytes, addr);
                live[live_count++] = (item_t){addr, bytes, 0, true};
            }
        } else if (rng_below(&rng, 8) == 0) {
            random_move();
        } else if (before > 0) {
            size_t k = rng_below(&rng, (uint32_t)before);
            CHECK(is_marked(live[k].addr, live[k].bytes, live[k].addr));
            give(live[k].addr);
            live[k] = live[--live_count];
        }
        check_sound();
    }
    fail_call(0, OOMPH_OK);
    for (size_t i = 0; i < live_count; i++)
        CHECK(is_marked(live[i].addr, live[i].bytes, live[i].addr));
}

/* ---- Steps that repeat, nearly, on a card that is nearly full */

enum { STEP_BLOCKS = 60 };

// The most that a step has alive at once.
static size_t peak_of(const size_t *sizes, const int *deaths)
{
    size_t peak = 0;

    for (int now = 0; now < STEP_BLOCKS; now++) {
        size_t alive = 0;
        for (int i = 0; i <= now; i++)
            alive += deaths[i] > now ? sizes[i] : 0;
        peak = oomph_max(peak, alive);
    }
    return peak;
}

static void steps_that_nearly_repeat(void)
{
    oomph_config_t config = test_config();
    size_t sizes[STEP_BLOCKS];
    int deaths[STEP_BLOCKS];
    char card[64];

    rng = rng_seeded(__func__);
    for (int i = 0; i < STEP_BLOCKS; i++) {
        sizes[i] = MIB + 512 + rng_below(&rng, 5 * MIB);
        deaths[i] = i + 1 + (int)rng_below(&rng, 14);
    }
    config.host_limit_bytes = 64 * MIB;
    snprintf(card, sizeof card, "%zu,context=0,memory=real",
             oomph_round_up(peak_of(sizes, deaths) * 5 / 4, 2 * MIB));
    start_card(card, &config);
    oomph_stream_t stream = new_stream();
    // All pages belong to another stream's hole at first: memory is short.
    give(take(peak_of(sizes, deaths) * 5 / 4 - 2 * MIB, new_stream()));
    for (int step = 0; step < 30; step++) {
        oomph_addr_t addr[STEP_BLOCKS] = {0};
        size_t bytes[STEP_BLOCKS];
        for (int i = 0; i < STEP_BLOCKS; i++) {
            for (int k = 0; k < i; k++)
                if (deaths[k] == i) {
                    CHECK(is_marked(addr[k], bytes[k], addr[k]));
                    give(addr[k]);
                    addr[k] = 0;
                }
            bool other = step >= 8 && rng_below(&rng, 100) == 0;
            bytes[i] = other ? random_size() : sizes[i];
            addr[i] = take(bytes[i], stream);
            mark(addr[i], bytes[i], addr[i]);
        }
        for (int i = 0; i < STEP_BLOCKS; i++)
            if (addr[i] != 0) {
                CHECK(is_marked(addr[i], bytes[i], addr[i]));
                give(addr[i]);
            }
        oomph_step();
        check_sound();
    }
    CHECK(stats_of(0).layout_hits > 0);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(on_a_card_that_is_large_enough),
        TEST(on_a_card_that_is_short),
        TEST(on_a_card_that_spills),
        TEST(on_a_card_that_spills_to_pinned_blocks),
        TEST(with_calls_that_fail_at_random),
        TEST(steps_that_nearly_repeat),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
