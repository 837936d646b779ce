/* gate.h - a time in which no known stream of a device does anything.
 *
 * Every known stream gets, in one piece, a mark that all before it has finished and a
 * wait for a flag in host memory. Once all marks are there nothing runs, and what
 * others queue meanwhile runs when the flag is set. That never fails, and takes no
 * call.
 *
 * One gate at a time. The caller holds the device lock from before it is closed until
 * it is open again. Nothing here waits for long: what takes too long gives up, and the
 * gate is open then.
 */
#pragma once
#include "stream.h"

#include <pthread.h>

typedef enum oomph_gate_state {
    OOMPH_GATE_OPEN,
    OOMPH_GATE_CLOSED, // a thread of its own opens it if a call does not return
    OOMPH_GATE_KEPT,   // only its owner opens it
} oomph_gate_state_t;

typedef struct oomph_gate {
    const oomph_streams_t *streams;
    oomph_addr_t flags;    // page-locked words, kept for ever; 0: not made yet
    oomph_stream_t copier; // for our copies; NULL: not made yet
    oomph_event_t event;   // of these; NULL: not made yet
    uint32_t turn;         // how often the gate was closed
    int64_t used_count;    // windows that were used to their end
    int64_t missed_count;  // windows given up since something took too long
    int64_t closed_ns;     // time that streams were held, of all windows

    pthread_t guard; // the thread that opens it if its owner is stuck
    pthread_mutex_t lock;
    pthread_cond_t changed; // the state
    // Guarded by `lock`:
    bool guarded, stopping; // there is a guard; there shall be none
    oomph_gate_state_t state;
    int64_t closed_at_ns, late_at_ns; // on the clock of oomph_now_ns()
} oomph_gate_t;

void oomph_gate_init(oomph_gate_t *gate, const oomph_streams_t *streams);
// Ends the thread. No gate closes after that.
void oomph_gate_stop(oomph_gate_t *gate);

// Makes what a gate needs, and looks whether every stream can be held. Errors:
// OOMPH_ERR_STATE if one cannot, OOMPH_ERR_NO_MEMORY, OOMPH_ERR_DRIVER.
oomph_status_t oomph_gate_prepare(oomph_gate_t *gate);

// Closes the gate and waits until nothing runs. What captures must not be known.
// Errors, after which it is open: as above; OOMPH_ERR_STATE also if work went on for
// too long.
oomph_status_t oomph_gate_close(oomph_gate_t *gate);

// Copies while the gate is closed, and waits until that is done. Errors, after which
// the gate is open and no copy is under way: OOMPH_ERR_STATE if the copies took too
// long, OOMPH_ERR_DRIVER.
oomph_status_t oomph_gate_copy(oomph_gate_t *gate, const oomph_copy_t *copies,
                               size_t count);

// From now on it stays closed until oomph_gate_open(). Errors: OOMPH_ERR_STATE if it is
// open by now.
oomph_status_t oomph_gate_keep(oomph_gate_t *gate);

// Opens the gate if it is closed.
void oomph_gate_open(oomph_gate_t *gate);
