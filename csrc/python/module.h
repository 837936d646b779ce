/* module.h - what the files of the module oomph._C share. */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "oomph.h"
#include "python/beyond.h"

#include <stdatomic.h>

/* ---- types.c */

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

/* ---- Others */

// The counters of a device, as oomph.stats() has them.
PyObject *oomph_stats_dict(const oomph_stats_t *stats);

// What helper.c does: hooks of the core; what Python sets one of them to; its
// beginning, false with an exception; its end, without the GIL.
bool oomph_collect_garbage(bool last, size_t *bytes);
size_t oomph_make_room(int device, size_t want);
PyObject *oomph_set_collector(PyObject *module, PyObject *callable);
PyObject *oomph_set_room_maker(PyObject *module, PyObject *callable);
bool oomph_helper_init(void);
void oomph_helper_stop(void);

// What memory.c does: the hook that lists what is idle between steps.
size_t oomph_idle_blocks(int device, oomph_addr_t **addrs);

// The functions of memory.c, sites.c, stats.c, plain.c, lines.c, objects.c
// and paths.c.
extern PyMethodDef oomph_memory_methods[], oomph_site_methods[], oomph_stats_methods[];
extern PyMethodDef oomph_plain_methods[], oomph_line_methods[], oomph_object_methods[];
extern PyMethodDef oomph_path_methods[];
