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
 *
 * What came since an earlier walk comes after its mark: new objects are put at the end
 * of the youngest ring, that ring at the end of the next when it is collected, and
 * within one the collector moves to the end what only other objects refer to, so never
 * a mark. But a full collection joins the rings in another order, and so does a
 * gc.freeze() that is undone: after the one all are walked, after the other what came
 * just before may be missed.
 */
#include "python/interpreter/objects.h"

enum {
    STARTS_MAX = 16, // modules
    WALKS_MAX = OOMPH_GENERATIONS + STARTS_MAX,
    MARKS = 4096,        // a power of two
    NEWER_MAX = 1 << 16, // so many are walked one by one: else all, from several places
};

static const char MARK_NAME[] = "oomph._C.mark";

typedef struct oomph_search {
    PyTypeObject **kinds;
    Py_ssize_t kind_count;
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

    if (object == search->found) // or it would hold itself for ever
        return true;
    for (Py_ssize_t i = 0; i < search->kind_count; i++)
        if (PyType_IsSubtype(kind, search->kinds[i]))
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
    if (!oomph_layout.has_rings)
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

// The number of the generation with this head; OOMPH_GENERATIONS: it is no head.
static int generation_of(const oomph_collector_t *collector, const oomph_link_t *link)
{
    int number = 0;

    while (number < OOMPH_GENERATIONS && link != &collector->generations[number].head)
        number++;
    return number;
}

// Meets what came after a mark. 1: done, 0: these are too many, -1 with an exception.
static int walk_newer(oomph_collector_t *collector, const oomph_link_t *mark,
                      const oomph_search_t *search)
{
    oomph_link_t *link = mark->next;

    for (int i = 0; i < NEWER_MAX; i++, link = link->next) {
        int ended = generation_of(collector, link);
        if (ended == 0)
            return 1;
        if (ended < OOMPH_GENERATIONS) // on with the next younger one
            link = &collector->generations[ended - 1].head;
        else if (!meet(search, oomph_object_of(link)))
            return -1;
    }
    return 0;
}

/* ---- The list */

static bool walk_list(const oomph_search_t *search)
{
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *objects = gc ? PyObject_CallMethod(gc, "get_objects", NULL) : NULL;
    bool done = objects != NULL;

    for (Py_ssize_t i = 0; done && i < PyList_Size(objects); i++)
        done = meet(search, PyList_GetItem(objects, i));
    Py_XDECREF(objects);
    Py_XDECREF(gc);
    return done;
}

/* ---- Marks: an object that the collector knows, and how often it had collected all */

static PyObject *object_of(PyObject *mark)
{
    return PyCapsule_GetPointer(mark, MARK_NAME);
}

static void free_mark(PyObject *mark)
{
    Py_XDECREF(object_of(mark));
}

static void *collections(const oomph_collector_t *collector)
{
    return (void *)collector->collections[OOMPH_GENERATIONS - 1].count;
}

// Marks now by a new object; NULL with an exception.
static PyObject *new_mark(void)
{
    PyObject *object = PyList_New(0);
    PyObject *mark = object ? PyCapsule_New(object, MARK_NAME, free_mark) : NULL;

    if (mark == NULL) {
        Py_XDECREF(object);
        return NULL;
    }
    oomph_collector_t *collector = rings(object);
    if (collector != NULL && PyCapsule_SetContext(mark, collections(collector)) < 0)
        Py_CLEAR(mark);
    return mark;
}

/* ---- What is asked for */

static bool walk_some(const oomph_search_t *search, PyObject *now, PyObject *since)
{
    oomph_collector_t *collector = rings(object_of(now));

    if (collector == NULL)
        return walk_list(search);
    if (since != NULL && PyCapsule_GetContext(since) == collections(collector)) {
        int done = walk_newer(collector, oomph_link_of(object_of(since)), search);
        if (done != 0)
            return done > 0;
        if (PyList_SetSlice(search->found, 0, PY_SSIZE_T_MAX, NULL) < 0)
            return false;
    }
    return walk_rings(collector, search);
}

// The types of a tuple, which keeps them, in an array to be freed; NULL with an
// exception.
static PyTypeObject **types_in(PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    PyTypeObject **types = PyMem_Calloc((size_t)count, sizeof(void *));

    if (types == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count && types != NULL; i++) {
        types[i] = (PyTypeObject *)PyTuple_GetItem(tuple, i);
        if (!PyType_Check((PyObject *)types[i])) {
            PyErr_SetString(PyExc_TypeError, "instances() takes types");
            PyMem_Free(types);
            types = NULL;
        }
    }
    return types;
}

// What is found, with a mark of now; NULL with an exception.
static PyObject *find_some(oomph_search_t *search, PyObject *since)
{
    search->found = PyList_New(0);
    PyObject *now = search->found ? new_mark() : NULL;

    if (now != NULL && walk_some(search, now, since))
        return Py_BuildValue("NN", search->found, now);
    Py_XDECREF(search->found);
    Py_XDECREF(now);
    return NULL;
}

static PyObject *instances(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *kinds, *since = NULL;

    if (!PyArg_ParseTuple(args, "O!|O:instances", &PyTuple_Type, &kinds, &since))
        return NULL;
    if (since == Py_None)
        since = NULL;
    if (since != NULL && object_of(since) == NULL)
        return NULL;
    oomph_search_t search = {.kinds = types_in(kinds),
                             .kind_count = PyTuple_Size(kinds)};
    PyObject *found = search.kinds != NULL ? find_some(&search, since) : NULL;
    PyMem_Free(search.kinds);
    return found;
}

static PyObject *newer(PyObject *Py_UNUSED(module), PyObject *mark)
{
    PyTypeObject *all = &PyBaseObject_Type;
    PyObject *since = object_of(mark);
    oomph_search_t search = {
        .kinds = &all, .kind_count = 1, .found = since ? PyList_New(0) : NULL};
    oomph_collector_t *collector = search.found ? rings(search.found) : NULL;
    int done = search.found ? 0 : -1;

    if (collector != NULL && PyCapsule_GetContext(mark) == collections(collector))
        done = walk_newer(collector, oomph_link_of(since), &search);
    if (done > 0)
        return search.found;
    Py_XDECREF(search.found);
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

PyMethodDef oomph_object_methods[] = {
    {"instances", instances, METH_VARARGS,
     "instances(kinds, mark=None): the objects that Python's collector knows whose "
     "types "
     "are among these, or derive from one, in no particular order, and a mark of now. "
     "With an earlier mark at least those that came since."},
    {"newer", newer, METH_O,
     "newer(mark): all objects that came since, and are still there; None if it cannot "
     "be "
     "known, as after a collection of all, or if they are many."},
    {NULL, NULL, 0, NULL},
};
