#include "python/sites.h"

#include "python/interpreter/frames.h"
#include "python/stats.h"
#include "python/types.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Start */

static PyObject *sites_start(PyObject *Py_UNUSED(module), PyObject *prefixes)
{
    if (!PyList_Check(prefixes))
        return PyErr_Format(PyExc_TypeError, "a list of strings, not %R",
                            (PyObject *)Py_TYPE(prefixes));
    const char *reason = oomph_frames_start(prefixes);
    return reason == NULL ? Py_NewRef(Py_None) : PyUnicode_FromString(reason);
}

static PyObject *sites_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    oomph_frames_stop();
    Py_RETURN_NONE;
}

static PyObject *call_site(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLong(oomph_call_site(false));
}

// "file:line" of the user's line that this thread executes; "": none is known.
static void write_line(char *text, size_t bytes)
{
    oomph_site_info_t info;

    text[0] = '\0';
    if (oomph_site_info(oomph_frames_site(false), &info) == OOMPH_OK)
        snprintf(text, bytes, "%s:%d", info.file, info.line);
}

static PyObject *line_writer(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromVoidPtr((void *)(uintptr_t)write_line);
}

/* ---- Names */

static PyObject *site_info(PyObject *Py_UNUSED(module), PyObject *arg)
{
    unsigned long site = PyLong_AsUnsignedLong(arg);
    oomph_site_info_t info;

    if (PyErr_Occurred())
        return NULL;
    oomph_status_t status = oomph_site_info((oomph_site_t)site, &info);
    return status == OOMPH_OK
               ? Py_BuildValue("sis", info.file, info.line, info.function)
               : oomph_raise(status);
}

/* ---- Blocks */

// A list of items that `item` makes of the elements of an array.
static PyObject *to_list(size_t count, const void *array,
                         PyObject *(*item)(const void *array, size_t i))
{
    PyObject *list = PyList_New((Py_ssize_t)count);

    for (size_t i = 0; i < count && list != NULL; i++) {
        PyObject *made = item(array, i);
        if (made == NULL)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)i, made);
    }
    return list;
}

static PyObject *build_site(const void *array, size_t i)
{
    const oomph_site_bytes_t *row = (const oomph_site_bytes_t *)array + i;

    return Py_BuildValue("Inn", row->site, (Py_ssize_t)row->bytes,
                         (Py_ssize_t)row->count);
}

static PyObject *list_sites(PyObject *arg, bool at_peak)
{
    oomph_site_bytes_t *rows = NULL;
    size_t capacity = 0, count = 0;
    oomph_status_t status;
    int device;

    if (!oomph_parse_device(arg, &device))
        return NULL;
    do { // until there is room for all
        capacity = count;
        PyMem_Free(rows);
        rows = PyMem_Calloc(capacity + 1, sizeof *rows);
        if (rows == NULL)
            return PyErr_NoMemory();
        status = oomph_live_sites(device, at_peak, rows, capacity, &count);
    } while (status == OOMPH_OK && count > capacity);
    PyObject *list =
        status == OOMPH_OK ? to_list(count, rows, build_site) : oomph_raise(status);
    PyMem_Free(rows);
    return list;
}

static PyObject *live_sites(PyObject *Py_UNUSED(module), PyObject *arg)
{
    return list_sites(arg, false);
}

static PyObject *peak_sites(PyObject *Py_UNUSED(module), PyObject *arg)
{
    return list_sites(arg, true);
}

// Copies of what the walk saw, taken while the core's lock is held.
typedef struct walk {
    oomph_block_info_t *blocks;
    size_t count, capacity;
    size_t min_bytes;
    bool failed;
} walk_t;

static void visit(const oomph_block_info_t *block, void *context)
{
    walk_t *walk = context;

    if (block->state == OOMPH_BLOCK_FREE || block->bytes < walk->min_bytes)
        return;
    if (walk->count == walk->capacity) {
        size_t capacity = walk->capacity == 0 ? 1024 : walk->capacity * 2;
        oomph_block_info_t *blocks = realloc(walk->blocks, capacity * sizeof *blocks);
        if (blocks == NULL) {
            walk->failed = true;
            return;
        }
        walk->blocks = blocks;
        walk->capacity = capacity;
    }
    walk->blocks[walk->count++] = *block;
}

static PyObject *build_block(const void *array, size_t i)
{
    const oomph_block_info_t *block = (const oomph_block_info_t *)array + i;

    return Py_BuildValue(
        "KnnIiK(KK)N", (unsigned long long)block->addr, (Py_ssize_t)block->bytes,
        (Py_ssize_t)block->requested_bytes, block->site, (int)block->tier,
        (unsigned long long)(uintptr_t)block->stream,
        (unsigned long long)block->pool.first, (unsigned long long)block->pool.second,
        PyBool_FromLong(block->state == OOMPH_BLOCK_DEFERRED));
}

static PyObject *live_blocks(PyObject *Py_UNUSED(module), PyObject *args)
{
    int device;
    Py_ssize_t min_bytes = 0;
    walk_t walk = {0};

    if (!PyArg_ParseTuple(args, "i|n:live_blocks", &device, &min_bytes))
        return NULL;
    walk.min_bytes = (size_t)min_bytes;
    oomph_status_t status = oomph_walk(device, visit, &walk);
    PyObject *list = status != OOMPH_OK ? oomph_raise(status)
                     : walk.failed      ? PyErr_NoMemory()
                                        : to_list(walk.count, walk.blocks, build_block);
    free(walk.blocks);
    return list;
}

static PyObject *site_of(PyObject *Py_UNUSED(module), PyObject *arg)
{
    unsigned long long addr = PyLong_AsUnsignedLongLong(arg);
    oomph_block_info_t info;

    if (PyErr_Occurred())
        return NULL;
    oomph_status_t status = oomph_lookup(addr, &info);
    return status == OOMPH_OK ? PyLong_FromUnsignedLong(info.site)
                              : oomph_raise(status);
}

/* ---- Who holds the memory, now and when it was short */

// The columns as bytes: addresses, sizes, sites, marks.
static PyObject *build_block_list(const oomph_block_list_t *blocks)
{
    Py_ssize_t count = (Py_ssize_t)blocks->count;

    return Py_BuildValue(
        "y#y#y#y#", (const char *)blocks->addrs,
        count * (Py_ssize_t)sizeof *blocks->addrs, (const char *)blocks->bytes,
        count * (Py_ssize_t)sizeof *blocks->bytes, (const char *)blocks->sites,
        count * (Py_ssize_t)sizeof *blocks->sites, (const char *)blocks->marks,
        count * (Py_ssize_t)sizeof *blocks->marks);
}

static PyObject *list_blocks(PyObject *Py_UNUSED(module), PyObject *arg)
{
    oomph_block_list_t taken;
    int device;

    if (!oomph_parse_device(arg, &device))
        return NULL;
    oomph_status_t status = oomph_list_blocks(device, &taken);
    if (status != OOMPH_OK)
        return oomph_raise(status);
    PyObject *built = build_block_list(&taken);
    free(taken.addrs);
    return built;
}

static PyObject *take_oom(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    static oomph_oom_t taken; // large; guarded by the GIL

    if (!oomph_take_oom(&taken))
        Py_RETURN_NONE;
    PyObject *built = Py_BuildValue(
        "{s:s,s:i,s:n,s:I,s:s,s:N,s:N,s:n,s:n,s:N,s:N}", "message", taken.message,
        "device", taken.request.device, "requested_bytes",
        (Py_ssize_t)taken.request.bytes, "site", taken.request.site, "doing",
        taken.doing, "autocast", PyBool_FromLong(taken.autocast), "grad",
        PyBool_FromLong(taken.grad), "free_bytes", (Py_ssize_t)taken.free_bytes,
        "total_bytes", (Py_ssize_t)taken.total_bytes, "stats",
        oomph_stats_dict(&taken.stats), "block_list", build_block_list(&taken.blocks));
    free(taken.blocks.addrs);
    return built;
}

static PyObject *build_unmapped(const void *array, size_t i)
{
    const oomph_unmapped_t *row = (const oomph_unmapped_t *)array + i;

    return Py_BuildValue("KnnKiIILL", (unsigned long long)row->addr,
                         (Py_ssize_t)row->bytes, (Py_ssize_t)row->requested_bytes,
                         (unsigned long long)(uintptr_t)row->stream, (int)row->tier,
                         row->taken_at, row->freed_at, (long long)row->freed_ns,
                         (long long)row->unmapped_ns);
}

static PyObject *unmapped(PyObject *Py_UNUSED(module), PyObject *arg)
{
    int device;
    size_t count = 0;

    if (!oomph_parse_device(arg, &device))
        return NULL;
    oomph_unmapped_t *rows = PyMem_Calloc(OOMPH_UNMAPPED_KEPT, sizeof *rows);
    if (rows == NULL)
        return PyErr_NoMemory();
    oomph_status_t status = oomph_unmapped(device, rows, OOMPH_UNMAPPED_KEPT, &count);
    PyObject *list =
        status == OOMPH_OK ? to_list(count, rows, build_unmapped) : oomph_raise(status);
    PyMem_Free(rows);
    return list;
}

PyMethodDef oomph_site_methods[] = {
    {"block_list", list_blocks, METH_O,
     "The blocks in use of a device: addresses, sizes, sites, marks, each as bytes."},
    {"take_oom", take_oom, METH_NOARGS,
     "The allocation that failed last, with the blocks in use then; None: none "
     "since."},
    {"sites_start", sites_start, METH_O,
     "Begins to know which line allocates; a list of prefixes of libraries' files. "
     "Gives None, or why no line can be known."},
    {"sites_stop", sites_stop, METH_NOARGS, "No line is known from now on."},
    {"call_site", call_site, METH_NOARGS, "The site of the line that calls."},
    {"line_writer", line_writer, METH_NOARGS,
     "The address of a C function (char *text, size_t bytes) that says which line its "
     "thread executes, and needs no GIL."},
    {"site_info", site_info, METH_O, "File, line and function of a site."},
    {"site_of", site_of, METH_O, "The site of the block that contains an address."},
    {"live_sites", live_sites, METH_O,
     "What the sites hold on a device: a list of (site, bytes, count)."},
    {"peak_sites", peak_sites, METH_O,
     "The same when they held most together, since PyTorch's peaks were reset."},
    {"unmapped", unmapped, METH_O,
     "The blocks that guard unmapped last on a device, newest first: a list of "
     "(address, bytes, requested bytes, stream, tier, site that took it, site that "
     "freed it, when it was freed, when it was unmapped; in ns)."},
    {"live_blocks", live_blocks, METH_VARARGS,
     "The blocks in use on a device, of at least so many bytes: a list of (address, "
     "bytes, requested bytes, site, tier, stream, pool, whether it is freed but may "
     "still be in use)."},
    {NULL, NULL, 0, NULL},
};
