/* objects.c - the instances of some types, of all objects that Python's collector
 * knows.
 *
 * A filter of gc.get_objects() would do, but each of some hundred thousand objects is
 * waited for twice, as memory gives them one after the other.
 * - The collector's rings are walked themselves: no list is made of what is not wanted.
 * - They are walked from several places at once, so that the waits overlap. Such places
 *   are modules, which are spread over the rings; each walk ends where another began.
 * - What gc.freeze() has set aside is in a ring of its own that gc.get_objects() leaves
 *   out, and a module may be in that one: then the list is asked for, after all.
 */
#include "python/module.h"
#include "python/objects_layout.h"

enum {
    STARTS_MAX = 16, // modules
    WALKS_MAX = OOMPH_GENERATIONS + STARTS_MAX,
    MARKS = 4096, // a power of two
};

typedef struct oomph_search {
    PyObject *kinds; // a tuple of types
    PyObject *found; // a list
} oomph_search_t;

typedef struct oomph_walks {
    int count;
    oomph_link_t *ends[WALKS_MAX]; // where they begin: a ring's head, or a module
    bool marks[MARKS];             // false: no end has such an address
} oomph_walks_t;

// Notes an object if it is wanted; false with an exception.
static bool meet(const oomph_search_t *search, PyObject *object)
{
    PyTypeObject *kind = Py_TYPE(object);

    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(search->kinds); i++)
        if (PyType_IsSubtype(kind, (PyTypeObject *)PyTuple_GET_ITEM(search->kinds, i)))
            return PyList_Append(search->found, object) == 0;
    return true;
}

/* ---- The rings */

static size_t mark_of(const oomph_link_t *link)
{
    return (uintptr_t)link / sizeof *link % MARKS;
}

static bool is_end(const oomph_walks_t *walks, const oomph_link_t *link)
{
    if (!walks->marks[mark_of(link)])
        return false;
    for (int i = 0; i < walks->count; i++)
        if (walks->ends[i] == link)
            return true;
    return false;
}

static void begin(oomph_walks_t *walks, oomph_link_t *end)
{
    walks->ends[walks->count++] = end;
    walks->marks[mark_of(end)] = true;
}

// Begins at modules here and there, and meets these; false with an exception.
static bool begin_at_modules(oomph_walks_t *walks, const oomph_search_t *search)
{
    PyObject *modules = PyImport_GetModuleDict(), *name, *module;
    Py_ssize_t apart = PyDict_Size(modules) / STARTS_MAX + 1, place = 0;

    for (Py_ssize_t i = 0; PyDict_Next(modules, &place, &name, &module); i++) {
        if (i % apart != 0 || !PyObject_GC_IsTracked(module) ||
            is_end(walks, oomph_link_of(module)))
            continue;
        begin(walks, oomph_link_of(module));
        if (!meet(search, module))
            return false;
    }
    return true;
}

// A step of each in turn, until all have ended; false with an exception.
static bool walk(const oomph_walks_t *walks, const oomph_search_t *search)
{
    oomph_link_t *at[WALKS_MAX];
    int left = walks->count;

    for (int i = 0; i < left; i++)
        at[i] = walks->ends[i]->next;
    while (left > 0)
        for (int i = 0; i < left; i++) {
            oomph_link_t *link = at[i];
            if (is_end(walks, link)) {
                at[i--] = at[--left];
                continue;
            }
            at[i] = link->next;
            __builtin_prefetch(link->next);
            if (!meet(search, oomph_object_of(link)))
                return false;
        }
    return true;
}

// The collector's rings, if they are where they are expected, and nothing is frozen. An
// object that was just made is the last of the youngest: next comes the head.
static oomph_collector_t *rings(PyObject *newest)
{
    if (!OOMPH_OBJECTS_KNOWN)
        return NULL;
    oomph_link_t *head = oomph_link_of(newest)->next;
    oomph_collector_t *collector = (oomph_collector_t *)(void *)head;
    bool is_known = collector->youngest == head &&
                    collector->permanent.head.next == &collector->permanent.head;
    return is_known ? collector : NULL;
}

static bool walk_rings(oomph_collector_t *collector, const oomph_search_t *search)
{
    oomph_walks_t walks = {0};

    for (int i = 0; i < OOMPH_GENERATIONS; i++)
        begin(&walks, &collector->generations[i].head);
    return begin_at_modules(&walks, search) && walk(&walks, search);
}

/* ---- The list */

static bool walk_list(const oomph_search_t *search)
{
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *objects = gc ? PyObject_CallMethod(gc, "get_objects", NULL) : NULL;
    bool done = objects != NULL;

    for (Py_ssize_t i = 0; done && i < PyList_GET_SIZE(objects); i++)
        done = meet(search, PyList_GET_ITEM(objects, i));
    Py_XDECREF(objects);
    Py_XDECREF(gc);
    return done;
}

static PyObject *instances(PyObject *Py_UNUSED(module), PyObject *args)
{
    oomph_search_t search = {.kinds = args};

    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++)
        if (!PyType_Check(PyTuple_GET_ITEM(args, i))) {
            PyErr_SetString(PyExc_TypeError, "instances() takes types");
            return NULL;
        }
    search.found = PyList_New(0);
    if (search.found == NULL)
        return NULL;
    oomph_collector_t *collector = rings(search.found);
    bool done = collector != NULL ? walk_rings(collector, &search) : walk_list(&search);
    if (!done)
        Py_CLEAR(search.found);
    return search.found;
}

PyMethodDef oomph_object_methods[] = {
    {"instances", instances, METH_VARARGS,
     "The objects that Python's collector knows whose types are among these, or derive "
     "from one, in no particular order."},
    {NULL, NULL, 0, NULL},
};
