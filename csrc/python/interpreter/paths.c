/* paths.c - how some objects are reached from others: the references on the way.
 *
 * gc.get_referrers() looks at all objects for each step outwards. From what a program
 * has names for to what it holds there are far fewer, if modules are left alone, and
 * the globals that functions know.
 * - Objects are visited in the order of their distance, so each path is a shortest one;
 *   of several the one from the earlier root.
 * - No Python code runs meanwhile, so what is met needs no reference to stay alive.
 * - NumPy's arrays of objects hold what they hold without the collector's knowledge,
 * and a table of pandas with them.
 */
#include "python/interpreter/paths.h"

enum {
    FIRST_SIZE = 1 << 12, // a power of two
    ASKED_EACH = 1 << 10, // objects, whether all targets are met
};

typedef struct oomph_node {
    PyObject *object;
    uint32_t from; // the number of the one that holds it; its own: a root
} oomph_node_t;

typedef struct oomph_reach {
    oomph_node_t *nodes; // in the order in which they were met
    uint32_t *table;     // numbers of nodes, plus one, by their addresses; 0: free
    uint32_t count, size, most, visited;
    PyObject *aside;      // is not met now
    PyTypeObject *arrays; // NumPy's; NULL: it is not imported
} oomph_reach_t;

/* ---- What was met */

static size_t place_of(const oomph_reach_t *reach, const PyObject *object)
{
    size_t mask = 2 * (size_t)reach->size - 1;
    size_t place = ((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15ULL >> 32 & mask;

    while (reach->table[place] != 0 &&
           reach->nodes[reach->table[place] - 1].object != object)
        place = (place + 1) & mask;
    return place;
}

// Room for twice as many; false with an exception, and nothing has changed.
static bool grow(oomph_reach_t *reach)
{
    uint32_t size = reach->size ? 2 * reach->size : FIRST_SIZE;
    oomph_node_t *nodes = PyMem_Realloc(reach->nodes, size * sizeof *nodes);
    uint32_t *table = PyMem_Calloc(2 * (size_t)size, sizeof *table);

    if (nodes != NULL)
        reach->nodes = nodes;
    if (nodes == NULL || table == NULL) {
        PyMem_Free(table);
        PyErr_NoMemory();
        return false;
    }
    PyMem_Free(reach->table);
    reach->table = table;
    reach->size = size;
    for (uint32_t i = 0; i < reach->count; i++)
        table[place_of(reach, nodes[i].object)] = i + 1;
    return true;
}

static bool is_array(const oomph_reach_t *reach, PyObject *object)
{
    return reach->arrays != NULL && PyObject_TypeCheck(object, reach->arrays);
}

// Whether a tuple or dict that the collector does not track has arrays: it takes these
// for things that hold nothing.
static bool has_array(const oomph_reach_t *reach, PyObject *object)
{
    Py_ssize_t place = 0;
    PyObject *value;

    if (PyTuple_Check(object)) {
        for (Py_ssize_t i = 0; i < PyTuple_Size(object); i++)
            if (is_array(reach, PyTuple_GetItem(object, i)))
                return true;
    } else if (PyDict_Check(object)) {
        while (PyDict_Next(object, &place, NULL, &value))
            if (is_array(reach, value))
                return true;
    }
    return false;
}

// Whether it may hold anything that the collector knows.
static bool may_hold(const oomph_reach_t *reach, PyObject *object)
{
    return PyObject_GC_IsTracked(object) || is_array(reach, object) ||
           (reach->arrays != NULL && has_array(reach, object));
}

// Notes an object that was not met before; not 0 with an exception, or if there are too
// many.
static int meet(oomph_reach_t *reach, PyObject *object, uint32_t from)
{
    if (!may_hold(reach, object))
        return 0;
    if (reach->count == reach->size && !grow(reach))
        return -1;
    size_t place = place_of(reach, object);
    if (reach->table[place] != 0)
        return 0;
    if (reach->count == reach->most)
        return 1;
    reach->nodes[reach->count] = (oomph_node_t){object, from};
    reach->table[place] = ++reach->count;
    return 0;
}

static int visit(PyObject *object, void *met)
{
    oomph_reach_t *reach = met;

    return object == reach->aside ? 0 : meet(reach, object, reach->visited);
}

// Meets the items of an array's dimension and of those within it; as meet().
static int visit_items(oomph_reach_t *reach, const oomph_buffer_t *view,
                       const char *items, int dimension)
{
    if (dimension == view->ndim) {
        PyObject *item = *(PyObject *const *)(const void *)items;
        return item == NULL ? 0 : visit(item, reach);
    }
    for (Py_ssize_t i = 0; i < view->shape[dimension]; i++) {
        int done = visit_items(reach, view, items + i * view->strides[dimension],
                               dimension + 1);
        if (done != 0)
            return done;
    }
    return 0;
}

static int visit_array(oomph_reach_t *reach, PyObject *array)
{
    oomph_buffer_t view;

    if (oomph_get_buffer(array, &view, OOMPH_BUFFER_FULL_RO) < 0) {
        PyErr_Clear(); // of a type that it does not export, such as dates
        return 0;
    }
    bool holds = view.format != NULL && strcmp(view.format, "O") == 0;
    int done = holds ? visit_items(reach, &view, view.buf, 0) : 0;
    oomph_release_buffer(&view);
    return done;
}

static int visit_object(oomph_reach_t *reach, PyObject *object)
{
    if (PyModule_Check(object))
        return 0;
    if (is_array(reach, object))
        return visit_array(reach, object);
    PyTypeObject *type = Py_TYPE(object);
    traverseproc traverse =
        (traverseproc)(uintptr_t)PyType_GetSlot(type, Py_tp_traverse);
    reach->aside = type == &PyFunction_Type ? PyFunction_GetGlobals(object) : NULL;
    return traverse(object, visit, reach);
}

/* ---- What is asked for */

// Meets all of a sequence as roots; false with an exception.
static bool begin(oomph_reach_t *reach, PyObject *roots)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(roots); i++)
        if (meet(reach, PyTuple_GetItem(roots, i), reach->count) < 0)
            return false;
    return true;
}

// Meets the contexts of all threads as roots: what their variables hold.
static bool begin_at_contexts(oomph_reach_t *reach)
{
    PyThreadState *thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());

    for (; thread != NULL && oomph_layout.minor != 0;
         thread = PyThreadState_Next(thread)) {
        PyObject *context = oomph_thread_context(thread);
        if (context != NULL && Py_TYPE(context) == &PyContext_Type &&
            meet(reach, context, reach->count) < 0)
            return false;
    }
    return true;
}

static bool has_met_all(const oomph_reach_t *reach, PyObject *targets)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(targets); i++)
        if (reach->table[place_of(reach, PyTuple_GetItem(targets, i))] == 0)
            return false;
    return true;
}

// Visits what there is from the first not visited on, until all targets are met; false
// with an exception.
static bool visit_until_met(oomph_reach_t *reach, PyObject *targets)
{
    for (; reach->visited < reach->count; reach->visited++) {
        if (reach->visited % ASKED_EACH == 0 && has_met_all(reach, targets))
            return true;
        int done = visit_object(reach, reach->nodes[reach->visited].object);
        if (done != 0)
            return done > 0; // too many: what was met so far counts
    }
    return true;
}

// The objects from a target to a root; None if it was not met; NULL with an exception.
static PyObject *path_to(const oomph_reach_t *reach, PyObject *target)
{
    uint32_t number = reach->table[place_of(reach, target)];

    if (number == 0)
        Py_RETURN_NONE;
    PyObject *path = PyList_New(0);
    for (uint32_t i = number - 1; path != NULL; i = reach->nodes[i].from) {
        if (PyList_Append(path, reach->nodes[i].object) < 0)
            Py_CLEAR(path);
        else if (reach->nodes[i].from == i)
            break;
    }
    return path;
}

static PyObject *paths_to(const oomph_reach_t *reach, PyObject *targets)
{
    Py_ssize_t count = PyTuple_Size(targets);
    PyObject *paths = PyList_New(count);

    for (Py_ssize_t i = 0; paths != NULL && i < count; i++) {
        PyObject *path = path_to(reach, PyTuple_GetItem(targets, i));
        if (path == NULL)
            Py_CLEAR(paths);
        else
            PyList_SetItem(paths, i, path);
    }
    return paths;
}

// NumPy's type of arrays, borrowed from its module; NULL: it is not imported.
static PyTypeObject *array_type(void)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *numpy = PyDict_GetItemString(modules, "numpy");
    PyObject *type = numpy && PyModule_Check(numpy)
                         ? PyDict_GetItemString(PyModule_GetDict(numpy), "ndarray")
                         : NULL;

    return type && PyType_Check(type) ? (PyTypeObject *)type : NULL;
}

static PyObject *paths(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *targets, *roots, *closed, *found = NULL;
    unsigned int most;

    if (!PyArg_ParseTuple(args, "O!O!O!I:paths", &PyTuple_Type, &targets, &PyTuple_Type,
                          &roots, &PyTuple_Type, &closed, &most))
        return NULL;
    oomph_reach_t reach = {.most = most, .arrays = array_type()};
    bool collects = PyGC_Disable() != 0; // which would run Python code
    if (grow(&reach) && begin(&reach, closed)) {
        reach.visited = reach.count; // these are met, and not visited
        if (begin(&reach, roots) && begin_at_contexts(&reach) &&
            visit_until_met(&reach, targets))
            found = paths_to(&reach, targets);
    }
    PyMem_Free(reach.nodes);
    PyMem_Free(reach.table);
    if (collects)
        PyGC_Enable();
    return found;
}

PyMethodDef oomph_path_methods[] = {
    {"paths", paths, METH_VARARGS,
     "paths(targets, roots, closed, most), three tuples: for each target the objects "
     "on a "
     "shortest way from it to the root that holds it, or None if none does. The "
     "contexts "
     "of threads are roots, too. The closed, modules, and the globals of functions are "
     "not looked into. Gives up after so many objects."},
    {NULL, NULL, 0, NULL},
};
