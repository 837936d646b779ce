/* Replays a recorded step through the core's own interface. Arguments: the trace, turns
 * to warm up, turns to measure. Prints the best time of a turn. */
#include "oomph.h"
#include "trace.h"

#include <time.h>

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void replay(int from, int to)
{
    for (int i = from; i < to; i++) {
        const event_t *event = &events[i];
        oomph_addr_t addr = (oomph_addr_t)(uintptr_t)slots[event->slot];
        if (event->kind == 'f') {
            oomph_free(addr, NULL);
            slots[event->slot] = NULL;
            continue;
        }
        oomph_request_t request = {.bytes = event->bytes, .stream_lives = true};
        if (oomph_malloc(&request, &addr) != OOMPH_OK) {
            fprintf(stderr, "%s\n", oomph_error_detail());
            exit(1);
        }
        slots[event->slot] = (void *)(uintptr_t)addr;
    }
}

// A name of its own, so that instructions can be counted inside of it alone.
__attribute__((noinline)) void replay_step(void);
__attribute__((noinline)) void replay_step(void)
{
    replay(step_begin, event_count);
    oomph_step();
}

int main(int argc, char **argv)
{
    oomph_config_t config = oomph_config_default();
    double best = 1e18;

    if (argc != 4)
        return 2;
    config.reserve_bytes = 0;
    if (oomph_configure(&config) != OOMPH_OK)
        return 1;
    read_trace(argv[1]);
    replay(0, step_begin);
    int unmatched = close_the_circle();
    for (int i = 0; i < atoi(argv[2]); i++) {
        replay(step_begin, event_count);
        oomph_step();
    }
    for (int i = 0; i < atoi(argv[3]); i++) {
        double start = now_ns();
        replay_step();
        double ns = now_ns() - start;
        best = ns < best ? ns : best;
    }
    printf("ns %.0f\nevents %d\nunmatched %d\n", best, event_count - step_begin,
           unmatched);
    return 0;
}
