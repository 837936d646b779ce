/* Blocks in use that move between device and host, their addresses and contents kept.
 */
#include "card.h"

#include <cuda.h>

#define CARD "64MiB,context=0,memory=real"

static oomph_config_t host_config(size_t limit_bytes)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = limit_bytes;
    return config;
}

static void start(const char *card, size_t host_limit_bytes)
{
    oomph_config_t config = host_config(host_limit_bytes);

    start_card(card, &config);
}

static void start_two_cards(void)
{
    start("64MiB,devices=2,context=0,memory=real", 64 * MIB);
}

static oomph_tier_t tier_of(oomph_addr_t addr)
{
    oomph_block_info_t info;

    CHECK(oomph_lookup(addr, &info) == OOMPH_OK);
    return info.tier;
}

// Moves one block; gives what became of it.
static oomph_outcome_t move_one(oomph_addr_t addr, oomph_tier_t tier)
{
    oomph_move_t move = {.addr = addr};
    size_t moved_bytes = 0;

    oomph_status_t status = oomph_move(0, tier, &move, 1, &moved_bytes);
    if (status != OOMPH_OK)
        fprintf(stderr, "%s\n", oomph_error_detail());
    CHECK(status == OOMPH_OK);
    CHECK((moved_bytes > 0) <= (move.outcome == OOMPH_OUTCOME_THERE));
    return move.outcome;
}

static void evict(oomph_addr_t addr)
{
    CHECK(move_one(addr, OOMPH_TIER_HOST) == OOMPH_OUTCOME_THERE);
    CHECK(tier_of(addr) == OOMPH_TIER_HOST);
}

static void promote(oomph_addr_t addr)
{
    CHECK(move_one(addr, OOMPH_TIER_DEVICE) == OOMPH_OUTCOME_THERE);
    CHECK(tier_of(addr) == OOMPH_TIER_DEVICE);
}

/* ---- What moves */

static void a_block_moves_there_and_back_with_its_contents(void)
{
    start(CARD, 64 * MIB);
    oomph_addr_t block = take(9 * MIB + 512, NULL);
    mark(block, 9 * MIB + 512, 1ull << 40);
    evict(block);
    CHECK(is_marked(block, 9 * MIB + 512, 1ull << 40));
    CHECK(stats_of(0).host_block_bytes == 9 * MIB + 512);
    CHECK(stats_of(0).evicted_bytes == 9 * MIB + 512);
    CHECK(stats_of(0).swap_drains == 1);
    check_sound();
    promote(block);
    CHECK(is_marked(block, 9 * MIB + 512, 1ull << 40));
    CHECK(stats_of(0).host_block_bytes == 0);
    CHECK(stats_of(0).promoted_bytes == 9 * MIB + 512);
    CHECK(stats_of(0).swap_drains == 2);
    check_sound();
    give(block);
    check_sound();
}

static void the_device_pages_of_an_evicted_block_serve_others(void)
{
    start(CARD, 64 * MIB);
    oomph_addr_t block = take(64 * MIB, NULL), other = take(2 * MIB, NULL);
    CHECK(tier_of(other) == OOMPH_TIER_HOST);
    give(other);
    evict(block);
    CHECK(tier_of(take(64 * MIB, NULL)) == OOMPH_TIER_DEVICE);
    CHECK(sim_stats_of(0).used_bytes == 64 * MIB);
}

static void work_that_was_queued_is_waited_for(void)
{
    start(CARD, 64 * MIB);
    give(take(MIB, NULL));
    oomph_stream_t stream = new_stream();
    oomph_addr_t block = take(8 * MIB, stream);
    CHECK(oomph_sim_launch(stream, block, 8 * MIB, 1, 1000000) == CUDA_SUCCESS);
    evict(block);
    CHECK(*(unsigned char *)(uintptr_t)block == 0xAB);
    check_sound();
}

static void a_kernel_may_use_a_block_that_moved(void)
{
    start(CARD, 64 * MIB);
    give(take(MIB, NULL));
    oomph_stream_t stream = new_stream();
    oomph_addr_t block = take(8 * MIB, stream);
    evict(block);
    CHECK(oomph_sim_launch(stream, block, 8 * MIB, 1, 1000) == CUDA_SUCCESS);
    promote(block);
    CHECK(oomph_sim_launch(stream, block, 8 * MIB, 0, 1000) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(*(unsigned char *)(uintptr_t)(block + 8 * MIB - 1) == 0xAB);
    check_sound();
}

static void a_batch_takes_one_drain_and_one_copy_for_each_run(void)
{
    enum { COUNT = 6 };
    oomph_move_t moves[COUNT];
    size_t moved_bytes;

    start(CARD, 64 * MIB);
    for (int i = 0; i < COUNT; i++) {
        moves[i].addr = take(5 * MIB, NULL); // they share pages
        mark(moves[i].addr, 5 * MIB, moves[i].addr);
    }
    evict(take(16 * MIB, NULL)); // so that nothing is to be found out about the host
    uint64_t drains = oomph_sim_call_count("cuCtxSynchronize");
    uint64_t copies = oomph_sim_call_count("cuMemcpyAsync");
    uint64_t waits = oomph_sim_call_count("cuStreamSynchronize");
    CHECK(oomph_move(0, OOMPH_TIER_HOST, moves, COUNT, &moved_bytes) == OOMPH_OK);
    CHECK(moved_bytes == COUNT * 5 * MIB);
    CHECK(oomph_sim_call_count("cuCtxSynchronize") == drains + 1);
    CHECK(oomph_sim_call_count("cuMemcpyAsync") == copies + 1);
    CHECK(oomph_sim_call_count("cuStreamSynchronize") == waits + 1);
    for (int i = 0; i < COUNT; i++) {
        CHECK(moves[i].outcome == OOMPH_OUTCOME_THERE);
        CHECK(is_marked(moves[i].addr, 5 * MIB, moves[i].addr));
    }
    check_sound();
}

static void what_is_there_already_costs_nothing(void)
{
    start(CARD, 64 * MIB);
    oomph_addr_t block = take(8 * MIB, NULL);
    uint64_t calls = oomph_sim_call_count(NULL);
    CHECK(move_one(block, OOMPH_TIER_DEVICE) == OOMPH_OUTCOME_THERE);
    CHECK(oomph_sim_call_count(NULL) == calls && stats_of(0).swap_drains == 0);
}

static void a_block_named_twice_moves_once(void)
{
    oomph_move_t moves[2];
    size_t moved_bytes;

    start(CARD, 64 * MIB);
    moves[0].addr = take(8 * MIB, NULL);
    moves[1].addr = moves[0].addr + MIB;
    CHECK(oomph_move(0, OOMPH_TIER_HOST, moves, 2, &moved_bytes) == OOMPH_OK);
    CHECK(moved_bytes == 8 * MIB);
    CHECK(stats_of(0).host_block_bytes == 8 * MIB);
    CHECK(moves[1].outcome == OOMPH_OUTCOME_THERE);
}

static size_t host_bytes_of(oomph_addr_t addr)
{
    oomph_block_info_t info;

    CHECK(oomph_lookup(addr, &info) == OOMPH_OK);
    return info.host_bytes;
}

static void a_page_that_a_neighbour_keeps_back_follows_later(void)
{
    oomph_addr_t addr[3];

    start(CARD, 64 * MIB);
    for (int i = 0; i < 3; i++) {
        addr[i] = take(9 * MIB, NULL); // the second and the others share a page each
        mark(addr[i], 9 * MIB, addr[i]);
    }
    evict(addr[1]);
    CHECK(host_bytes_of(addr[0]) == 0 && host_bytes_of(addr[1]) == 8 * MIB);
    check_sound();
    evict(addr[0]);
    CHECK(host_bytes_of(addr[0]) == 9 * MIB && host_bytes_of(addr[1]) == 9 * MIB);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 18 * MIB);
    check_sound();
    promote(addr[1]);
    CHECK(host_bytes_of(addr[0]) == 9 * MIB && host_bytes_of(addr[1]) == MIB);
    check_sound();
    for (int i = 0; i < 3; i++)
        CHECK(is_marked(addr[i], 9 * MIB, addr[i]));
}

static void a_block_of_two_tiers_falls_into_parts_when_it_is_freed(void)
{
    oomph_addr_t addr[3];

    start(CARD, 64 * MIB);
    for (int i = 0; i < 3; i++)
        addr[i] = take(9 * MIB + 512, NULL);
    mark(addr[0], 9 * MIB + 512, 1);
    mark(addr[2], 9 * MIB + 512, 3);
    evict(addr[1]);
    CHECK(host_bytes_of(addr[1]) == 8 * MIB);
    give(addr[1]);
    check_sound();
    CHECK(stats_of(0).host_block_bytes == 0);
    CHECK(tier_of(take(MIB + 512, NULL)) == OOMPH_TIER_DEVICE);
    check_sound();
    CHECK(is_marked(addr[0], 9 * MIB + 512, 1));
    CHECK(is_marked(addr[2], 9 * MIB + 512, 3));
    for (int i = 0; i < 3; i += 2)
        give(addr[i]);
    size_t freed;
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    check_sound();
    CHECK(sim_stats_of(0).host_bytes == 0);
}

static void a_block_of_two_tiers_cannot_be_shared(void)
{
    oomph_ticket_t ticket;
    size_t offset;

    start(CARD, 64 * MIB);
    oomph_addr_t first = take(9 * MIB, NULL), second = take(9 * MIB, NULL);
    evict(first);
    evict(second);
    promote(first);
    CHECK(host_bytes_of(first) == MIB);
    CHECK(oomph_export(first, &ticket, &offset) == OOMPH_ERR_INVALID);
    CHECK(strstr(oomph_error_detail(), "lies on the host") != NULL);
}

static void a_peer_gets_at_blocks_of_two_tiers(void)
{
    start_two_cards();
    oomph_addr_t first = take(9 * MIB, NULL);
    take(9 * MIB, NULL);
    evict(first);
    CHECK(host_bytes_of(first) == 8 * MIB);
    CHECK(oomph_enable_peer(0, 1) == OOMPH_OK);
    check_sound();
}

static void free_memory_on_its_pages_goes_along(void)
{
    start(CARD, 64 * MIB);
    oomph_addr_t before = take(3 * MIB, NULL), block = take(3 * MIB, NULL);
    oomph_addr_t after = take(3 * MIB, NULL);
    mark(block, 3 * MIB, 7);
    give(before);
    give(after);
    evict(block);
    check_sound();
    CHECK(is_marked(block, 3 * MIB, 7));
    give(block);
    check_sound();
    CHECK(tier_of(take(60 * MIB, NULL)) == OOMPH_TIER_DEVICE);
    check_sound();
}

static void a_block_evicted_takes_free_host_pages(void)
{
    start(CARD, 64 * MIB);
    oomph_stream_t stream = new_stream();
    oomph_addr_t first = take(16 * MIB, stream), second = take(16 * MIB, NULL);
    mark(second, 16 * MIB, 5);
    evict(first);
    CHECK(oomph_sim_launch(stream, first, 16 * MIB, 1, 1000000) == CUDA_SUCCESS);
    give(first); // its work has not finished: the move waits for the device anyway
    evict(second);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 16 * MIB);
    CHECK(is_marked(second, 16 * MIB, 5));
    check_sound();
}

static void a_block_promoted_takes_free_pages_of_other_streams(void)
{
    start(CARD, 64 * MIB);
    oomph_addr_t block = take(32 * MIB, NULL);
    mark(block, 32 * MIB, 1);
    oomph_stream_t stream = new_stream();
    evict(block);
    oomph_addr_t other = take(64 * MIB, stream);
    CHECK(move_one(block, OOMPH_TIER_DEVICE) == OOMPH_OUTCOME_NO_ROOM);
    CHECK(oomph_sim_launch(stream, other, 64 * MIB, 1, 1000000) == CUDA_SUCCESS);
    give(other);
    promote(block);
    CHECK(is_marked(block, 32 * MIB, 1));
    check_sound();
}

static void the_first_that_fit_are_moved(void)
{
    oomph_move_t moves[3];
    size_t moved_bytes;

    start(CARD, 20 * MIB);
    for (int i = 0; i < 3; i++)
        moves[i].addr = take(8 * MIB, NULL);
    CHECK(oomph_move(0, OOMPH_TIER_HOST, moves, 3, &moved_bytes) == OOMPH_OK);
    CHECK(moved_bytes == 16 * MIB);
    CHECK(moves[1].outcome == OOMPH_OUTCOME_THERE);
    CHECK(moves[2].outcome == OOMPH_OUTCOME_NO_ROOM);
    CHECK(tier_of(moves[2].addr) == OOMPH_TIER_DEVICE);
    check_sound();
}

static void the_reserve_is_left_when_blocks_return(void)
{
    oomph_config_t config = host_config(64 * MIB);

    config.reserve_bytes = 16 * MIB;
    start_card(CARD, &config);
    oomph_addr_t block = take(32 * MIB, NULL);
    evict(block);
    take(20 * MIB, NULL);
    CHECK(move_one(block, OOMPH_TIER_DEVICE) == OOMPH_OUTCOME_NO_ROOM);
}

static void memory_that_a_peer_may_use_moves_with_that_right(void)
{
    oomph_block_info_t info;

    start_two_cards();
    oomph_addr_t block = take(8 * MIB, NULL);
    CHECK(oomph_enable_peer(0, 1) == OOMPH_OK);
    evict(block);
    CHECK(oomph_lookup(block, &info) == OOMPH_OK);
    for (int device = 0; device < 2; device++) {
        CUmemLocation where = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
        unsigned long long flags = 0;
        CHECK(cuMemGetAccess(&flags, &where, block) == CUDA_SUCCESS);
        CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
}

/* ---- Other cards that use a block */

// Of the second card, which is in use.
static oomph_stream_t stream_of_the_other(void)
{
    oomph_request_t request = {.device = 1, .bytes = MIB};
    oomph_addr_t addr;
    CUcontext context;
    CUstream stream;

    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK);
    CHECK(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return stream;
}

static void check_work_of_a_peer_is_waited_for(bool is_recorded)
{
    start_two_cards();
    oomph_addr_t block = take(8 * MIB, NULL);
    CHECK(oomph_enable_peer(0, 1) == OOMPH_OK);
    oomph_stream_t stream = stream_of_the_other();
    if (is_recorded)
        CHECK(oomph_record_stream(block, 1, stream, true) == OOMPH_OK);
    CHECK(oomph_sim_launch(stream, block, 8 * MIB, 1, 1000000) == CUDA_SUCCESS);
    evict(block);
    CHECK(*(unsigned char *)(uintptr_t)block == 0xAB);
    CHECK(oomph_sim_launch(stream, block, 8 * MIB, 0, 1000000) == CUDA_SUCCESS);
    promote(block);
    check_sound();
    give(block);
}

static void work_of_a_peer_is_waited_for(void)
{
    check_work_of_a_peer_is_waited_for(false);
}

static void work_of_a_peer_on_a_recorded_stream_is_waited_for(void)
{
    check_work_of_a_peer_is_waited_for(true);
}

static void nothing_moves_while_a_peer_captures(void)
{
    size_t moved_bytes = 1;
    CUgraph graph;

    start_two_cards();
    oomph_move_t move = {.addr = take(8 * MIB, NULL)};
    CHECK(oomph_enable_peer(0, 1) == OOMPH_OK);
    oomph_stream_t stream = stream_of_the_other();
    oomph_request_t request = {
        .device = 1, .bytes = MIB, .stream = stream, .stream_lives = true};
    CHECK(oomph_malloc(&request, &(oomph_addr_t){0}) == OOMPH_OK);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == OOMPH_ERR_STATE);
    CHECK(strstr(oomph_error_detail(), "being captured") != NULL);
    CHECK(moved_bytes == 1 && tier_of(move.addr) == OOMPH_TIER_DEVICE);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    evict(move.addr);
    check_sound();
}

/* ---- What is left where it is */

static void a_small_block_is_left(void)
{
    start(CARD, 64 * MIB);
    CHECK(move_one(take(MIB, NULL), OOMPH_TIER_HOST) == OOMPH_OUTCOME_SMALL);
    CHECK(stats_of(0).swap_drains == 0);
}

static void a_block_without_a_page_of_its_own_is_left_with_its_neighbour(void)
{
    start(CARD, 64 * MIB);
    oomph_addr_t block = take(3 * MIB, NULL), next = take(3 * MIB, NULL);
    CHECK(move_one(block, OOMPH_TIER_HOST) == OOMPH_OUTCOME_NEIGHBOUR);
    CHECK(move_one(next, OOMPH_TIER_HOST) == OOMPH_OUTCOME_NEIGHBOUR);
    check_sound();
}

static void blocks_that_share_all_their_pages_move_together(void)
{
    oomph_move_t moves[4];
    size_t moved_bytes;

    start(CARD, 64 * MIB);
    for (int i = 0; i < 4; i++) {
        moves[i].addr = take(5 * MIB / 2, NULL);
        mark(moves[i].addr, 5 * MIB / 2, moves[i].addr);
    }
    CHECK(oomph_move(0, OOMPH_TIER_HOST, moves, 3, &moved_bytes) == OOMPH_OK);
    CHECK(moves[1].outcome == OOMPH_OUTCOME_THERE);
    CHECK(moves[2].outcome == OOMPH_OUTCOME_NEIGHBOUR); // a page of it is the fourth's
    CHECK(moved_bytes == 5 * MIB);
    check_sound();
    CHECK(oomph_move(0, OOMPH_TIER_HOST, moves, 4, &moved_bytes) == OOMPH_OK);
    CHECK(moved_bytes == 5 * MIB);
    CHECK(stats_of(0).tier_bytes[OOMPH_TIER_HOST] == 10 * MIB);
    check_sound();
    for (int i = 0; i < 4; i++)
        CHECK(is_marked(moves[i].addr, 5 * MIB / 2, moves[i].addr));
}

static void a_block_of_a_pool_is_left(void)
{
    oomph_request_t request = {.bytes = 8 * MIB, .pool = {7, 0}};
    oomph_addr_t addr;

    start(CARD, 64 * MIB);
    CHECK(oomph_malloc(&request, &addr) == OOMPH_OK);
    CHECK(move_one(addr, OOMPH_TIER_HOST) == OOMPH_OUTCOME_POOL);
}

static void a_block_that_other_processes_know_is_left(void)
{
    oomph_ticket_t ticket;
    size_t offset;

    start(CARD, 64 * MIB);
    oomph_addr_t block = take(8 * MIB, NULL);
    CHECK(oomph_export(block, &ticket, &offset) == OOMPH_OK);
    free(ticket.data);
    CHECK(move_one(block, OOMPH_TIER_HOST) == OOMPH_OUTCOME_EXPORTED);
}

static void a_pinned_host_block_cannot_return(void)
{
    start("16MiB,context=0,memory=real,host-pages=none", 64 * MIB);
    oomph_addr_t device = take(16 * MIB, NULL), host = take(8 * MIB, NULL);
    give(device);
    CHECK(move_one(host, OOMPH_TIER_DEVICE) == OOMPH_OUTCOME_ADOPTED);
}

static void where_no_host_pages_can_be_mapped_nothing_is_evicted(void)
{
    size_t moved_bytes;

    start("16MiB,context=0,memory=real,host-pages=none", 64 * MIB);
    oomph_move_t move = {.addr = take(8 * MIB, NULL)};
    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == OOMPH_ERR_STATE);
    CHECK(strstr(oomph_error_detail(), "pinned blocks") != NULL);
}

static void a_block_pinned_to_the_device_is_left_until_it_is_no_longer(void)
{
    start(CARD, 64 * MIB);
    oomph_addr_t block = take(8 * MIB, NULL);
    CHECK(oomph_pin(block + 4 * MIB, true) == OOMPH_OK);
    CHECK(move_one(block, OOMPH_TIER_HOST) == OOMPH_OUTCOME_PINNED);
    CHECK(oomph_pin(block, false) == OOMPH_OK);
    evict(block);
    CHECK(oomph_pin(block, true) == OOMPH_OK);
    promote(block);
    give(block);
    CHECK(take(8 * MIB, NULL) == block); // whoever has it next is not bound
    evict(block);
}

static void what_is_no_block_in_use_is_left(void)
{
    start(CARD, 64 * MIB);
    oomph_addr_t block = take(8 * MIB, NULL);
    give(block);
    CHECK(move_one(block, OOMPH_TIER_HOST) == OOMPH_OUTCOME_UNKNOWN);
    CHECK(move_one(4096, OOMPH_TIER_HOST) == OOMPH_OUTCOME_UNKNOWN);
    CHECK(oomph_pin(block, true) == OOMPH_ERR_INVALID);
}

static void nothing_moves_while_a_stream_captures(void)
{
    size_t moved_bytes = 1;

    start(CARD, 64 * MIB);
    give(take(MIB, NULL));
    oomph_stream_t stream = new_stream();
    oomph_move_t move = {.addr = take_living(8 * MIB, stream)};
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == OOMPH_ERR_STATE);
    CHECK(strstr(oomph_error_detail(), "being captured") != NULL);
    CHECK(moved_bytes == 1 && stats_of(0).swap_drains == 0);
    CUgraph graph;
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    CHECK(oomph_move(0, OOMPH_TIER_HOST, &move, 1, &moved_bytes) == OOMPH_OK);
    CHECK(tier_of(move.addr) == OOMPH_TIER_HOST);
}

/* ---- Watchers */

static size_t unmapped_bytes, mapped_bytes;

static void note_unmapping(int device, oomph_addr_t addr, size_t bytes,
                           oomph_stream_t stream)
{
    (void)device;
    (void)addr;
    (void)stream;
    unmapped_bytes += bytes;
}

static void note(const oomph_notice_t *notice)
{
    if (notice->kind == OOMPH_NOTICE_MAPPED)
        mapped_bytes += notice->bytes;
}

static void watchers_hear_of_pages_before_they_go_and_after(void)
{
    oomph_hooks_t hooks = {.unmapping = note_unmapping, .notice = note};

    start(CARD, 64 * MIB);
    oomph_addr_t block = take(8 * MIB, NULL);
    oomph_set_hooks(&hooks);
    oomph_watch(true);
    evict(block);
    CHECK(unmapped_bytes == 8 * MIB && mapped_bytes == 8 * MIB);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(a_block_moves_there_and_back_with_its_contents),
        TEST(the_device_pages_of_an_evicted_block_serve_others),
        TEST(work_that_was_queued_is_waited_for),
        TEST(a_kernel_may_use_a_block_that_moved),
        TEST(a_batch_takes_one_drain_and_one_copy_for_each_run),
        TEST(what_is_there_already_costs_nothing),
        TEST(a_block_named_twice_moves_once),
        TEST(a_page_that_a_neighbour_keeps_back_follows_later),
        TEST(a_block_of_two_tiers_falls_into_parts_when_it_is_freed),
        TEST(a_block_of_two_tiers_cannot_be_shared),
        TEST(a_peer_gets_at_blocks_of_two_tiers),
        TEST(free_memory_on_its_pages_goes_along),
        TEST(a_block_evicted_takes_free_host_pages),
        TEST(a_block_promoted_takes_free_pages_of_other_streams),
        TEST(the_first_that_fit_are_moved),
        TEST(the_reserve_is_left_when_blocks_return),
        TEST(memory_that_a_peer_may_use_moves_with_that_right),
        TEST(work_of_a_peer_is_waited_for),
        TEST(work_of_a_peer_on_a_recorded_stream_is_waited_for),
        TEST(nothing_moves_while_a_peer_captures),
        TEST(a_small_block_is_left),
        TEST(a_block_without_a_page_of_its_own_is_left_with_its_neighbour),
        TEST(blocks_that_share_all_their_pages_move_together),
        TEST(a_block_of_a_pool_is_left),
        TEST(a_block_that_other_processes_know_is_left),
        TEST(a_pinned_host_block_cannot_return),
        TEST(where_no_host_pages_can_be_mapped_nothing_is_evicted),
        TEST(a_block_pinned_to_the_device_is_left_until_it_is_no_longer),
        TEST(what_is_no_block_in_use_is_left),
        TEST(nothing_moves_while_a_stream_captures),
        TEST(watchers_hear_of_pages_before_they_go_and_after),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
