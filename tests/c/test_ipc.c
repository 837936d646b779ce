/* Blocks that are shared with other processes. The importer is the same process unless
 * a test needs another: the driver gives it the same pages at another address. */
#include "card.h"

#include <cuda.h>
#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *CARD = "16MiB,context=0,memory=real";

static void start_small_card(void)
{
    oomph_config_t config = test_config();

    start_card(CARD, &config);
}

static oomph_ticket_t export_block(oomph_addr_t addr, size_t *offset)
{
    oomph_ticket_t ticket = {0};

    oomph_status_t status = oomph_export(addr, &ticket, offset);
    if (status != OOMPH_OK)
        fprintf(stderr, "%s\n", oomph_error_detail());
    CHECK(status == OOMPH_OK);
    return ticket;
}

// Where the block is seen by whoever imports it.
static oomph_addr_t import_block(oomph_addr_t addr, oomph_addr_t *base)
{
    size_t offset;
    oomph_ticket_t ticket = export_block(addr, &offset);

    oomph_status_t status = oomph_import(0, &ticket, base);
    if (status != OOMPH_OK)
        fprintf(stderr, "%s\n", oomph_error_detail());
    CHECK(status == OOMPH_OK);
    free(ticket.data);
    return *base + offset;
}

static size_t descriptor_count(void)
{
    DIR *folder = opendir("/proc/self/fd");
    size_t count = 0;

    CHECK(folder != NULL);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void a_block_is_seen_where_it_is_imported(void)
{
    oomph_addr_t base;

    start_small_card();
    oomph_addr_t before = take(1 * MIB + 512, NULL), block = take(5 * MIB, NULL);
    mark(block, 5 * MIB, 1);
    oomph_addr_t seen = import_block(block, &base);
    CHECK(seen != block);
    CHECK(is_marked(seen, 5 * MIB, 1));
    mark(seen, 5 * MIB, 2);
    CHECK(is_marked(block, 5 * MIB, 2));
    CHECK(oomph_unimport(0, base) == OOMPH_OK);
    CHECK(oomph_unimport(0, base) == OOMPH_ERR_INVALID);
    CHECK(is_marked(block, 5 * MIB, 2));
    give(before);
    give(block);
    check_sound();
}

static void an_address_inside_a_block_is_exported_with_its_offset(void)
{
    size_t whole, inside;

    start_small_card();
    oomph_addr_t block = take(3 * MIB, NULL);
    oomph_ticket_t a = export_block(block, &whole);
    oomph_ticket_t b = export_block(block + 1000, &inside);
    CHECK(inside == whole + 1000);
    CHECK(a.bytes == b.bytes && memcmp(a.data, b.data, a.bytes) == 0);
    free(a.data);
    free(b.data);
}

static void pages_that_were_exported_never_serve_another_address(void)
{
    oomph_addr_t base, addr;

    start_small_card();
    oomph_stream_t other = new_stream();
    oomph_addr_t shared = take(8 * MIB, NULL), rest = take(8 * MIB, NULL);
    mark(shared, 8 * MIB, 1);
    oomph_addr_t seen = import_block(shared, &base);
    give(shared);
    // The importer has the memory still: nothing is free.
    CHECK(try_take(8 * MIB, other, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(is_marked(seen, 8 * MIB, 1));
    CHECK(sim_stats_of(0).used_bytes == 16 * MIB);
    CHECK(oomph_unimport(0, base) == OOMPH_OK);
    addr = take(8 * MIB, other);
    CHECK(stats_of(0).allocated_bytes[0].current == (int64_t)(16 * MIB));
    give(addr);
    give(rest);
    check_sound();
}

static void pages_that_were_exported_serve_the_same_address_again(void)
{
    oomph_addr_t base;

    start_small_card();
    oomph_addr_t shared = take(8 * MIB, NULL);
    import_block(shared, &base);
    give(shared);
    CHECK(take(8 * MIB, NULL) == shared);
    CHECK(oomph_unimport(0, base) == OOMPH_OK);
    check_sound();
}

static void what_was_exported_goes_back_to_the_driver_with_its_descriptors(void)
{
    size_t before, freed, offset;

    start_small_card();
    give(take(512, NULL));
    before = descriptor_count();
    oomph_addr_t block = take(8 * MIB, NULL);
    free(export_block(block, &offset).data);
    CHECK(descriptor_count() == before + 4);
    give(block);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed == 10 * MIB);
    CHECK(descriptor_count() == before);
    CHECK(sim_stats_of(0).used_bytes == 0);
    check_sound();
}

static void a_page_that_the_driver_does_not_take_back_is_offered_again(void)
{
    size_t freed, offset;

    start_small_card();
    oomph_addr_t block = take(8 * MIB, NULL);
    free(export_block(block, &offset).data);
    give(block);
    fail_always("release", OOMPH_ERR_DRIVER);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed == 0);
    check_sound();
    fail_always(NULL, OOMPH_OK);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(freed == 8 * MIB);
    CHECK(sim_stats_of(0).used_bytes == 0);
    check_sound();
}

static void a_failed_export_leaves_no_descriptor(void)
{
    oomph_ticket_t ticket;
    size_t offset;

    start_small_card();
    oomph_addr_t block = take(8 * MIB, NULL);
    size_t before = descriptor_count();
    fail_call(3, OOMPH_ERR_DRIVER);
    CHECK(oomph_export(block, &ticket, &offset) == OOMPH_ERR_DRIVER);
    CHECK(strcmp(failed_member(), "export_page") == 0);
    CHECK(descriptor_count() == before);
    check_sound();
}

static void a_failed_import_leaves_nothing(void)
{
    size_t offset;
    oomph_addr_t base;
    unsigned nth = 0;
    oomph_status_t status = OOMPH_ERR_DRIVER;

    start_small_card();
    oomph_addr_t block = take(6 * MIB, NULL);
    oomph_ticket_t ticket = export_block(block, &offset);
    oomph_sim_stats_t before = sim_stats_of(0);
    size_t descriptors = descriptor_count();
    while (status != OOMPH_OK) {
        fail_call(++nth, OOMPH_ERR_DRIVER);
        status = oomph_import(0, &ticket, &base);
        oomph_sim_stats_t now = sim_stats_of(0);
        bool releases = strcmp(failed_member(), "release") == 0;
        CHECK(releases || status == OOMPH_OK || status == OOMPH_ERR_DRIVER);
        if (status == OOMPH_OK && releases) {
            CHECK(oomph_unimport(0, base) == OOMPH_OK);
            status = OOMPH_ERR_DRIVER; // go on with the next call
        } else if (status != OOMPH_OK) {
            CHECK(now.mapping_count == before.mapping_count);
            CHECK(now.reservation_count == before.reservation_count);
        }
        CHECK(descriptor_count() == descriptors);
    }
    CHECK(nth > 8); // reserve, 3 of import, map and release each, set_access
    free(ticket.data);
    check_sound();
}

static void what_is_no_ticket_is_refused(void)
{
    char nonsense[64] = "from elsewhere";
    oomph_ticket_t ticket = {nonsense, sizeof nonsense};
    oomph_addr_t base;
    size_t offset;

    start_small_card();
    CHECK(oomph_import(0, &ticket, &base) == OOMPH_ERR_INVALID);
    CHECK(strstr(oomph_error_detail(), "not shared by this version") != NULL);
    ticket.bytes = 3;
    CHECK(oomph_import(0, &ticket, &base) == OOMPH_ERR_INVALID);
    oomph_ticket_t cut = export_block(take(4 * MIB, NULL), &offset);
    cut.bytes -= 4;
    CHECK(oomph_import(0, &cut, &base) == OOMPH_ERR_INVALID);
    cut.bytes += 4;
    // Two pages so large that together they would have no bytes: a field after 8 bytes.
    memcpy((char *)cut.data + 8, &(uint64_t){1ull << 63}, sizeof(uint64_t));
    CHECK(oomph_import(0, &cut, &base) == OOMPH_ERR_INVALID);
    free(cut.data);
}

static void only_blocks_in_use_are_exported(void)
{
    oomph_ticket_t ticket;
    size_t offset;

    start_small_card();
    oomph_addr_t block = take(4 * MIB, NULL);
    give(block);
    CHECK(oomph_export(block, &ticket, &offset) == OOMPH_ERR_INVALID);
    CHECK(oomph_export((oomph_addr_t)(uintptr_t)&ticket, &ticket, &offset) ==
          OOMPH_ERR_INVALID);
}

static void more_pages_than_descriptors_are_a_clear_error(void)
{
    struct rlimit few = {70, 70};
    oomph_ticket_t ticket;
    size_t offset;

    start_small_card();
    oomph_addr_t block = take(16 * MIB, NULL);
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    CHECK(oomph_export(block, &ticket, &offset) == OOMPH_ERR_NO_MEMORY);
    CHECK(strstr(oomph_error_detail(), "takes 8 file descriptors") != NULL);
    CHECK(strstr(oomph_error_detail(), "ulimit -n") != NULL);
}

// Runs the rest in a process of its own, which must succeed. True in that process.
static bool in_other_process(void)
{
    int status;
    pid_t child = fork();

    if (child == 0)
        return true;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return false;
}

// A ticket that names a process: its field follows 24 bytes.
static oomph_ticket_t ticket_of(pid_t process)
{
    size_t offset;
    oomph_ticket_t ticket = export_block(take(4 * MIB, NULL), &offset);

    memcpy((char *)ticket.data + 24, &(int32_t){process}, sizeof(int32_t));
    return ticket;
}

static void an_exporter_that_has_ended_is_named(void)
{
    oomph_addr_t base;
    pid_t ended = fork();

    if (ended == 0)
        _exit(0);
    CHECK(waitpid(ended, NULL, 0) == ended);
    start_small_card();
    oomph_ticket_t ticket = ticket_of(ended);
    CHECK(oomph_import(0, &ticket, &base) == OOMPH_ERR_DRIVER);
    CHECK(strstr(oomph_error_detail(), "has ended") != NULL);
    free(ticket.data);
}

static void a_system_that_forbids_it_is_a_clear_error(void)
{
    enum { NOBODY = 65534 };
    oomph_addr_t base;

    if (!in_other_process())
        return;
    start_small_card();
    oomph_ticket_t ticket = ticket_of(1);
    CHECK(getuid() != 0 || setuid(NOBODY) == 0);
    CHECK(oomph_import(0, &ticket, &base) == OOMPH_ERR_DRIVER);
    CHECK(strstr(oomph_error_detail(), "ptrace") != NULL);
    CHECK(strstr(oomph_error_detail(), "SYS_PTRACE") != NULL);
    free(ticket.data);
    exit(0);
}

static void an_import_is_unmapped_when_its_work_has_finished(void)
{
    oomph_addr_t base;

    start_small_card();
    oomph_stream_t stream = new_stream();
    oomph_addr_t seen = import_block(take(4 * MIB, NULL), &base);
    CHECK(oomph_sim_launch(stream, seen, 4 * MIB, 1, 5000) == 0);
    CHECK(oomph_unimport(0, base) == OOMPH_OK);
    CHECK(oomph_sim_now_ns() >= 5000);
    check_sound(); // no misuse: it was waited for
}

static void an_import_that_is_dropped_in_a_capture_is_unmapped_after_it(void)
{
    CUgraph captured = NULL;
    oomph_addr_t base;
    size_t freed;

    start_small_card();
    oomph_stream_t stream = new_stream();
    oomph_addr_t block = take(4 * MIB, stream);
    import_block(block, &base);
    uint64_t mapped = sim_stats_of(0).mapping_count;
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(oomph_pool_begin(0, (oomph_pool_id_t){7, 0}, stream, true) == OOMPH_OK);
    CHECK(oomph_unimport(0, base) == OOMPH_OK);
    CHECK(sim_stats_of(0).mapping_count == mapped);
    CHECK(cuStreamEndCapture(stream, &captured) == CUDA_SUCCESS); // still valid
    CHECK(oomph_pool_end(0, stream, true) == OOMPH_OK);
    CHECK(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed) == OOMPH_OK);
    CHECK(sim_stats_of(0).mapping_count == mapped - 2);
    check_sound();
}

static void a_peer_may_use_what_is_imported(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t base;

    start_card("16MiB,context=0,memory=real,devices=2", &config);
    import_block(take(4 * MIB, NULL), &base);
    CHECK(oomph_enable_peer(0, 1) == OOMPH_OK);
    unsigned long long flags = 0;
    CUmemLocation peer = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    CHECK(cuMemGetAccess(&flags, &peer, base) == CUDA_SUCCESS);
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(a_block_is_seen_where_it_is_imported),
        TEST(an_address_inside_a_block_is_exported_with_its_offset),
        TEST(pages_that_were_exported_never_serve_another_address),
        TEST(pages_that_were_exported_serve_the_same_address_again),
        TEST(what_was_exported_goes_back_to_the_driver_with_its_descriptors),
        TEST(a_page_that_the_driver_does_not_take_back_is_offered_again),
        TEST(a_failed_export_leaves_no_descriptor),
        TEST(a_failed_import_leaves_nothing),
        TEST(what_is_no_ticket_is_refused),
        TEST(only_blocks_in_use_are_exported),
        TEST(more_pages_than_descriptors_are_a_clear_error),
        TEST(an_exporter_that_has_ended_is_named),
        TEST(a_system_that_forbids_it_is_a_clear_error),
        TEST(an_import_is_unmapped_when_its_work_has_finished),
        TEST(an_import_that_is_dropped_in_a_capture_is_unmapped_after_it),
        TEST(a_peer_may_use_what_is_imported),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
