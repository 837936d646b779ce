/* session.h - the driver in this process: whether it was initialised, and the card,
 * which is read when the driver is first used.
 */
#pragma once
#include "libcuda/base/lock.h"

typedef enum sim_phase {
    SIM_PHASE_NEW, // nobody called cuInit yet
    SIM_PHASE_INITIALISED,
    SIM_PHASE_FORKED, // the child of a process that used CUDA
    SIM_PHASE_DEINITIALISED,
} sim_phase_t;

// Takes the lock, and reads the card at first use. False if the card's description is
// wrong; the lock is held all the same.
bool sim_lock(void);

// Whether somebody is to be called before a device is used.
bool sim_awaits_use(void);

// A device is about to be used: calls what oomph_sim_before_use() was given. The caller
// does not hold the lock.
void sim_begin_use(void);

// The caller holds the lock.
sim_phase_t sim_phase(void);

// After this, calls no longer return CUDA_ERROR_NOT_INITIALIZED.
void sim_mark_initialised(void);

void sim_session_reset(void);
