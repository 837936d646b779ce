/* Bugs that an allocator may have, planted in its driver table: the simulated driver
 * finds each, and names the call and the address. The same flows with the honest table
 * leave no misuse. */
#include "card.h"

#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t LARGE = 12 * MIB; // most of the card
static const uint64_t LONG_NS = 1000000;

static const oomph_driver_t *honest;
static oomph_driver_t planted;
static oomph_stream_t first, second;

/* ---- The bugs */

// Work that is under way counts as finished.
static oomph_status_t pass_too_early(int device, oomph_event_t event, bool *passed)
{
    (void)device;
    (void)event;
    *passed = true;
    return OOMPH_OK;
}

static oomph_status_t wait_for_no_event(int device, oomph_event_t event)
{
    (void)device;
    (void)event;
    return OOMPH_OK;
}

static oomph_status_t drain_nothing(int device)
{
    (void)device;
    return OOMPH_OK;
}

static void plant_impatience(void)
{
    planted.event_passed = pass_too_early;
    planted.event_wait = wait_for_no_event;
    planted.drain = drain_nothing;
}

static oomph_status_t unmap_one_more(oomph_addr_t addr, size_t bytes)
{
    return honest->unmap(addr, bytes + 2 * MIB);
}

static void plant_unmapping_too_much(void)
{
    planted.unmap = unmap_one_more;
}

static oomph_status_t release_twice(oomph_handle_t handle)
{
    honest->release(handle);
    return honest->release(handle);
}

static void plant_releasing_twice(void)
{
    planted.release = release_twice;
}

static oomph_status_t open_nothing(oomph_addr_t addr, size_t bytes, uint64_t devices,
                                   bool cpu)
{
    (void)addr;
    (void)bytes;
    (void)devices;
    (void)cpu;
    return OOMPH_OK;
}

static void plant_forgotten_access(void)
{
    planted.set_access = open_nothing;
}

/* ---- What a program does */

static void use(oomph_stream_t stream, oomph_addr_t addr, size_t bytes)
{
    CHECK(oomph_sim_launch(stream, addr, bytes, 1, LONG_NS) == CUDA_SUCCESS);
}

static void take_on_another_stream(void)
{
    oomph_addr_t block = take(LARGE, first);

    use(first, block, LARGE);
    give(block);
    take(LARGE, second);
}

static void use_a_neighbour(void)
{
    oomph_addr_t block = take(8 * MIB, first), neighbour = take(8 * MIB, first);

    CHECK(neighbour == block + 8 * MIB);
    give(block);
    take(8 * MIB, second);
    use(first, neighbour, 8 * MIB);
    cuCtxSynchronize();
}

static void empty_the_cache(void)
{
    size_t freed;

    give(take(LARGE, first));
    oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed);
}

static void use_a_block(void)
{
    use(first, take(LARGE, first), LARGE);
    cuCtxSynchronize();
}

static void free_what_another_stream_uses(void)
{
    oomph_addr_t block = take(LARGE, first);

    CHECK(oomph_record_stream(block, 0, second, true) == OOMPH_OK);
    use(second, block, LARGE);
    give(block);
    oomph_addr_t again = take(LARGE, first);
    CHECK(again == block);
    use(first, again, LARGE);
}

static void free_a_host_block_under_its_copy(void)
{
    oomph_addr_t device = take(LARGE, first), host = take(8 * MIB, first);
    size_t freed;

    CHECK(cuMemcpyAsync(host, device, 8 * MIB, first) == CUDA_SUCCESS);
    give(host);
    oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed);
}

static void drop_an_import_under_its_work(void)
{
    oomph_ticket_t ticket;
    oomph_addr_t base;
    size_t offset;

    CHECK(oomph_export(take(4 * MIB, first), &ticket, &offset) == OOMPH_OK);
    CHECK(oomph_import(0, &ticket, &base) == OOMPH_OK);
    free(ticket.data);
    use(first, base, 4 * MIB);
    CHECK(oomph_unimport(0, base) == OOMPH_OK);
}

/* ---- The two together */

typedef struct flow {
    void (*run)(void);
    void (*plant)(void);
    const char *card; // after the size
    const char *says[3];
} flow_t;

static void start_with(const flow_t *flow, bool with_bug)
{
    oomph_config_t config = test_config();
    char card[100];
    int device_count;

    config.host_limit_bytes = 64 * MIB;
    config.offload =
        strstr(flow->card, "host") ? OOMPH_OFFLOAD_ON_OOM : OOMPH_OFFLOAD_OFF;
    snprintf(card, sizeof card, "16MiB,context=0,memory=real%s", flow->card);
    CHECK(oomph_sim_configure(card) == 0);
    honest = oomph_driver_cuda();
    planted = *honest;
    if (with_bug)
        flow->plant();
    oomph_process.driver = &planted;
    CHECK(oomph_configure(&config) == OOMPH_OK);
    CHECK(oomph_start(&device_count) == OOMPH_OK);
    first = new_stream();
    second = new_stream();
}

static void run_honestly(const flow_t *flow)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        start_with(flow, false);
        flow->run();
        check_sound();
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Whether one of the misuses says all that it should.
static bool is_named(const flow_t *flow)
{
    const char *text;

    for (size_t ago = 0; (text = oomph_sim_misuse(ago)) != NULL; ago++) {
        bool all = true;
        for (size_t i = 0; i < 3; i++)
            all = all && strstr(text, flow->says[i]) != NULL;
        if (all)
            return true;
        fprintf(stderr, "misuse: %s\n", text);
    }
    return false;
}

static void check_flow(const flow_t *flow)
{
    run_honestly(flow);
    start_with(flow, true);
    flow->run();
    CHECK(is_named(flow));
}

static void unmapping_under_running_work_is_caught(void)
{
    check_flow(&(flow_t){take_on_another_stream,
                         plant_impatience,
                         "",
                         {"cuMemUnmap: ", "bytes at 0x", "pending kernel of stream"}});
}

static void touching_an_unmapped_page_is_caught(void)
{
    check_flow(&(flow_t){use_a_neighbour,
                         plant_unmapping_too_much,
                         "",
                         {"kernel of device 0", "writes 0x", "which is not mapped"}});
}

static void touching_a_page_without_access_is_caught(void)
{
    check_flow(&(flow_t){use_a_block,
                         plant_forgotten_access,
                         "",
                         {"kernel of device 0", "writes 0x", "has no access to"}});
}

static void a_double_release_is_caught(void)
{
    check_flow(&(flow_t){empty_the_cache,
                         plant_releasing_twice,
                         "",
                         {"cuMemRelease: ", "handle 0x", "was released before"}});
}

static void reuse_on_another_stream_without_an_event_is_caught(void)
{
    check_flow(
        &(flow_t){free_what_another_stream_uses,
                  plant_impatience,
                  "",
                  {"does not wait for a pending kernel", "of stream", "uses 0x"}});
}

static void a_host_page_given_back_before_its_copy_has_ended_is_caught(void)
{
    check_flow(&(flow_t){free_a_host_block_under_its_copy,
                         plant_impatience,
                         ",host-pages=numa",
                         {"cuMemUnmap: ", "bytes at 0x", "pending cuMemcpyAsync"}});
}

static void a_pinned_block_given_back_before_its_copy_has_ended_is_caught(void)
{
    check_flow(&(flow_t){free_a_host_block_under_its_copy,
                         plant_impatience,
                         ",host-pages=none",
                         {"cuMemFreeHost: ", "buffer at 0x", "pending cuMemcpyAsync"}});
}

static void an_import_unmapped_under_its_work_is_caught(void)
{
    check_flow(&(flow_t){drop_an_import_under_its_work,
                         plant_impatience,
                         "",
                         {"cuMemUnmap: ", "bytes at 0x", "pending kernel of stream"}});
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(unmapping_under_running_work_is_caught),
        TEST(touching_an_unmapped_page_is_caught),
        TEST(touching_a_page_without_access_is_caught),
        TEST(a_double_release_is_caught),
        TEST(reuse_on_another_stream_without_an_event_is_caught),
        TEST(a_host_page_given_back_before_its_copy_has_ended_is_caught),
        TEST(a_pinned_block_given_back_before_its_copy_has_ended_is_caught),
        TEST(an_import_unmapped_under_its_work_is_caught),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
