/* engine.h - how long work takes, and what it shares with the work of other streams.
 * The caller holds the driver's lock.
 *
 * Each device has three engines: one copies to it over the link, one copies from it,
 * one computes. What needs an engine takes its turn, in the order in which it became
 * first in its stream.
 *
 * * A copy over the link takes the engine of its direction; one between host memory
 *   and host memory both.
 * * With the rates of a card (gpu= in its description), all kernels take the one that
 *   computes, and so do copies and fills within a device. What a kernel moves to or
 *   from host pages also takes its turn on the link; the kernel ends when that does.
 * * Without rates kernels of different streams run side by side, each as long as it
 *   was said to take.
 */
#pragma once
#include "libcuda/memory/device.h"
#include "libcuda/objects/work.h"

enum { SIM_COPY_START_NS = 1000 };

// Starts the work on the engines of `device`, as early as they are free. Gives the time
// when it ends.
uint64_t sim_engine_start(const sim_work_t *work, const struct CUctx_st *device,
                          uint64_t now_ns);

// What a kernel takes by itself: of an operator whose time oomph_sim_cost() reports, or
// of none.
uint64_t sim_engine_kernel_ns(void);

void sim_engine_usage(int device, oomph_sim_usage_t *usage);

void sim_engine_reset(void);
