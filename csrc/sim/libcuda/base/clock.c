#include "libcuda/base/clock.h"

static uint64_t now_ns;

uint64_t sim_clock_ns(void)
{
    return now_ns;
}

void sim_clock_move_to(uint64_t ns)
{
    if (ns > now_ns)
        now_ns = ns;
}

void sim_clock_reset(void)
{
    now_ns = 0;
}
