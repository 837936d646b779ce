/* objects_layout.h - where Python's collector keeps the objects that it knows.
 *
 * The only place that knows of versions. Where `OOMPH_OBJECTS_KNOWN` is 0, as with free
 * threading, the collector has to be asked for a list.
 */
#pragma once
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#if PY_VERSION_HEX >= 0x030a0000 && PY_VERSION_HEX < 0x030e0000 &&                     \
    !defined(Py_GIL_DISABLED) && !defined(PYPY_VERSION)
#define OOMPH_OBJECTS_KNOWN 1
#else
#define OOMPH_OBJECTS_KNOWN 0
#endif

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
