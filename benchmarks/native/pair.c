/* Times the core alone: a block allocated and freed, last in first out, among few and
 * among a million live blocks; and a random victim among a million. Prints `name ns`.
 */
#include "oomph.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LIVE = 1000000, PAIRS = 1000000, ROUNDS = 7, VICTIMS = 300000, BATCH = 100 };

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static oomph_addr_t take(size_t bytes)
{
    oomph_request_t request = {.bytes = bytes, .stream_lives = true};
    oomph_addr_t addr = 0;

    if (oomph_malloc(&request, &addr) != OOMPH_OK) {
        fprintf(stderr, "%s\n", oomph_error_detail());
        exit(1);
    }
    return addr;
}

// Best of several rounds, in nanoseconds a pair.
static double pairs(size_t bytes)
{
    double best = 1e18;

    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();
        for (int i = 0; i < PAIRS; i++)
            oomph_free(take(bytes), NULL);
        double ns = (now_ns() - start) / PAIRS;
        best = ns < best ? ns : best;
    }
    return best;
}

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

static void shuffle(oomph_addr_t *addr)
{
    uint64_t state = 1;

    for (size_t i = LIVE - 1; i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t k = (size_t)((state >> 33) % (i + 1));
        oomph_addr_t other = addr[k];
        addr[k] = addr[i];
        addr[i] = other;
    }
}

// Victims come from a shuffled list, read in order, so that the list itself costs
// nothing.
static double random_victims(oomph_addr_t *addr, size_t bytes)
{
    static double batches[VICTIMS / BATCH];

    shuffle(addr);
    for (size_t b = 0; b < VICTIMS / BATCH; b++) {
        double start = now_ns();
        for (size_t i = b * BATCH; i < (b + 1) * BATCH; i++) {
            oomph_free(addr[i], NULL);
            addr[i] = take(bytes);
        }
        batches[b] = (now_ns() - start) / BATCH;
    }
    qsort(batches, VICTIMS / BATCH, sizeof batches[0], by_value);
    return batches[VICTIMS / BATCH / 2];
}

int main(void)
{
    oomph_config_t config = oomph_config_default();
    oomph_addr_t *addr = malloc(LIVE * sizeof *addr);
    oomph_stats_t stats;

    config.reserve_bytes = 0;
    if (addr == NULL || oomph_configure(&config) != OOMPH_OK)
        return 1;
    printf("pair_1KiB %.2f\n", pairs(1 << 10));
    printf("pair_1MiB %.2f\n", pairs(1 << 20));
    printf("pair_20MiB %.2f\n", pairs(20 << 20));
    for (size_t i = 0; i < LIVE; i++)
        addr[i] = take(1 << 10);
    printf("pair_1KiB_among_million %.2f\n", pairs(1 << 10));
    printf("random_victim %.2f\n", random_victims(addr, 1 << 10));
    if (oomph_get_stats(0, &stats) != OOMPH_OK)
        return 1;
    printf("record_bytes %.2f\n",
           (double)stats.record_bytes / (double)stats.allocation[0].current);
    free(addr);
    return 0;
}
