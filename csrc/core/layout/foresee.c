/* foresee.c - a table of at most 32 sizes, looked through: only blocks that a planner
 * calls large are in it. What is beyond is not foreseen, and waits as other blocks do.
 */
#include "core/layout/foresee.h"

bool oomph_foresees(const oomph_foresight_t *foresight, size_t bytes)
{
    if (foresight->min_bytes == 0 || bytes < foresight->min_bytes)
        return false;
    for (size_t i = 0; i < foresight->count; i++)
        if (foresight->sizes[i].bytes == bytes)
            return foresight->sizes[i].now < foresight->sizes[i].expected;
    return false;
}

void oomph_foresight_note(oomph_foresight_t *foresight, size_t bytes)
{
    size_t i = 0;

    while (i < foresight->count && foresight->sizes[i].bytes != bytes)
        i++;
    if (i == OOMPH_FORESEE_MAX)
        return;
    if (i == foresight->count) {
        foresight->sizes[i].bytes = bytes;
        foresight->sizes[i].expected = foresight->sizes[i].now = 0;
        foresight->sizes[i].before = 0;
        foresight->count++;
    }
    foresight->sizes[i].now++;
}

void oomph_foresight_turn(oomph_foresight_t *foresight)
{
    size_t kept = 0;

    for (size_t i = 0; i < foresight->count; i++) {
        uint32_t now = foresight->sizes[i].now, before = foresight->sizes[i].before;
        uint32_t most = now > before ? now : before;
        if (most == 0)
            continue;
        foresight->sizes[kept] = foresight->sizes[i];
        foresight->sizes[kept].expected = most;
        foresight->sizes[kept].before = foresight->sizes[i].now;
        foresight->sizes[kept++].now = 0;
    }
    foresight->count = kept;
}
