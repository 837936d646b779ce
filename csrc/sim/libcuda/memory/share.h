/* share.h - physical memory that other processes use too. The caller holds the driver's
 * lock.
 *
 * Each process simulates cards of its own, and its memory counts on these alone: what
 * is imported takes nothing. The bytes of a process lie in one file (address.h),
 * where a label (foreign.h) says of each exported piece what it is.
 */
#pragma once
#include "libcuda/memory/handle.h"

// A new file descriptor that names the memory to other processes.
CUresult sim_share_export(sim_handle_t *handle, int *descriptor);

// The memory that a descriptor names, with one reference more. Errors: INVALID_VALUE
// (it names none), INVALID_DEVICE (on a device that this process does not see).
CUresult sim_share_import(int descriptor, sim_handle_t **handle);

// The same by plain bytes, for as long as the exporting process lives.
enum { SIM_SHARE_TEXT = 64 };
CUresult sim_share_describe(sim_handle_t *handle, char text[SIM_SHARE_TEXT]);
CUresult sim_share_open(const char text[SIM_SHARE_TEXT], sim_handle_t **handle);
