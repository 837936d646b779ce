/* predict_host.c - counts per size in a table of at most 32, searched from end to end.
 *
 * Only blocks that a planner calls large are in it, so there are few sizes. Any beyond
 * are not predicted and wait as other blocks do.
 */
#include "core/layout/predict_host.h"

bool oomph_host_is_predicted(const oomph_host_prediction_t *prediction, size_t bytes)
{
    if (prediction->min_bytes == 0 || bytes < prediction->min_bytes)
        return false;
    for (size_t i = 0; i < prediction->count; i++)
        if (prediction->sizes[i].bytes == bytes)
            return prediction->sizes[i].now < prediction->sizes[i].expected;
    return false;
}

void oomph_host_prediction_note(oomph_host_prediction_t *prediction, size_t bytes)
{
    size_t i = 0;

    while (i < prediction->count && prediction->sizes[i].bytes != bytes)
        i++;
    if (i == OOMPH_PREDICTED_SIZES)
        return;
    if (i == prediction->count) {
        prediction->sizes[i].bytes = bytes;
        prediction->sizes[i].expected = prediction->sizes[i].now = 0;
        prediction->sizes[i].before = 0;
        prediction->count++;
    }
    prediction->sizes[i].now++;
}

void oomph_host_prediction_end_step(oomph_host_prediction_t *prediction)
{
    size_t kept = 0;

    for (size_t i = 0; i < prediction->count; i++) {
        uint32_t now = prediction->sizes[i].now, before = prediction->sizes[i].before;
        uint32_t most = now > before ? now : before;
        if (most == 0)
            continue;
        prediction->sizes[kept] = prediction->sizes[i];
        prediction->sizes[kept].expected = most;
        prediction->sizes[kept].before = prediction->sizes[i].now;
        prediction->sizes[kept++].now = 0;
    }
    prediction->count = kept;
}
