/* predict_host.h - which large blocks of a step will fall back to the host.
 *
 * A block that one operator needs and that the card cannot hold comes again in the next
 * step. It then goes to the host at once, without waiting for memory that will not be
 * enough.
 *
 * Pure: no driver, no lock, no clock. The caller holds the device lock.
 */
#pragma once
#include "core/base/util.h"

enum { OOMPH_PREDICTED_SIZES = 32 };

typedef struct oomph_host_prediction {
    size_t min_bytes;  // smaller blocks are not predicted; 0: none is
    size_t part_bytes; // of one that is predicted, that lie on the host at least
    size_t count;
    struct {
        size_t bytes;
        // Blocks of this size that fell back to the host: in this step, in the last
        // one, and the most of the two steps before this.
        uint32_t now, before, expected;
    } sizes[OOMPH_PREDICTED_SIZES];
} oomph_host_prediction_t;

// Whether a block of `bytes` that finds no room at once will fall back to the host.
bool oomph_host_is_predicted(const oomph_host_prediction_t *prediction, size_t bytes);
// A block of `bytes` fell back to the host. Sizes beyond OOMPH_PREDICTED_SIZES are not
// noted.
void oomph_host_prediction_note(oomph_host_prediction_t *prediction, size_t bytes);
// A step has ended.
void oomph_host_prediction_end_step(oomph_host_prediction_t *prediction);
