/* race.h - the search for work that is not ordered: two streams must not use the same
 * bytes side by side if one of them writes, and none may use what is not mapped. Work
 * behind a wait for a value that is not there yet is not running: it is looked at when
 * it starts. The caller holds the driver's lock.
 *
 * New work is compared with all pending work of other streams that touches memory. Only
 * where ranges meet does a search follow what the new work waits for, backwards through
 * the streams; it looks at each pending operation once, O(n). Vector clocks would make
 * every submission pay for every stream, though ranges seldom meet.
 */
#pragma once
#include "libcuda/engine/pending.h"

// Reports misuse if `work`, next on `stream`, conflicts with a pending operation that
// it does not wait for. What has completed already is not seen.
void sim_race_report(CUstream stream, const sim_work_t *work);

// The same for an operation that starts, beside what runs, and a fault if its memory is
// not there.
void sim_race_report_start(const sim_operation_t *operation);

// A pending operation that touches the range and that no value holds back, or NULL.
const sim_operation_t *sim_race_find_runner(uint64_t addr, uint64_t bytes);
