/* Moves 1 GiB of live blocks to the host and back, through oomph and by the driver
 * calls that it takes, one after the other. Prints `name value` of the best round: time
 * of the simulated GPU, time of this machine, and what oomph waited for. */
#include "driver/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 64, PAGES = 512, ROUNDS = 3 };
#define BLOCK_BYTES ((size_t)16 << 20)
#define PAGE_BYTES ((size_t)2 << 20)
#define BYTES (PAGES * PAGE_BYTES)

static void must(oomph_status_t status)
{
    if (status == OOMPH_OK)
        return;
    fprintf(stderr, "%s\n", oomph_error_detail());
    exit(1);
}

typedef struct times {
    double gpu_ns, host_ns; // the GPU's clock goes on with each driver call
} times_t;

static uint64_t (*gpu_now_ns)(void); // oomph_sim_now_ns() of the driver loaded

static void find_clock(void)
{
    void *symbol = dlsym(RTLD_DEFAULT, "oomph_sim_now_ns");
    if (symbol == NULL) {
        fprintf(stderr, "this is for the simulated driver\n");
        exit(1);
    }
    memcpy(&gpu_now_ns, &symbol, sizeof symbol);
}

static times_t now(void)
{
    return (times_t){(double)gpu_now_ns(), (double)oomph_now_ns()};
}

static void keep_best(times_t *best, times_t start)
{
    times_t end = now();

    if (best->host_ns == 0 || end.host_ns - start.host_ns < best->host_ns)
        best->host_ns = end.host_ns - start.host_ns;
    if (best->gpu_ns == 0 || end.gpu_ns - start.gpu_ns < best->gpu_ns)
        best->gpu_ns = end.gpu_ns - start.gpu_ns;
}

/* ---- By driver calls */

static oomph_handle_t pages[2][PAGES];

static void map_all(const oomph_driver_t *driver, oomph_addr_t addr, oomph_tier_t tier)
{
    for (size_t i = 0; i < PAGES; i++)
        must(driver->map(addr + i * PAGE_BYTES, PAGE_BYTES, pages[tier][i]));
    must(driver->set_access(addr, BYTES, 1, tier));
}

static void create_all(const oomph_driver_t *driver, oomph_tier_t tier)
{
    for (size_t i = 0; i < PAGES; i++)
        must(driver->create(0, tier, OOMPH_HOST_NUMA, PAGE_BYTES, &pages[tier][i]));
}

static void release_all(const oomph_driver_t *driver, oomph_tier_t tier)
{
    for (size_t i = 0; i < PAGES; i++)
        must(driver->release(pages[tier][i]));
}

// The pages of both tiers exist.
static void exchange(const oomph_driver_t *driver, oomph_addr_t addr, oomph_tier_t tier)
{
    oomph_addr_t staging;

    must(driver->drain(0));
    must(driver->reserve(BYTES, 0, &staging));
    map_all(driver, staging, tier);
    must(driver->copy_all(0, &(oomph_copy_t){staging, addr, BYTES}, 1));
    must(driver->unmap(staging, BYTES));
    must(driver->unreserve(staging, BYTES));
    must(driver->unmap(addr, BYTES));
    map_all(driver, addr, tier);
}

static void raw(const oomph_driver_t *driver, times_t *evict, times_t *promote)
{
    oomph_addr_t addr;

    create_all(driver, OOMPH_TIER_DEVICE);
    must(driver->reserve(BYTES, 0, &addr));
    map_all(driver, addr, OOMPH_TIER_DEVICE);
    times_t start = now();
    create_all(driver, OOMPH_TIER_HOST);
    exchange(driver, addr, OOMPH_TIER_HOST);
    keep_best(evict, start);
    start = now();
    exchange(driver, addr, OOMPH_TIER_DEVICE);
    keep_best(promote, start);
    release_all(driver, OOMPH_TIER_HOST);
    must(driver->unmap(addr, BYTES));
    must(driver->unreserve(addr, BYTES));
    release_all(driver, OOMPH_TIER_DEVICE);
}

/* ---- Through oomph */

static void ours(times_t *evict, times_t *promote)
{
    oomph_move_t moves[BLOCKS];
    oomph_request_t request = {.bytes = BLOCK_BYTES, .stream_lives = true};
    size_t moved_bytes, freed;

    for (int i = 0; i < BLOCKS; i++)
        must(oomph_malloc(&request, &moves[i].addr));
    times_t start = now();
    must(oomph_move(0, OOMPH_TIER_HOST, moves, BLOCKS, &moved_bytes));
    keep_best(evict, start);
    if (moved_bytes != BYTES)
        exit(2);
    start = now();
    must(oomph_move(0, OOMPH_TIER_DEVICE, moves, BLOCKS, &moved_bytes));
    keep_best(promote, start);
    if (moved_bytes != BYTES)
        exit(2);
    for (int i = 0; i < BLOCKS; i++)
        must(oomph_free(moves[i].addr, NULL));
    must(oomph_empty_cache(0, (oomph_pool_id_t){0, 0}, &freed));
}

static void print(const char *what, const times_t *times)
{
    printf("%s_gpu_ns %.0f\n%s_host_ns %.0f\n", what, times->gpu_ns, what,
           times->host_ns);
}

int main(void)
{
    times_t raw_evict = {0}, raw_promote = {0}, evict = {0}, promote = {0};
    oomph_config_t config = oomph_config_default();
    const oomph_driver_t *driver = oomph_driver_cuda();
    oomph_stats_t stats;

    find_clock();
    config.reserve_bytes = 0;
    config.host_limit_bytes = 2 * BYTES;
    config.host_ahead_bytes = 0;
    must(oomph_configure(&config));
    for (int round = 0; round <= ROUNDS; round++) {
        ours(&evict, &promote);
        raw(driver, &raw_evict, &raw_promote);
        if (round == 0) // the first also finds out which host pages work
            evict = promote = raw_evict = raw_promote = (times_t){0};
    }
    print("evict", &evict);
    print("promote", &promote);
    print("raw_evict", &raw_evict);
    print("raw_promote", &raw_promote);
    must(oomph_get_stats(0, &stats));
    printf("moves %d\ndrains %lld\n", 2 * (ROUNDS + 1), (long long)stats.swap_drains);
    return 0;
}
