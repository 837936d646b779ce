/* Every driver call of every flow fails in turn: the request ends in success or in one
 * clear error, nothing live is touched, the records agree, and the next one works. */
#include "card.h"

#include <cuda.h>

enum { LIVE_MAX = 64 };

// What is live, with its tags: a flow keeps its blocks here.
typedef struct live {
    oomph_addr_t addr[LIVE_MAX];
    size_t bytes[LIVE_MAX];
    size_t count;
} live_t;

static live_t live;

// Tries a block; one that fails must say why.
static oomph_addr_t attempt(size_t bytes, oomph_stream_t stream)
{
    oomph_addr_t addr = 0;

    oomph_status_t status = try_take(bytes, stream, &addr);
    if (status != OOMPH_OK) {
        CHECK(status == OOMPH_ERR_NO_MEMORY || status == OOMPH_ERR_DRIVER);
        CHECK(*oomph_error_detail() != '\0');
        return 0;
    }
    mark(addr, bytes, addr);
    live.addr[live.count] = addr;
    live.bytes[live.count++] = bytes;
    return addr;
}

static void drop(oomph_addr_t addr)
{
    size_t i = 0;

    if (addr == 0)
        return;
    while (live.addr[i] != addr)
        i++;
    CHECK(is_marked(addr, live.bytes[i], addr));
    live.addr[i] = live.addr[--live.count];
    live.bytes[i] = live.bytes[live.count];
    give(addr);
}

static void check_live(void)
{
    for (size_t i = 0; i < live.count; i++)
        CHECK(is_marked(live.addr[i], live.bytes[i], live.addr[i]));
    check_sound();
}

/* ---- The flows, on a card of 16 MiB */

typedef struct flow {
    const char *name;
    const char *card;
    size_t host_limit_bytes;
    void (*run)(oomph_stream_t first, oomph_stream_t second);
} flow_t;

static void grow(oomph_stream_t first, oomph_stream_t second)
{
    attempt(512, first);
    attempt(5 * MIB, first);
    attempt(3 * MIB, second);
}

static void steal(oomph_stream_t first, oomph_stream_t second)
{
    oomph_addr_t a = attempt(4 * MIB, first), b = attempt(4 * MIB, first);
    oomph_addr_t c = attempt(4 * MIB, first);
    drop(a);
    drop(c);
    attempt(8 * MIB, second);
    drop(b);
    attempt(12 * MIB, first);
}

static void defer(oomph_stream_t first, oomph_stream_t second)
{
    oomph_addr_t a = attempt(12 * MIB, first);
    if (a != 0)
        oomph_record_stream(a, 0, second, true);
    drop(a);
    attempt(10 * MIB, first);
    attempt(14 * MIB, second);
}

static void spill(oomph_stream_t first, oomph_stream_t second)
{
    oomph_addr_t a = attempt(12 * MIB, first), b = attempt(8 * MIB, first);
    drop(b);
    attempt(6 * MIB, first);
    attempt(9 * MIB, second);
    drop(a);
}

// Host memory that is too small for the next makes room for it.
static void spill_wider(oomph_stream_t first, oomph_stream_t second)
{
    attempt(16 * MIB, first);
    drop(attempt(4 * MIB, first));
    drop(attempt(8 * MIB, second));
}

static void empty(oomph_stream_t first, oomph_stream_t second)
{
    size_t freed;
    oomph_addr_t a = attempt(4 * MIB, first), b = attempt(6 * MIB, second);

    drop(a);
    oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed);
    drop(b);
    oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed);
    attempt(5 * MIB, first);
}

static void step_with_plan(oomph_stream_t first, oomph_stream_t second)
{
    attempt(4 * MIB, second);
    for (int step = 0; step < 5; step++) {
        oomph_addr_t a = attempt(5 * MIB, first), b = attempt(4 * MIB, first);
        drop(a);
        oomph_addr_t c = attempt(6 * MIB, first);
        drop(b);
        drop(c);
        oomph_step();
    }
}

static void capture_pool(oomph_stream_t first, oomph_stream_t second)
{
    oomph_pool_id_t id = {7, 0};
    oomph_request_t request = {.bytes = 3 * MIB, .stream = first, .pool = id};
    oomph_addr_t addr = 0;

    if (oomph_pool_begin(0, id, first, false) == OOMPH_OK) {
        if (oomph_malloc(&request, &addr) == OOMPH_OK)
            give(addr);
        oomph_pool_end(0, first, false);
        oomph_pool_release(0, id);
    }
    attempt(15 * MIB, second);
}

static void share(oomph_stream_t first, oomph_stream_t second)
{
    oomph_ticket_t ticket = {0};
    oomph_addr_t base = 0, a = attempt(5 * MIB, first);
    size_t offset = 0;

    if (a == 0 || oomph_export(a, &ticket, &offset) != OOMPH_OK)
        return;
    if (oomph_import(0, &ticket, &base) == OOMPH_OK) {
        CHECK(is_marked(base + offset, 5 * MIB, a));
        oomph_unimport(0, base);
    }
    free(ticket.data);
    drop(a);
    attempt(12 * MIB, second);
}

// A planner's way: out to a buffer, and back to another block.
static void buffer(oomph_stream_t first, oomph_stream_t second)
{
    oomph_addr_t copy = 0, a = attempt(12 * MIB, first);

    if (a == 0 || oomph_buffer(0, 12 * MIB, second, &copy) != OOMPH_OK)
        return;
    if (oomph_copy(0, copy, a, 12 * MIB, first) == OOMPH_OK &&
        cuStreamSynchronize(first) == CUDA_SUCCESS)
        CHECK(is_marked(copy, 12 * MIB, a));
    CHECK(oomph_record_stream(copy, 0, first, true) != OOMPH_ERR_INVALID);
    CHECK(oomph_free(copy, NULL) == OOMPH_OK);
    drop(a);
    attempt(13 * MIB, first);
}

// A buffer whose copy back is still to be made as the next step sends something: that
// copy gets what was sent, whatever fails.
static void send_again(oomph_stream_t first, oomph_stream_t second)
{
    oomph_addr_t copy = 0, next = 0, a = attempt(4 * MIB, first),
                 to = attempt(4 * MIB, second);
    bool is_copied = false;

    if (a == 0 || to == 0 || oomph_buffer(0, 4 * MIB, first, &copy) != OOMPH_OK)
        return;
    if (oomph_copy(0, copy, a, 4 * MIB, first) == OOMPH_OK &&
        cuStreamSynchronize(first) == CUDA_SUCCESS &&
        oomph_record_stream(copy, 0, second, true) == OOMPH_OK) {
        oomph_sim_hold(second);
        is_copied = oomph_copy(0, to, copy, 4 * MIB, second) == OOMPH_OK;
    }
    CHECK(oomph_free(copy, NULL) == OOMPH_OK);
    oomph_step();
    oomph_addr_t b = attempt(4 * MIB, first);
    if (b != 0 && oomph_buffer(0, 4 * MIB, first, &next) == OOMPH_OK) {
        oomph_copy(0, next, b, 4 * MIB, first);
        CHECK(oomph_free(next, NULL) == OOMPH_OK);
    }
    oomph_sim_release(second);
    CHECK(cuStreamSynchronize(second) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(first) == CUDA_SUCCESS);
    CHECK(!is_copied || is_marked(to, 4 * MIB, a));
    mark(to, 4 * MIB, to);
}

// Moves the blocks that are live; where that fails they are where they were.
static void move_live(oomph_tier_t tier)
{
    oomph_move_t moves[LIVE_MAX];
    oomph_block_info_t before[LIVE_MAX], after;
    size_t moved_bytes;

    for (size_t i = 0; i < live.count; i++) {
        moves[i].addr = live.addr[i];
        CHECK(oomph_lookup(live.addr[i], &before[i]) == OOMPH_OK);
    }
    oomph_status_t status = oomph_move(0, tier, moves, live.count, &moved_bytes);
    for (size_t i = 0; i < live.count; i++) {
        CHECK(oomph_lookup(live.addr[i], &after) == OOMPH_OK);
        CHECK(after.tier ==
              (status == OOMPH_OK && moves[i].outcome == OOMPH_OUTCOME_THERE
                   ? tier
                   : before[i].tier));
    }
    check_live();
}

static void move(oomph_stream_t first, oomph_stream_t second)
{
    attempt(5 * MIB, first); // shares a page with the next
    attempt(2 * MIB, first);
    oomph_addr_t gap = attempt(4 * MIB, first);
    attempt(3 * MIB, first); // a run of its own
    drop(gap);
    move_live(OOMPH_TIER_HOST);
    attempt(4 * MIB, second);
    move_live(OOMPH_TIER_DEVICE);
}

static void survive(oomph_stream_t first, oomph_stream_t second)
{
    oomph_addr_t large = attempt(12 * MIB, first);
    oomph_addr_t survivor = attempt(6 * MIB, first);
    oomph_step();
    drop(large);
    for (int step = 0; step < 3; step++) {
        drop(attempt(4 * MIB, second));
        oomph_step();
        check_live();
    }
    drop(survivor);
}

static void split(oomph_stream_t first, oomph_stream_t second)
{
    oomph_addr_t tried = attempt(4 * MIB, first);
    move_live(OOMPH_TIER_HOST); // tries host memory while there is room
    drop(tried);
    oomph_addr_t large = attempt(10 * MIB, first);
    attempt(16 * MIB, first);
    move_live(OOMPH_TIER_HOST);
    drop(large);
    move_live(OOMPH_TIER_DEVICE);
    attempt(3 * MIB, second);
}

static const flow_t flows[] = {
    {"grow", "16MiB,context=0,memory=real", 0, grow},
    {"steal", "16MiB,context=0,memory=real", 0, steal},
    {"defer", "16MiB,context=0,memory=real", 0, defer},
    {"spill", "16MiB,context=0,memory=real", 64 * MIB, spill},
    {"spill to host pages", "16MiB,context=0,memory=real,host-pages=host", 64 * MIB,
     spill},
    {"spill to pinned blocks", "16MiB,context=0,memory=real,host-pages=none", 64 * MIB,
     spill},
    {"spill wider", "16MiB,context=0,memory=real", 8 * MIB, spill_wider},
    {"spill wider to pinned blocks", "16MiB,context=0,memory=real,host-pages=none",
     8 * MIB, spill_wider},
    {"spill to little", "16MiB,context=0,memory=real", 8 * MIB, spill},
    {"empty", "16MiB,context=0,memory=real", 0, empty},
    {"step with plan", "16MiB,context=0,memory=real", 0, step_with_plan},
    {"step with plan and host", "12MiB,context=0,memory=real", 64 * MIB,
     step_with_plan},
    {"capture pool", "16MiB,context=0,memory=real", 0, capture_pool},
    {"buffer", "16MiB,context=0,memory=real", 64 * MIB, buffer},
    {"buffer in pinned blocks", "16MiB,context=0,memory=real,host-pages=none", 64 * MIB,
     buffer},
    {"send again", "16MiB,context=0,memory=real", 64 * MIB, send_again},
    {"send again with little", "16MiB,context=0,memory=real", 4 * MIB, send_again},
    {"move", "20MiB,context=0,memory=real", 64 * MIB, move},
    {"move to host pages", "20MiB,context=0,memory=real,host-pages=host", 64 * MIB,
     move},
    {"move little", "16MiB,context=0,memory=real", 8 * MIB, move},
    {"split", "20MiB,context=0,memory=real", 64 * MIB, split},
    {"split to little", "20MiB,context=0,memory=real", 12 * MIB, split},
    {"survive", "16MiB,context=0,memory=real", 64 * MIB, survive},
    {"share", "16MiB,context=0,memory=real", 0, share},
};

static oomph_stream_t streams[2];

static void start_flow(const flow_t *flow)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = flow->host_limit_bytes;
    start_card(flow->card, &config);
    streams[0] = new_stream();
    streams[1] = new_stream();
}

// After the failure: all is sound, and the whole card can be had.
static void recover(void)
{
    size_t freed;

    check_live();
    fail_call(0, OOMPH_OK);
    fail_always(NULL, OOMPH_OK);
    while (live.count > 0)
        drop(live.addr[0]);
    CHECK(attempt(8 * MIB, streams[0]) != 0);
    CHECK(attempt(512, streams[1]) != 0);
    while (live.count > 0)
        drop(live.addr[0]);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    check_sound();
}

// What fails at undoing may cost the memory that could not be given back, and only
// that.
static void nothing_leaked(void)
{
    const char *failed = failed_member();
    bool undo = failed != NULL &&
                (strcmp(failed, "unmap") == 0 || strcmp(failed, "release") == 0 ||
                 strcmp(failed, "pinned_free") == 0);
    oomph_sim_stats_t left = sim_stats_of(0);

    CHECK(left.used_bytes + left.host_bytes + left.pinned_bytes <=
          (undo ? 8 * MIB : 0));
    CHECK(stats_of(0).allocated_bytes[0].current == 0);
}

static unsigned calls_of(const flow_t *flow)
{
    unsigned before = call_count();

    flow->run(streams[0], streams[1]);
    return call_count() - before;
}

static const flow_t *flow_now;
static unsigned call_now;
static oomph_status_t status_now;

static void one_failure(void)
{
    start_flow(flow_now);
    fail_call(call_now, status_now);
    flow_now->run(streams[0], streams[1]);
    recover();
    nothing_leaked();
}

static void count_calls(void)
{
    start_flow(flow_now);
    exit((int)oomph_min(calls_of(flow_now), 250));
}

/* Which flows this process looks at: all, or with OOMPH_TEST_SHARD=K/N those whose
 * number leaves K when divided by N. */
static bool is_mine(size_t flow)
{
    const char *text = getenv("OOMPH_TEST_SHARD");
    unsigned shard, count;

    if (text == NULL)
        return true;
    CHECK(sscanf(text, "%u/%u", &shard, &count) == 2 && shard < count);
    return flow % count == shard;
}

static void every_call_fails_in_turn(void)
{
    static const oomph_status_t statuses[] = {OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER};
    unsigned runs = 0;

    for (size_t i = 0; i < sizeof flows / sizeof flows[0]; i++) {
        if (!is_mine(i))
            continue;
        flow_now = &flows[i];
        unsigned calls = (unsigned)in_child(count_calls);
        CHECK(calls > 0 && calls < 250);
        for (int s = 0; s < 2; s++)
            for (call_now = 1; call_now <= calls; call_now++, runs++) {
                status_now = statuses[s];
                if (in_child(one_failure) != 0) {
                    fprintf(stderr, "flow %s: call %u fails with status %d\n",
                            flow_now->name, call_now, status_now);
                    exit(1);
                }
            }
    }
    printf("%u failures\n", runs);
}

enum { NOTHING_FAILED = 3 }; // exit code

static const char *member_now;

static void one_member(void)
{
    start_flow(flow_now);
    fail_always(member_now, status_now);
    flow_now->run(streams[0], streams[1]);
    // What failed at undoing may have cost memory, but nothing that is live.
    recover();
    exit(failed_member() == NULL ? NOTHING_FAILED : 0);
}

static void every_kind_of_call_fails_for_good(void)
{
    static const char *const members[] = {
        "open",         "memory_info",     "reserve",      "unreserve",
        "create",       "release",         "map",          "unmap",
        "set_access",   "pinned_alloc",    "pinned_free",  "stream_id",
        "event_create", "stream_captures", "event_record", "event_destroy",
        "event_wait",   "drain",           "time_copy",    "trim",
        "event_passed", "export_page",     "import_page",  "copy",
    };
    static const oomph_status_t statuses[] = {OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER};

    for (size_t i = 0; i < sizeof flows / sizeof flows[0]; i++)
        for (size_t m = 0; is_mine(i) && m < sizeof members / sizeof members[0]; m++)
            for (int s = 0; s < 2; s++) {
                flow_now = &flows[i];
                member_now = members[m];
                status_now = statuses[s];
                int ended = in_child(one_member);
                if (ended == NOTHING_FAILED)
                    break; // the flow has no such call: any status would be the same
                if (ended != 0) {
                    fprintf(stderr, "flow %s: %s always fails with status %d\n",
                            flow_now->name, member_now, status_now);
                    exit(1);
                }
            }
}

static void mapping_and_its_undoing_fail(void)
{
    oomph_addr_t addr;

    start_flow(flow_now);
    oomph_addr_t kept = attempt(512, streams[0]);
    fail_always("unmap", OOMPH_ERR_DRIVER);
    fail_call(call_now, OOMPH_ERR_DRIVER);
    if (try_take(6 * MIB, streams[0], &addr) == OOMPH_OK)
        give(addr);
    check_live();
    recover();
    CHECK(kept != 0);
}

static void what_cannot_be_unmapped_again_is_kept_from_everybody(void)
{
    flow_now = &flows[0];
    for (call_now = 1; call_now <= 12; call_now++)
        CHECK(in_child(mapping_and_its_undoing_fail) == 0);
}

/* ---- The thread's context, on two devices */

static uint64_t failing_now;

static void work_with_another_device(void)
{
    oomph_config_t config = test_config();
    CUcontext own, found;
    oomph_addr_t addr;

    start_card("16MiB,devices=2,context=0,memory=real", &config);
    oomph_stream_t stream = new_stream();
    CHECK(cuDevicePrimaryCtxRetain(&own, 1) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(own) == CUDA_SUCCESS);
    uint64_t before = oomph_sim_call_count(NULL);
    oomph_sim_fail_nth_call(failing_now, CUDA_ERROR_UNKNOWN);
    if (try_take(4 * MIB, stream, &addr) == OOMPH_OK)
        give(addr);
    bool failed = oomph_sim_call_count(NULL) - before >= failing_now;
    oomph_sim_clear_failures();
    CHECK(cuCtxGetCurrent(&found) == CUDA_SUCCESS);
    CHECK(found == own);
    exit(failed ? 0 : 3);
}

static void a_thread_keeps_its_context_whatever_fails(void)
{
    int ended = 0;

    for (failing_now = 1; ended == 0; failing_now++)
        ended = in_child(work_with_another_device);
    CHECK(ended == 3);
    CHECK(failing_now > 20);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(every_call_fails_in_turn),
        TEST(every_kind_of_call_fails_for_good),
        TEST(what_cannot_be_unmapped_again_is_kept_from_everybody),
        TEST(a_thread_keeps_its_context_whatever_fails),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
