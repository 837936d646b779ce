/* harness.h - what the C tests of the core share.
 *
 * Each test runs in a child process of its own, so that each finds the allocator and
 * the simulated GPU as new.
 */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

typedef struct test {
    const char *name;
    void (*run)(void);
} test_t;

#define TEST(name) {#name, name}

// Runs every test; gives main()'s result. An argument chooses one by name.
int run_tests(const test_t *tests, size_t count, int argc, char **argv);

// Runs it in a child and gives its exit code, or 128 + the signal that ended it.
int in_child(void (*run)(void));

// A generator that repeats itself for the same seed.
typedef struct rng {
    uint64_t state;
} rng_t;

uint32_t rng_next(rng_t *rng);
// A number below `end`, which is greater than 0.
uint32_t rng_below(rng_t *rng, uint32_t end);
// The seed of OOMPH_TEST_SEED, or a new one; prints it.
rng_t rng_seeded(const char *test);
