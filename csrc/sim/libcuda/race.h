/* race.h - the search for work that is not ordered: two streams must not use the same
 * bytes side by side if one of them writes. The caller holds the driver's lock.
 */
#pragma once
#include "queue.h"

// Reports misuse if `work`, next on `stream`, conflicts with a pending operation that
// it does not wait for. What has completed already is not seen.
void sim_race_report(CUstream stream, const sim_work_t *work);
