/* Page-locked blocks in place of host pages: one that nothing uses makes room for
 * another. So does idle host memory of other devices, whatever its kind. */
#include "card.h"

#include <cuda.h>
#include <pthread.h>
#include <time.h>

// Starts with a full card, on which every further block must fall back to the host.
static void fill_card(const char *more, size_t limit_bytes)
{
    oomph_config_t config = test_config();
    char card[100];

    snprintf(card, sizeof card, "16MiB,context=0,memory=real,host-pages=none%s", more);
    config.host_limit_bytes = limit_bytes;
    start_card(card, &config);
    new_stream(); // a current context
    mark(take_living(16 * MIB, NULL), 16 * MIB, 1ull << 50);
}

// A block with contents, which is checked and freed.
static void use(size_t bytes, oomph_stream_t stream)
{
    oomph_addr_t addr = take_living(bytes, stream);

    mark(addr, bytes, bytes << 8);
    CHECK(is_marked(addr, bytes, bytes << 8));
    give(addr);
}

static size_t pinned_bytes(void)
{
    return sim_stats_of(0).pinned_bytes;
}

/* ---- On one device */

static void an_idle_block_that_is_too_small_is_given_back(void)
{
    fill_card("", 16 * MIB);
    for (size_t bytes = 8 * MIB; bytes <= 16 * MIB; bytes += 2 * MIB)
        use(bytes, NULL);
    CHECK(pinned_bytes() == 16 * MIB && stats_of(0).rescues == 5);
    check_sound();
}

static void several_are_given_back_where_one_is_not_enough(void)
{
    oomph_addr_t small[4];

    fill_card("", 16 * MIB);
    for (size_t i = 0; i < 4; i++)
        small[i] = take_living(4 * MIB, NULL);
    for (size_t i = 0; i < 4; i++)
        give(small[i]);
    use(14 * MIB, NULL);
    CHECK(pinned_bytes() == 14 * MIB);
    check_sound();
}

static void no_more_is_given_back_than_is_missing(void)
{
    fill_card("", 16 * MIB);
    oomph_addr_t large = take_living(6 * MIB, NULL);
    oomph_addr_t small = take_living(2 * MIB, NULL);
    give(small);
    give(large);
    use(10 * MIB, NULL); // 2 MiB are beyond the limit
    CHECK(pinned_bytes() == 16 * MIB);
    check_sound();
}

static void a_block_of_another_stream_is_given_back_once_its_work_is_done(void)
{
    fill_card("", 16 * MIB);
    oomph_stream_t stream = new_stream();
    oomph_addr_t host = take_living(12 * MIB, stream);
    CHECK(oomph_sim_launch(stream, host, 12 * MIB, 1, 1000000) == 0);
    give(host);
    use(10 * MIB, NULL);
    CHECK(pinned_bytes() == 10 * MIB);
    check_sound();
}

static void a_larger_one_serves_as_it_is(void)
{
    fill_card("", 16 * MIB);
    use(12 * MIB, NULL);
    use(2 * MIB, NULL);
    CHECK(pinned_bytes() == 12 * MIB);
    check_sound();
}

static void nothing_is_given_back_in_vain(void)
{
    oomph_addr_t addr;

    fill_card("", 16 * MIB);
    oomph_addr_t used = take_living(8 * MIB, NULL);
    mark(used, 8 * MIB, 7);
    give(take_living(4 * MIB, NULL));
    CHECK(try_take(10 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(pinned_bytes() == 12 * MIB && is_marked(used, 8 * MIB, 7));
    check_sound();
}

static void one_that_is_partly_used_stays(void)
{
    oomph_addr_t addr;

    fill_card("", 16 * MIB);
    oomph_addr_t whole = take_living(12 * MIB, NULL);
    give(whole);
    oomph_addr_t part = take_living(2 * MIB, NULL); // of these 12
    mark(part, 2 * MIB, 7);
    CHECK(try_take(14 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    CHECK(pinned_bytes() == 12 * MIB && is_marked(part, 2 * MIB, 7));
    use(10 * MIB, NULL);
    check_sound();
}

static void one_is_given_back_where_the_driver_has_no_more(void)
{
    fill_card(",host=16MiB", 64 * MIB);
    use(12 * MIB, NULL);
    use(14 * MIB, NULL);
    CHECK(pinned_bytes() == 14 * MIB);
    check_sound();
}

static void one_that_the_driver_does_not_take_back_is_kept_and_used(void)
{
    oomph_addr_t addr;

    fill_card("", 16 * MIB);
    use(12 * MIB, NULL);
    fail_always("pinned_free", OOMPH_ERR_DRIVER);
    CHECK(try_take(14 * MIB, NULL, &addr) == OOMPH_ERR_NO_MEMORY);
    use(12 * MIB, NULL);
    CHECK(pinned_bytes() == 12 * MIB && stats_of(0).tier_bytes[1] == 12 * MIB);
    fail_always(NULL, OOMPH_OK);
    use(14 * MIB, NULL);
    CHECK(pinned_bytes() == 14 * MIB);
    check_sound();
}

static void a_buffer_gets_their_room_too(void)
{
    oomph_addr_t buffer;

    fill_card("", 16 * MIB);
    use(12 * MIB, NULL);
    CHECK(oomph_buffer(0, 14 * MIB, NULL, &buffer) == OOMPH_OK);
    mark(buffer, 14 * MIB, 3);
    CHECK(is_marked(buffer, 14 * MIB, 3));
    give(buffer);
    check_sound();
}

/* ---- On several */

static oomph_status_t try_on(int device, size_t bytes, oomph_addr_t *addr)
{
    oomph_request_t request = {.device = device, .bytes = bytes, .stream_lives = true};

    return oomph_malloc(&request, addr);
}

static void share_limit(const char *kinds, size_t limit_bytes)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;
    char card[100];

    snprintf(card, sizeof card, "16MiB,devices=2,context=0,memory=real%s", kinds);
    config.host_limit_bytes = limit_bytes;
    start_card(card, &config);
    new_stream();
    CHECK(try_on(0, 16 * MIB, &addr) == OOMPH_OK);
    CHECK(try_on(1, 16 * MIB, &addr) == OOMPH_OK);
}

static void expect_shared_limit(const char *kinds)
{
    oomph_addr_t there, here;

    share_limit(kinds, 16 * MIB);
    for (int device = 0; device < 2; device++) {
        CHECK(try_on(1 - device, 12 * MIB, &there) == OOMPH_OK);
        mark(there, 12 * MIB, 5);
        CHECK(try_on(device, 12 * MIB, &here) == OOMPH_ERR_NO_MEMORY);
        CHECK(is_marked(there, 12 * MIB, 5));
        give(there);
        CHECK(try_on(device, 12 * MIB, &here) == OOMPH_OK);
        mark(here, 12 * MIB, 6);
        CHECK(is_marked(here, 12 * MIB, 6));
        give(here);
    }
    check_sound();
}

static void idle_host_memory_of_another_device_is_had(void)
{
    expect_shared_limit("");
}

static void so_are_its_idle_page_locked_blocks(void)
{
    expect_shared_limit(",host-pages=none");
}

static oomph_addr_t unreachable; // a block that only a collection gives back

// The first collection finds nothing and takes long, so the next comes before an error.
static bool collect_slowly(bool last, size_t *bytes)
{
    CHECK(last == (unreachable != 0));
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    oomph_collection_begin();
    if (unreachable != 0)
        give(unreachable);
    unreachable = 0;
    *bytes = oomph_collection_end();
    return true;
}

static void what_another_device_has_idle_after_a_collection_is_had(void)
{
    oomph_hooks_t hooks = {.collect_garbage = collect_slowly};
    oomph_addr_t addr;

    oomph_set_hooks(&hooks);
    share_limit(",host-pages=none", 16 * MIB);
    CHECK(try_on(0, 12 * MIB, &unreachable) == OOMPH_OK); // on the host
    CHECK(try_on(1, 12 * MIB, &addr) == OOMPH_OK);
    CHECK(unreachable == 0 && stats_of(1).rescues == 1);
    check_sound();
}

static void pages_that_were_made_ahead_for_another_device_are_had(void)
{
    oomph_config_t config = test_config();
    oomph_addr_t addr;

    config.host_limit_bytes = 16 * MIB;
    config.host_ahead_bytes = 12 * MIB;
    start_card("16MiB,devices=2,context=0,memory=real", &config);
    CHECK(try_on(0, 16 * MIB, &addr) == OOMPH_OK);
    CHECK(try_on(1, 16 * MIB, &addr) == OOMPH_OK);
    CHECK(try_on(1, 2 * MIB, &addr) == OOMPH_OK); // on host: more is made ahead
    for (int i = 0; i < 1000 && atomic_load(&oomph_process.host.used_bytes) < 14 * MIB;
         i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    CHECK(try_on(0, 14 * MIB, &addr) == OOMPH_OK);
    check_sound();
}

static void *compete(void *argument)
{
    int device = *(int *)argument;
    oomph_addr_t addr;

    for (size_t i = 0; i < 200; i++) {
        size_t bytes = (2 + i % 7) * 2 * MIB;
        oomph_status_t status = try_on(device, bytes, &addr);
        CHECK(status == OOMPH_OK || status == OOMPH_ERR_NO_MEMORY);
        if (status == OOMPH_OK)
            give(addr);
    }
    return NULL;
}

static void devices_that_beg_from_each_other_at_once_never_wait_for_ever(void)
{
    pthread_t threads[4];
    int devices[] = {0, 1, 0, 1};

    share_limit(",host-pages=none", 16 * MIB);
    for (size_t i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, compete, &devices[i]) == 0);
    for (size_t i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    check_sound();
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(an_idle_block_that_is_too_small_is_given_back),
        TEST(several_are_given_back_where_one_is_not_enough),
        TEST(no_more_is_given_back_than_is_missing),
        TEST(a_block_of_another_stream_is_given_back_once_its_work_is_done),
        TEST(a_larger_one_serves_as_it_is),
        TEST(nothing_is_given_back_in_vain),
        TEST(one_that_is_partly_used_stays),
        TEST(one_is_given_back_where_the_driver_has_no_more),
        TEST(one_that_the_driver_does_not_take_back_is_kept_and_used),
        TEST(a_buffer_gets_their_room_too),
        TEST(idle_host_memory_of_another_device_is_had),
        TEST(so_are_its_idle_page_locked_blocks),
        TEST(what_another_device_has_idle_after_a_collection_is_had),
        TEST(pages_that_were_made_ahead_for_another_device_are_had),
        TEST(devices_that_beg_from_each_other_at_once_never_wait_for_ever),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
