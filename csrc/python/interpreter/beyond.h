/* beyond.h - Python.h, and what oomph._C uses of Python beyond the limited API.
 *
 * One oomph._C serves each Python from 3.10 on. Functions that all of them export, and
 * none declares for it, are declared here; those that some lack are weak. Where a
 * Python keeps what it has no function for is in a table (beyond.c), of which the row
 * of the Python that runs is found at the start and tried against what Python itself
 * says.
 */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* ---- Declared for no limited API, exported by all */

#define OOMPH_WEAK __attribute__((weak))

typedef int (*oomph_tracer_t)(PyObject *, PyFrameObject *, int, PyObject *);
typedef int (*oomph_code_watcher_t)(int event, PyCodeObject *code);

enum { // `what` of a tracer
    OOMPH_TRACE_CALL = 0,
    OOMPH_TRACE_LINE = 2,
    OOMPH_TRACE_RETURN = 3,
    OOMPH_CODE_DESTROYED = 1, // the event of a watcher
};

// Py_buffer, which the limited API has from 3.11 on.
typedef struct oomph_buffer {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} oomph_buffer_t;

enum { OOMPH_BUFFER_FULL_RO = 0x011c }; // PyBUF_FULL_RO

int oomph_get_buffer(PyObject *object, oomph_buffer_t *view,
                     int flags) __asm__("PyObject_GetBuffer");
void oomph_release_buffer(oomph_buffer_t *view) __asm__("PyBuffer_Release");

extern PyTypeObject PyCode_Type, PyContext_Type, PyFunction_Type;
int PyGILState_Check(void);
PyThreadState *PyInterpreterState_ThreadHead(PyInterpreterState *interpreter);
PyThreadState *PyThreadState_Next(PyThreadState *thread);
PyFrameObject *PyFrame_GetBack(PyFrameObject *frame);
int PyCode_Addr2Line(PyCodeObject *code, int offset);
PyObject *PyFunction_GetGlobals(PyObject *function);
void PyEval_SetTrace(oomph_tracer_t tracer, PyObject *argument);
OOMPH_WEAK void PyEval_SetTraceAllThreads(oomph_tracer_t tracer,
                                          PyObject *argument); // from 3.12 on
OOMPH_WEAK int _PyEval_SetTrace(PyThreadState *thread, oomph_tracer_t tracer,
                                PyObject *argument);            // until 3.11
OOMPH_WEAK int PyCode_AddWatcher(oomph_code_watcher_t watcher); // from 3.12 on

// Puts another reference in the place of one, which is given up when that is done.
static inline void oomph_exchange(PyObject **place, PyObject *other)
{
    PyObject *had = *place;

    *place = other;
    Py_XDECREF(had);
}

/* ---- Where each Python keeps what */

// Bytes from the beginning of an object.
typedef struct oomph_layout {
    int minor; // of Python 3
    struct {
        uint16_t top;       // the innermost frame,
        uint16_t top_below; // or what has it at this place; OOMPH_NOWHERE: nothing
        uint16_t tracer, trace_argument, context;
    } thread;
    struct {
        uint16_t back, code, position, owner;
    } frame;
    struct {
        uint16_t file, name;
        uint16_t first; // the first instruction; OOMPH_NOWHERE: a position counts units
    } code;
    bool has_rings; // the collector keeps objects in rings (below)
} oomph_layout_t;

enum { OOMPH_NOWHERE = UINT16_MAX };

// This Python's; `minor` is 0 where it is not in the table, and before the start.
extern oomph_layout_t oomph_layout;

// Finds the row. The caller has the GIL.
void oomph_layout_find(void);

static inline void *oomph_at(const void *object, uint16_t offset)
{
    void *found;

    memcpy(&found, (const char *)object + offset, sizeof found);
    return found;
}

/* ---- Threads */

typedef struct oomph_frame oomph_frame_t;

static inline const oomph_frame_t *oomph_thread_top(const PyThreadState *thread)
{
    const void *top = oomph_at(thread, oomph_layout.thread.top);

    return oomph_layout.thread.top_below == OOMPH_NOWHERE
               ? top
               : oomph_at(top, oomph_layout.thread.top_below);
}

static inline bool oomph_thread_traces(const PyThreadState *thread,
                                       oomph_tracer_t tracer)
{
    return oomph_at(thread, oomph_layout.thread.tracer) == (void *)(uintptr_t)tracer;
}

static inline PyObject *oomph_thread_trace_argument(const PyThreadState *thread)
{
    return oomph_at(thread, oomph_layout.thread.trace_argument);
}

// Its context variables, borrowed; NULL: it has none.
static inline PyObject *oomph_thread_context(const PyThreadState *thread)
{
    return oomph_at(thread, oomph_layout.thread.context);
}

/* ---- Frames and code */

static inline const oomph_frame_t *oomph_frame_back(const oomph_frame_t *frame)
{
    return oomph_at(frame, oomph_layout.frame.back);
}

// From Python 3.14 on the pointer is tagged. NULL for a frame of the interpreter
// itself, between Python and C.
static inline PyObject *oomph_frame_code(const oomph_frame_t *frame)
{
    enum { OWNER_INTERPRETER = 3 };
    uint16_t owner = oomph_layout.frame.owner;
    uintptr_t code = (uintptr_t)oomph_at(frame, oomph_layout.frame.code);

    if (owner != OOMPH_NOWHERE && ((const char *)frame)[owner] >= OWNER_INTERPRETER)
        return NULL;
    return (PyObject *)(code & ~(uintptr_t)3);
}

// Bytes into the code.
static inline int oomph_frame_offset(const oomph_frame_t *frame, const void *code)
{
    enum { UNIT = 2 };
    uint16_t first = oomph_layout.code.first;
    const char *position = oomph_at(frame, oomph_layout.frame.position);

    if (first == OOMPH_NOWHERE)
        return (int)(intptr_t)position * UNIT; // the low half is the count
    return (int)(position - (const char *)code - first);
}

static inline PyObject *oomph_code_file(const void *code)
{
    return oomph_at(code, oomph_layout.code.file);
}

// With the classes and functions that it is in, from Python 3.11 on.
static inline PyObject *oomph_code_name(const void *code)
{
    return oomph_at(code, oomph_layout.code.name);
}

// Has code objects call a function before they are freed; false: they cannot. The
// caller has the GIL.
bool oomph_watch_codes(void (*gone)(const void *code));

/* ---- Text */

// Finds how this Python keeps strings; false with no exception: in no known way.
bool oomph_text_find(void);

// Copies a string as UTF-8, as far as there is room for it. Python's own way may keep a
// copy, which needs the GIL; this does not.
void oomph_text_copy(PyObject *text, char *out, size_t room);

/* ---- The objects that Python's collector knows */

enum { OOMPH_GENERATIONS = 3 };

// PyGC_Head, which comes before each object; a generation is a ring of them.
typedef struct oomph_link oomph_link_t;
struct oomph_link {
    oomph_link_t *next;
    uintptr_t previous; // and flags
};

typedef struct oomph_generation {
    oomph_link_t head; // of no object
    int threshold;
    int count;
} oomph_generation_t;

typedef struct oomph_collections {
    Py_ssize_t count;
    Py_ssize_t collected, uncollectable; // objects
} oomph_collections_t;

// The part of struct _gc_runtime_state that holds the rings.
typedef struct oomph_collector {
    oomph_generation_t generations[OOMPH_GENERATIONS];
    oomph_link_t *youngest;       // the head of the first of them
    oomph_generation_t permanent; // what gc.freeze() has set aside
    oomph_collections_t collections[OOMPH_GENERATIONS];
} oomph_collector_t;

static inline oomph_link_t *oomph_link_of(PyObject *object)
{
    return (oomph_link_t *)(void *)object - 1;
}

static inline PyObject *oomph_object_of(oomph_link_t *link)
{
    return (PyObject *)(void *)(link + 1);
}
