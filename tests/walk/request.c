/* request.c - one request that climbs the whole ladder, function by function.
 *
 * On a full card a block falls back to the host. Each function of the core that is
 * entered on the way is printed, for tests/test_walk.py: its address, and how many
 * others it was called by, one by the other.
 */
#include "card.h"

#include <stdio.h>

enum { CALLS_MAX = 1 << 14 };

static void *entered[CALLS_MAX];
static int depth[CALLS_MAX], depth_now;
static size_t entered_count;
static bool follows;

__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *function,
                                                                      void *caller)
{
    (void)caller;
    if (!follows || entered_count == CALLS_MAX)
        return;
    depth[entered_count] = depth_now++;
    entered[entered_count++] = function;
}

__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *function,
                                                                     void *caller)
{
    (void)function;
    (void)caller;
    depth_now -= follows;
}

int main(void)
{
    oomph_config_t config = test_config();

    config.host_limit_bytes = 64 * MIB;
    start_card("64MiB,context=0", &config);
    oomph_stream_t other = new_stream();
    take(40 * MIB, NULL);
    oomph_addr_t hole = take(8 * MIB, NULL);
    take(16 * MIB, NULL);
    give(hole);
    follows = true;
    take(20 * MIB, other); // looked up, which the last request's stream is not
    follows = false;
    CHECK(stats_of(0).rescues == 1 && entered_count < CALLS_MAX);
    for (size_t i = 0; i < entered_count; i++)
        printf("%p %d\n", entered[i], depth[i]);
    return 0;
}
