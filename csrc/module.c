/* module.c - oomph._C: the core's functions as Python sees them.
 *
 * Types in and out, one place where a status becomes an exception, and the two things
 * that only Python can do for the core: give up the GIL before waiting for the GPU, and
 * log. Nothing here needs PyTorch.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "frames.h"
#include "module.h"
#include "oomph.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

/* ---- Errors */

static PyObject *driver_error; // oomph._C.DriverError

// The only place where a status becomes a Python exception. Gives NULL.
PyObject *oomph_raise(oomph_status_t status)
{
    PyObject *type = status == OOMPH_ERR_INVALID     ? PyExc_ValueError
                     : status == OOMPH_ERR_NO_MEMORY ? PyExc_MemoryError
                     : status == OOMPH_ERR_DRIVER    ? driver_error
                                                     : PyExc_RuntimeError;
    PyErr_SetString(type, oomph_error_detail());
    return NULL;
}

// What a function gives that has nothing to give.
static PyObject *none_or_raise(oomph_status_t status)
{
    return status == OOMPH_OK ? Py_NewRef(Py_None) : oomph_raise(status);
}

/* ---- Hooks */

// The allocator is called with and without the GIL; while it waits for the GPU, others
// must run.
static void *release_gil(void)
{
    return PyGILState_Check() ? PyEval_SaveThread() : NULL;
}

static void take_gil(void *state)
{
    if (state != NULL)
        PyEval_RestoreThread(state);
}

static PyObject *on_rescue; // called with (device, bytes); guarded by the GIL
static atomic_int rescued_device;
static _Atomic(size_t) rescued_bytes;

// Run by the main thread, with the GIL, some time after the rescue. A report that fails
// disturbs nobody; Ctrl-C and sys.exit() meanwhile are not the report's.
static int tell_rescue(void *unused)
{
    (void)unused;
    if (on_rescue == NULL)
        return 0;
    PyObject *result =
        PyObject_CallFunction(on_rescue, "in", atomic_load(&rescued_device),
                              (Py_ssize_t)atomic_load(&rescued_bytes));
    if (result == NULL && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    if (result == NULL)
        PyErr_WriteUnraisable(on_rescue);
    Py_XDECREF(result);
    return 0;
}

// In the allocating thread, which may not have the GIL and must not wait for it.
static void note_rescue(int device, size_t bytes, int64_t nth)
{
    if (nth != 1)
        return;
    atomic_store(&rescued_device, device);
    atomic_store(&rescued_bytes, bytes);
    Py_AddPendingCall(tell_rescue, NULL);
}

static PyObject *set_rescue_hook(PyObject *module, PyObject *callable)
{
    (void)module;
    Py_INCREF(callable);
    Py_XSETREF(on_rescue, callable);
    Py_RETURN_NONE;
}

/* ---- Settings and start */

static PyObject *configure(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"offload",
                            "host_kind",
                            "host_limit_bytes",
                            "host_ahead_bytes",
                            "device_limit_bytes",
                            "device_limit_share",
                            "reserve_bytes",
                            "page_bytes",
                            "plan",
                            "strict",
                            "promote",
                            "window",
                            "guard",
                            NULL};
    oomph_config_t config = oomph_config_default();
    unsigned long long host_limit = 0, host_ahead = 0, device_limit = 0, page = 0;
    long long reserve = OOMPH_AUTO;
    int offload = config.offload, host_kind = config.host_kind, plan = config.plan;
    int strict = config.strict;
    int promote = config.promote, window = config.window;

    (void)module;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|$iiKKKdLKpppiI:configure", names, &offload, &host_kind,
            &host_limit, &host_ahead, &device_limit, &config.device_limit_share,
            &reserve, &page, &plan, &strict, &promote, &window, &config.guard))
        return NULL;
    config.offload = (oomph_offload_t)offload;
    config.host_kind = (oomph_host_kind_t)host_kind;
    config.host_limit_bytes = host_limit;
    config.host_ahead_bytes = host_ahead;
    config.device_limit_bytes = device_limit;
    config.reserve_bytes = reserve;
    config.page_bytes = page;
    config.plan = plan;
    config.strict = strict;
    config.promote = promote;
    config.window = (oomph_window_policy_t)window;
    return none_or_raise(oomph_configure(&config));
}

static PyObject *find_driver(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return none_or_raise(oomph_find_driver());
}

static PyObject *start(PyObject *module, PyObject *unused)
{
    int device_count = 0;
    oomph_status_t status;

    (void)module;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    status = oomph_start(&device_count);
    Py_END_ALLOW_THREADS
    return status == OOMPH_OK ? PyLong_FromLong(device_count) : oomph_raise(status);
}

static PyObject *stop(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    oomph_frames_stop();
    Py_BEGIN_ALLOW_THREADS
    oomph_stop();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *step(PyObject *module, PyObject *unused)
{
    uint64_t rescued;

    (void)module;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    rescued = oomph_step();
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(rescued);
}

/* ---- Regions without offload */

static PyObject *forbid_offload(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    oomph_forbid_offload();
    Py_RETURN_NONE;
}

static PyObject *allow_offload(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return none_or_raise(oomph_allow_offload());
}

static PyObject *offload_is_forbidden(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyBool_FromLong(oomph_offload_is_forbidden());
}

/* ---- Devices */

bool oomph_parse_device(PyObject *arg, int *device)
{
    long value = PyLong_AsLong(arg);

    if (value == -1 && PyErr_Occurred())
        return false;
    if (value < 0 || value >= OOMPH_DEVICE_MAX) {
        PyErr_Format(PyExc_ValueError, "there is no device %ld", value);
        return false;
    }
    *device = (int)value;
    return true;
}

static PyObject *give_back(PyObject *module, PyObject *args)
{
    int device;
    unsigned long long bytes;
    size_t freed = 0;
    oomph_status_t status;

    (void)module;
    if (!PyArg_ParseTuple(args, "iK:give_back", &device, &bytes))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = oomph_give_back(device, (size_t)bytes, &freed);
    Py_END_ALLOW_THREADS
    return status == OOMPH_OK ? PyLong_FromSize_t(freed) : oomph_raise(status);
}

static PyObject *memory_info(PyObject *module, PyObject *arg)
{
    int device;
    size_t free_bytes, total_bytes;

    (void)module;
    if (!oomph_parse_device(arg, &device))
        return NULL;
    oomph_status_t status = oomph_memory_info(device, &free_bytes, &total_bytes);
    return status == OOMPH_OK
               ? Py_BuildValue("nn", (Py_ssize_t)free_bytes, (Py_ssize_t)total_bytes)
               : oomph_raise(status);
}

static PyObject *probe_host(PyObject *module, PyObject *arg)
{
    int device;
    oomph_host_kind_t kind;
    oomph_status_t status;

    (void)module;
    if (!oomph_parse_device(arg, &device))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = oomph_probe_host(device, &kind);
    Py_END_ALLOW_THREADS
    return status == OOMPH_OK ? PyUnicode_FromString(oomph_host_kind_name(kind))
                              : oomph_raise(status);
}

/* ---- What a planner needs */

// A buffer for copies on one stream out and on another back.
static PyObject *buffer(PyObject *module, PyObject *args)
{
    int device;
    Py_ssize_t bytes;
    unsigned long long out, in;
    oomph_addr_t addr;
    oomph_status_t status;

    (void)module;
    if (!PyArg_ParseTuple(args, "inKK:buffer", &device, &bytes, &out, &in))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = oomph_buffer(device, (size_t)bytes, (oomph_stream_t)(uintptr_t)out, &addr);
    if (status == OOMPH_OK) {
        status = oomph_record_stream(addr, (oomph_stream_t)(uintptr_t)in, true);
        if (status != OOMPH_OK)
            oomph_free(addr, NULL);
    }
    Py_END_ALLOW_THREADS
    return status == OOMPH_OK ? PyLong_FromUnsignedLongLong(addr) : oomph_raise(status);
}

static PyObject *free_buffer(PyObject *module, PyObject *arg)
{
    (void)module;
    oomph_addr_t addr = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred())
        return NULL;
    return none_or_raise(oomph_free(addr, NULL));
}

static PyObject *copy(PyObject *module, PyObject *args)
{
    int device;
    unsigned long long to, from, stream;
    Py_ssize_t bytes;

    (void)module;
    if (!PyArg_ParseTuple(args, "iKKnK:copy", &device, &to, &from, &bytes, &stream))
        return NULL;
    return none_or_raise(
        oomph_copy(device, to, from, (size_t)bytes, (oomph_stream_t)(uintptr_t)stream));
}

static PyObject *foresee(PyObject *module, PyObject *args)
{
    int device;
    Py_ssize_t min_bytes;

    (void)module;
    if (!PyArg_ParseTuple(args, "in:foresee", &device, &min_bytes))
        return NULL;
    return none_or_raise(oomph_foresee(device, (size_t)min_bytes));
}

static PyObject *tide(PyObject *module, PyObject *arg)
{
    int device;
    oomph_tide_t tide;

    (void)module;
    if (!oomph_parse_device(arg, &device))
        return NULL;
    oomph_status_t status = oomph_read_tide(device, &tide);
    return status == OOMPH_OK
               ? Py_BuildValue("nnnnnn", (Py_ssize_t)tide.now, (Py_ssize_t)tide.high,
                               (Py_ssize_t)tide.host, (Py_ssize_t)tide.host_high,
                               (Py_ssize_t)tide.device_high,
                               (Py_ssize_t)tide.device_bytes)
               : oomph_raise(status);
}

static PyObject *check(PyObject *module, PyObject *arg)
{
    int device;

    (void)module;
    if (!oomph_parse_device(arg, &device))
        return NULL;
    return none_or_raise(oomph_check(device));
}

/* ---- Moving blocks in use */

static bool parse_moves(PyObject *addresses, oomph_move_t *moves, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        moves[i].addr = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(addresses, i));
        if (PyErr_Occurred())
            return false;
    }
    return true;
}

// What was moved, and for each address why it was not, or None.
static PyObject *tell_moves(size_t moved_bytes, const oomph_move_t *moves,
                            Py_ssize_t count)
{
    PyObject *reasons = PyList_New(count);

    for (Py_ssize_t i = 0; i < count && reasons != NULL; i++) {
        oomph_outcome_t outcome = moves[i].outcome;
        PyObject *reason = outcome == OOMPH_OUTCOME_THERE
                               ? Py_NewRef(Py_None)
                               : PyUnicode_FromString(oomph_outcome_text(outcome));
        if (reason == NULL)
            Py_CLEAR(reasons);
        else
            PyList_SET_ITEM(reasons, i, reason);
    }
    return reasons == NULL ? NULL
                           : Py_BuildValue("nN", (Py_ssize_t)moved_bytes, reasons);
}

static PyObject *move(PyObject *module, PyObject *args)
{
    int device, tier;
    PyObject *addresses, *result = NULL;
    size_t moved_bytes = 0;
    oomph_status_t status;

    (void)module;
    if (!PyArg_ParseTuple(args, "iiO!:move", &device, &tier, &PyList_Type, &addresses))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(addresses);
    oomph_move_t *moves = PyMem_Calloc((size_t)count, sizeof *moves);
    if (moves == NULL)
        return PyErr_NoMemory();
    if (parse_moves(addresses, moves, count)) {
        Py_BEGIN_ALLOW_THREADS
        status =
            oomph_move(device, (oomph_tier_t)tier, moves, (size_t)count, &moved_bytes);
        Py_END_ALLOW_THREADS
        result = status == OOMPH_OK ? tell_moves(moved_bytes, moves, count)
                                    : oomph_raise(status);
    }
    PyMem_Free(moves);
    return result;
}

static PyObject *pin(PyObject *module, PyObject *args)
{
    unsigned long long addr;
    int on;

    (void)module;
    if (!PyArg_ParseTuple(args, "Kp:pin", &addr, &on))
        return NULL;
    return none_or_raise(oomph_pin(addr, on));
}

static PyObject *rests(PyObject *module, PyObject *arg)
{
    (void)module;
    if (!PyList_Check(arg))
        return PyErr_Format(PyExc_TypeError, "a list of addresses, not %R",
                            (PyObject *)Py_TYPE(arg));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arg); i++) {
        oomph_addr_t addr = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(arg, i));
        if (PyErr_Occurred())
            return NULL;
        oomph_status_t status = oomph_rests(addr);
        if (status != OOMPH_OK && status != OOMPH_ERR_INVALID)
            return oomph_raise(status);
    }
    Py_RETURN_NONE;
}

static PyObject *know_stream(PyObject *module, PyObject *args)
{
    int device, lives;
    unsigned long long stream;

    (void)module;
    if (!PyArg_ParseTuple(args, "iKp:know_stream", &device, &stream, &lives))
        return NULL;
    return none_or_raise(
        oomph_know_stream(device, (oomph_stream_t)(uintptr_t)stream, lives));
}

static PyObject *note_communicator(PyObject *module, PyObject *arg)
{
    int there = PyObject_IsTrue(arg);

    (void)module;
    if (there < 0)
        return NULL;
    oomph_note_communicator(there);
    Py_RETURN_NONE;
}

static PyObject *place(PyObject *module, PyObject *arg)
{
    unsigned long long addr = PyLong_AsUnsignedLongLong(arg);
    oomph_block_info_t info;

    (void)module;
    if (PyErr_Occurred())
        return NULL;
    oomph_status_t status = oomph_lookup(addr, &info);
    return status == OOMPH_OK
               ? Py_BuildValue("in", (int)info.tier, (Py_ssize_t)info.host_bytes)
               : oomph_raise(status);
}

/* ---- Statistics */

// PyTorch's figures, under PyTorch's names.
static const struct {
    const char *name;
    size_t offset;
} figures[] = {
    {"allocation", offsetof(oomph_stats_t, allocation)},
    {"segment", offsetof(oomph_stats_t, segment)},
    {"active", offsetof(oomph_stats_t, active)},
    {"inactive_split", offsetof(oomph_stats_t, inactive_split)},
    {"allocated_bytes", offsetof(oomph_stats_t, allocated_bytes)},
    {"reserved_bytes", offsetof(oomph_stats_t, reserved_bytes)},
    {"active_bytes", offsetof(oomph_stats_t, active_bytes)},
    {"inactive_split_bytes", offsetof(oomph_stats_t, inactive_split_bytes)},
    {"requested_bytes", offsetof(oomph_stats_t, requested_bytes)},
};

// Our own: python/oomph/stats.py says what each means.
static const struct {
    const char *name;
    size_t offset;
} counters[] = {
    {"num_alloc_retries", offsetof(oomph_stats_t, retry_count)},
    {"num_ooms", offsetof(oomph_stats_t, oom_count)},
    {"oom_missing_bytes", offsetof(oomph_stats_t, oom_missing_bytes)},
    {"num_device_alloc", offsetof(oomph_stats_t, device_alloc_count)},
    {"num_device_free", offsetof(oomph_stats_t, device_free_count)},
    {"num_sync_all_streams", offsetof(oomph_stats_t, sync_count)},
    {"device_bytes", offsetof(oomph_stats_t, tier_bytes[OOMPH_TIER_DEVICE])},
    {"device_bytes_peak", offsetof(oomph_stats_t, tier_peak_bytes[OOMPH_TIER_DEVICE])},
    {"host_bytes", offsetof(oomph_stats_t, tier_bytes[OOMPH_TIER_HOST])},
    {"host_bytes_peak", offsetof(oomph_stats_t, tier_peak_bytes[OOMPH_TIER_HOST])},
    {"host_limit_bytes", offsetof(oomph_stats_t, host_limit_bytes)},
    {"device_limit_bytes", offsetof(oomph_stats_t, device_limit_bytes)},
    {"rescues", offsetof(oomph_stats_t, rescues)},
    {"rescued_bytes", offsetof(oomph_stats_t, rescued_bytes)},
    {"host_block_bytes", offsetof(oomph_stats_t, host_block_bytes)},
    {"foreseen", offsetof(oomph_stats_t, foreseen)},
    {"foreseen_bytes", offsetof(oomph_stats_t, foreseen_bytes)},
    {"buffer_bytes", offsetof(oomph_stats_t, buffer_bytes)},
    {"promoted_bytes", offsetof(oomph_stats_t, promoted_bytes)},
    {"evicted_bytes", offsetof(oomph_stats_t, evicted_bytes)},
    {"swap_drains", offsetof(oomph_stats_t, swap_drains)},
    {"swap_ns", offsetof(oomph_stats_t, swap_ns)},
    {"swap_failures", offsetof(oomph_stats_t, swap_failures)},
    {"windows", offsetof(oomph_stats_t, windows)},
    {"windows_missed", offsetof(oomph_stats_t, windows_missed)},
    {"window_ns", offsetof(oomph_stats_t, window_ns)},
    {"driver_ns", offsetof(oomph_stats_t, driver_ns)},
    {"rung_deferred", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_DEFERRED])},
    {"rung_grow", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_GROW])},
    {"rung_steal", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_STEAL])},
    {"rung_wait", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_WAIT])},
    {"rung_callbacks", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_CALLBACKS])},
    {"rung_host", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_HOST])},
    {"rung_error", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_ERROR])},
    {"pages_remapped", offsetof(oomph_stats_t, pages_remapped)},
    {"pages_stolen", offsetof(oomph_stats_t, pages_stolen)},
    {"page_bytes", offsetof(oomph_stats_t, page_bytes)},
    {"steps", offsetof(oomph_stats_t, step_count)},
    {"step_remapped_bytes", offsetof(oomph_stats_t, step_remapped_bytes)},
    {"step_rescues", offsetof(oomph_stats_t, step_rescues)},
    {"planned_hits", offsetof(oomph_stats_t, planned_hits)},
    {"planned_misses", offsetof(oomph_stats_t, planned_misses)},
    {"plan_bytes", offsetof(oomph_stats_t, plan_bytes)},
    {"link_to_host_bytes_per_s", offsetof(oomph_stats_t, link_to_host_bytes_per_s)},
    {"link_to_device_bytes_per_s", offsetof(oomph_stats_t, link_to_device_bytes_per_s)},
    {"guard_blocks", offsetof(oomph_stats_t, guard_blocks)},
    {"guard_rounding_bytes", offsetof(oomph_stats_t, guard_rounding_bytes)},
    {"guard_space_bytes", offsetof(oomph_stats_t, guard_space_bytes)},
    {"guard_reused_bytes", offsetof(oomph_stats_t, guard_reused_bytes)},
    {"foreign_bytes", offsetof(oomph_stats_t, foreign_bytes)},
    {"record_bytes", offsetof(oomph_stats_t, record_bytes)},
};

// Takes over the reference to `value`, which may be NULL after an error.
static bool add_owned(PyObject *dict, const char *name, PyObject *value)
{
    bool added = value != NULL && PyDict_SetItemString(dict, name, value) == 0;

    Py_XDECREF(value);
    return added;
}

// figure.kind.metric, as in torch.cuda.memory_stats().
static bool add_figure(PyObject *dict, const char *name, const oomph_stat_t *stats)
{
    static const char *const kinds[] = {"all", "small_pool", "large_pool"};
    char key[64];

    for (int kind = 0; kind < OOMPH_STAT_KINDS; kind++) {
        const struct {
            const char *metric;
            int64_t value;
        } metrics[] = {
            {"current", stats[kind].current},
            {"peak", stats[kind].peak},
            {"allocated", stats[kind].allocated},
            {"freed", stats[kind].freed},
        };
        for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++) {
            PyOS_snprintf(key, sizeof key, "%s.%s.%s", name, kinds[kind],
                          metrics[i].metric);
            if (!add_owned(dict, key, PyLong_FromLongLong(metrics[i].value)))
                return false;
        }
    }
    return true;
}

// The rescues of the last steps, newest last.
static PyObject *last_rescues(const oomph_stats_t *stats)
{
    int64_t count =
        stats->step_count < OOMPH_STEPS_KEPT ? stats->step_count : OOMPH_STEPS_KEPT;
    PyObject *list = PyList_New((Py_ssize_t)count);

    for (int64_t i = 0; i < count && list != NULL; i++) {
        int64_t step = stats->step_count - count + i;
        PyObject *rescues =
            PyLong_FromLongLong(stats->rescues_of[step % OOMPH_STEPS_KEPT]);
        if (rescues != NULL)
            PyList_SET_ITEM(list, (Py_ssize_t)i, rescues);
        else
            Py_CLEAR(list);
    }
    return list;
}

static bool fill_stats(PyObject *dict, const oomph_stats_t *stats)
{
    const char *base = (const char *)stats;
    oomph_stats_by_kind_t figure;
    int64_t value;

    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        memcpy(figure, base + figures[i].offset, sizeof figure);
        if (!add_figure(dict, figures[i].name, figure))
            return false;
    }
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        memcpy(&value, base + counters[i].offset, sizeof value);
        if (!add_owned(dict, counters[i].name, PyLong_FromLongLong(value)))
            return false;
    }
    return add_owned(dict, "rescues_last_steps", last_rescues(stats)) &&
           add_owned(dict, "host_kind",
                     PyUnicode_FromString(oomph_host_kind_name(stats->host_kind)));
}

PyObject *oomph_stats_dict(const oomph_stats_t *stats)
{
    PyObject *dict = PyDict_New();

    if (dict != NULL && !fill_stats(dict, stats))
        Py_CLEAR(dict);
    return dict;
}

static PyObject *stats(PyObject *module, PyObject *arg)
{
    oomph_stats_t values;
    int device;

    (void)module;
    if (!oomph_parse_device(arg, &device))
        return NULL;
    oomph_status_t status = oomph_get_stats(device, &values);
    if (status != OOMPH_OK)
        return oomph_raise(status);
    return oomph_stats_dict(&values);
}

/* ---- The module */

static PyMethodDef methods[] = {
    {"configure", (PyCFunction)(void (*)(void))configure, METH_VARARGS | METH_KEYWORDS,
     "Fixes the settings; see oomph.install()."},
    {"find_driver", find_driver, METH_NOARGS,
     "Raises DriverError if there is none to work with; initialises nothing."},
    {"start", start, METH_NOARGS, "Loads the driver; gives the number of devices."},
    {"stop", stop, METH_NOARGS, "Ends background work."},
    {"step", step, METH_NOARGS, "A training step has ended."},
    {"stats", stats, METH_O, "The figures of a device, as a dict."},
    {"forbid_offload", forbid_offload, METH_NOARGS, "Until allow_offload(); nests."},
    {"allow_offload", allow_offload, METH_NOARGS, "Ends what forbid_offload() began."},
    {"offload_is_forbidden", offload_is_forbidden, METH_NOARGS,
     "Whether one of those regions is open."},
    {"memory_info", memory_info, METH_O, "Free and total bytes of a device."},
    {"give_back", give_back, METH_VARARGS, "Returns free pages to the driver."},
    {"probe_host", probe_host, METH_O, "Which kind of host memory works."},
    {"buffer", buffer, METH_VARARGS,
     "A buffer on host pages: device, bytes, the streams that use it."},
    {"free_buffer", free_buffer, METH_O, "Frees it once both streams are done."},
    {"copy", copy, METH_VARARGS, "Queues a copy: device, to, from, bytes, stream."},
    {"foresee", foresee, METH_VARARGS,
     "Blocks that found no room in the last step go to the host: device, least bytes."},
    {"tide", tide, METH_O, "Bytes of blocks in use; see oomph.h."},
    {"move", move, METH_VARARGS, "Moves blocks in use to a tier; see oomph.evict()."},
    {"pin", pin, METH_VARARGS, "Whether a block is to stay on the device."},
    {"rests", rests, METH_O,
     "Nothing uses the blocks of these addresses between steps; see oomph.h. Addresses "
     "of no block in use are ignored."},
    {"know_stream", know_stream, METH_VARARGS,
     "Work is queued on a stream: device, handle, whether it is never destroyed."},
    {"note_communicator", note_communicator, METH_O,
     "Whether kernels of the program may wait for other processes."},
    {"place", place, METH_O, "Tier and bytes on host of the block of an address."},
    {"check", check, METH_O, "Raises ValueError if the records do not agree."},
    {"set_rescue_hook", set_rescue_hook, METH_O,
     "A callable for (device, bytes) of the first rescue of a step."},
    {NULL, NULL, 0, NULL},
};

static int add_constants(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"OFFLOAD_OFF", OOMPH_OFFLOAD_OFF},
        {"OFFLOAD_ON_OOM", OOMPH_OFFLOAD_ON_OOM},
        {"OFFLOAD_ALWAYS", OOMPH_OFFLOAD_ALWAYS},
        {"HOST_AUTO", OOMPH_HOST_AUTO},
        {"HOST_NUMA", OOMPH_HOST_NUMA},
        {"HOST_PLAIN", OOMPH_HOST_PLAIN},
        {"HOST_PINNED", OOMPH_HOST_PINNED},
        {"HOST_OFF", OOMPH_HOST_OFF},
        {"WINDOW_NEVER", OOMPH_WINDOW_NEVER},
        {"WINDOW_GATED", OOMPH_WINDOW_GATED},
        {"RESERVE_AUTO", OOMPH_AUTO},
        {"GUARD_OFF", OOMPH_GUARD_OFF},
        {"GUARD_UNMAP", OOMPH_GUARD_UNMAP},
        {"GUARD_SYNC", OOMPH_GUARD_SYNC},
        {"GUARD_FILL", OOMPH_GUARD_FILL},
        {"DEVICE_MAX", OOMPH_DEVICE_MAX},
        {"TIER_DEVICE", OOMPH_TIER_DEVICE},
        {"TIER_HOST", OOMPH_TIER_HOST},
        {"MARK_HOST", OOMPH_MARK_HOST},
        {"MARK_POOL", OOMPH_MARK_POOL},
        {"MARK_WAITING", OOMPH_MARK_WAITING},
        {"SITE_INFERRED", (long)OOMPH_SITE_INFERRED},
    };

    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return 0;
}

static int execute(PyObject *module)
{
    static const oomph_hooks_t hooks = {.before_wait = release_gil,
                                        .after_wait = take_gil,
                                        .rescued = note_rescue,
                                        .call_site = oomph_frames_site};
    PyObject *capsule =
        PyCapsule_New((void *)(uintptr_t)oomph_api(), OOMPH_CAPSULE, NULL);

    if (driver_error == NULL)
        driver_error =
            PyErr_NewException("oomph._C.DriverError", PyExc_RuntimeError, NULL);
    if (capsule == NULL || PyModule_AddObject(module, "api", capsule) < 0) {
        Py_XDECREF(capsule);
        return -1;
    }
    if (driver_error == NULL ||
        PyModule_AddObjectRef(module, "DriverError", driver_error) < 0)
        return -1;
    oomph_set_hooks(&hooks);
    return PyModule_AddFunctions(module, oomph_site_methods) < 0
               ? -1
               : add_constants(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)(uintptr_t)execute},
    {0, NULL},
};

static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "oomph._C",
                                        .m_doc = "The allocator's core.",
                                        .m_methods = methods,
                                        .m_slots = slots};

PyMODINIT_FUNC PyInit__C(void)
{
    return PyModuleDef_Init(&definition);
}
