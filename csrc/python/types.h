/* types.h - what comes in from Python and what goes out, for all of oomph._C. Who calls
 * has the GIL, unless it says otherwise.
 */
#pragma once
#include "oomph.h"
#include "python/interpreter/beyond.h"

#include <stdatomic.h>

extern PyObject *oomph_driver_error; // oomph._C.DriverError, once there is a module

// The only place where a status becomes a Python exception. Gives NULL.
PyObject *oomph_raise(oomph_status_t status);
// What a function gives that has nothing to give.
PyObject *oomph_none_or_raise(oomph_status_t status);

// Reads the index of a device; false with an exception if there can be none such.
bool oomph_parse_device(PyObject *arg, int *device);

// What the main thread calls with (device, bytes), some time after it was noted. A
// report that fails disturbs nobody.
typedef struct oomph_listener {
    PyObject *callable; // guarded by the GIL
    atomic_int device;  // of what was noted last
    _Atomic(size_t) bytes;
} oomph_listener_t;
// Gives None.
PyObject *oomph_listener_set(oomph_listener_t *listener, PyObject *callable);
// In any thread, which need not have the GIL and does not wait for it.
void oomph_listener_note(oomph_listener_t *listener, int device, size_t bytes);

// Whether this thread keeps the GIL while it waits for the GPU.
extern _Thread_local bool oomph_keeps_gil;
