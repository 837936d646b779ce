#include "harness.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT_S = 900 }; // of a machine that does much else

// Of the sanitizer, where there is one.
__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

static int run_one(const test_t *test)
{
    int status = 0;

    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(TIMEOUT_S);
        test->run();
        exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    if (WIFSIGNALED(status))
        fprintf(stderr, "%s: signal %d\n", test->name, WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

int run_tests(const test_t *tests, size_t count, int argc, char **argv)
{
    size_t passed = 0, failed = 0;

    // It reads megabytes of libraries, whose pages the children then have already.
    if (__lsan_do_recoverable_leak_check != NULL)
        __lsan_do_recoverable_leak_check();
    for (size_t i = 0; i < count; i++) {
        if (argc > 1 && strcmp(argv[1], tests[i].name) != 0)
            continue;
        if (run_one(&tests[i]) == 0) {
            passed++;
        } else {
            failed++;
            fprintf(stderr, "FAILED %s\n", tests[i].name);
        }
    }
    printf("%zu passed, %zu failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
}

int in_child(void (*run)(void))
{
    int status;

    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        run();
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

uint32_t rng_next(rng_t *rng)
{
    rng->state = rng->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng->state >> 33);
}

uint32_t rng_below(rng_t *rng, uint32_t end)
{
    return rng_next(rng) % end;
}

rng_t rng_seeded(const char *test)
{
    const char *text = getenv("OOMPH_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);

    printf("%s: OOMPH_TEST_SEED=%llu\n", test, (unsigned long long)seed);
    fflush(stdout);
    return (rng_t){seed};
}
