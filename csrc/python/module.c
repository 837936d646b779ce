/* module.c - oomph._C: the core's functions as Python sees them; of the rescues of a
 * step, Python hears of the first.
 *
 * Settings, start, devices, and what only Python can do for the core: give up the GIL
 * before waiting for the GPU, and log. Nothing here needs PyTorch.
 */
#include "oomph.h"
#include "python/helper.h"
#include "python/interpreter/frames.h"
#include "python/interpreter/lines.h"
#include "python/interpreter/objects.h"
#include "python/interpreter/paths.h"
#include "python/memory.h"
#include "python/plain.h"
#include "python/sites.h"
#include "python/stats.h"
#include "python/types.h"

#include <stddef.h>
#include <string.h>

/* ---- Hooks */

// The allocator is called with and without the GIL; while it waits for the GPU, others
// must run.
static void *release_gil(void)
{
    return !oomph_keeps_gil && PyGILState_Check() ? PyEval_SaveThread() : NULL;
}

static void take_gil(void *state)
{
    if (state != NULL)
        PyEval_RestoreThread(state);
}

static oomph_listener_t rescue_listener;

static void note_rescue(int device, size_t bytes, int64_t nth)
{
    if (nth == 1)
        oomph_listener_note(&rescue_listener, device, bytes);
}

static PyObject *set_rescue_hook(PyObject *Py_UNUSED(module), PyObject *callable)
{
    return oomph_listener_set(&rescue_listener, callable);
}

/* ---- Settings and start */

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args,
                           PyObject *kwargs)
{
    static char *names[] = {"offload",
                            "host_kind",
                            "host_limit_bytes",
                            "host_page_max",
                            "host_ahead_bytes",
                            "device_limit_bytes",
                            "device_limit_fraction",
                            "reserve_bytes",
                            "page_bytes",
                            "plan",
                            "strict",
                            "promote",
                            "guard",
                            NULL};
    oomph_config_t config = oomph_config_default();
    unsigned long long host_limit = 0, host_ahead = 0, device_limit = 0, page = 0;
    unsigned long long host_page_max = 0;
    long long reserve = OOMPH_AUTO;
    int offload = config.offload, host_kind = config.host_kind, plan = config.plan;
    int strict = config.strict;
    int promote = config.promote;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$iiKKKKdLKpppI:configure", names,
                                     &offload, &host_kind, &host_limit, &host_page_max,
                                     &host_ahead, &device_limit,
                                     &config.device_limit_fraction, &reserve, &page,
                                     &plan, &strict, &promote, &config.guard))
        return NULL;
    config.offload = (oomph_offload_t)offload;
    config.host_kind = (oomph_host_kind_t)host_kind;
    config.host_limit_bytes = host_limit;
    config.host_page_max = host_page_max;
    config.host_ahead_bytes = host_ahead;
    config.device_limit_bytes = device_limit;
    config.reserve_bytes = reserve;
    config.page_bytes = page;
    config.plan = plan;
    config.strict = strict;
    config.promote = promote;
    return oomph_none_or_raise(oomph_configure(&config));
}

static PyObject *limit_host(PyObject *Py_UNUSED(module), PyObject *bytes)
{
    const unsigned long long limit = PyLong_AsUnsignedLongLong(bytes);

    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(oomph_limit_host(limit));
}

static PyObject *find_driver(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return oomph_none_or_raise(oomph_find_driver());
}

static PyObject *must_know_streams(PyObject *Py_UNUSED(module),
                                   PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(oomph_must_know_streams());
}

static PyObject *stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    oomph_frames_stop();
    Py_BEGIN_ALLOW_THREADS
    oomph_helper_stop();
    oomph_stop();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *step(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    uint64_t rescued;

    Py_BEGIN_ALLOW_THREADS
    rescued = oomph_step();
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(rescued);
}

/* ---- Regions without offload */

static PyObject *forbid_offload(PyObject *Py_UNUSED(module), PyObject *args)
{
    int ban;

    if (!PyArg_ParseTuple(args, "i:forbid_offload", &ban))
        return NULL;
    return oomph_none_or_raise(oomph_forbid_offload((oomph_ban_t)ban));
}

static PyObject *allow_offload(PyObject *Py_UNUSED(module), PyObject *args)
{
    int ban;

    if (!PyArg_ParseTuple(args, "i:allow_offload", &ban))
        return NULL;
    return oomph_none_or_raise(oomph_allow_offload((oomph_ban_t)ban));
}

static PyObject *offload_is_forbidden(PyObject *Py_UNUSED(module),
                                      PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(oomph_offload_is_forbidden());
}

static PyObject *batch_finder_runs(PyObject *Py_UNUSED(module),
                                   PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(oomph_offload_is_forbidden_by(OOMPH_BAN_BATCH_FINDER));
}

/* ---- Devices */

static PyObject *memory_info(PyObject *Py_UNUSED(module), PyObject *arg)
{
    int device;
    size_t free_bytes, total_bytes;

    if (!oomph_parse_device(arg, &device))
        return NULL;
    oomph_status_t status = oomph_memory_info(device, &free_bytes, &total_bytes);
    return status == OOMPH_OK
               ? Py_BuildValue("nn", (Py_ssize_t)free_bytes, (Py_ssize_t)total_bytes)
               : oomph_raise(status);
}

static PyObject *shares_memory(PyObject *Py_UNUSED(module), PyObject *arg)
{
    int device;
    bool shares;

    if (!oomph_parse_device(arg, &device))
        return NULL;
    oomph_status_t status = oomph_shares_memory(device, &shares);
    return status == OOMPH_OK ? PyBool_FromLong(shares) : oomph_raise(status);
}

static PyObject *probe_host(PyObject *Py_UNUSED(module), PyObject *arg)
{
    int device;
    oomph_host_kind_t kind;
    oomph_status_t status;

    if (!oomph_parse_device(arg, &device))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = oomph_probe_host(device, &kind);
    Py_END_ALLOW_THREADS
    return status == OOMPH_OK ? PyUnicode_FromString(oomph_host_kind_name(kind))
                              : oomph_raise(status);
}

static PyObject *check(PyObject *Py_UNUSED(module), PyObject *arg)
{
    int device;

    if (!oomph_parse_device(arg, &device))
        return NULL;
    return oomph_none_or_raise(oomph_check(device));
}

static PyObject *collect_garbage(PyObject *Py_UNUSED(module), PyObject *arg)
{
    size_t bytes = 0;
    int device;

    if (!oomph_parse_device(arg, &device))
        return NULL;
    if (!oomph_captures(device))
        oomph_collect_garbage(true, &bytes);
    return PyLong_FromSize_t(bytes);
}

static PyObject *set_attempt(PyObject *Py_UNUSED(module), PyObject *arg)
{
    int on = PyObject_IsTrue(arg);

    return on < 0 ? NULL : PyBool_FromLong(oomph_set_attempt(on));
}

static PyObject *is_attempt(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(oomph_is_attempt());
}

/* ---- The module */

static PyMethodDef methods[] = {
    {"configure", (PyCFunction)(void (*)(void))configure, METH_VARARGS | METH_KEYWORDS,
     "Fixes the settings; see oomph.install()."},
    {"limit_host", limit_host, METH_O,
     "Changes the limit of host memory; whether that was still possible."},
    {"find_driver", find_driver, METH_NOARGS,
     "Raises DriverError if there is none to work with; initialises nothing."},
    {"must_know_streams", must_know_streams, METH_NOARGS,
     "Whether the driver is so old that all streams must be known."},
    {"stop", stop, METH_NOARGS, "Ends background work."},
    {"step", step, METH_NOARGS, "A training step has ended."},
    {"forbid_offload", forbid_offload, METH_VARARGS,
     "For one of BAN_*, until allow_offload(); nests."},
    {"allow_offload", allow_offload, METH_VARARGS, "Ends what forbid_offload() began."},
    {"offload_is_forbidden", offload_is_forbidden, METH_NOARGS,
     "Whether one of those regions is open."},
    {"batch_finder_runs", batch_finder_runs, METH_NOARGS,
     "Whether one for BAN_BATCH_FINDER is."},
    {"memory_info", memory_info, METH_O, "Free and total bytes of a device."},
    {"shares_memory", shares_memory, METH_O, "Whether it has none but the host's."},
    {"probe_host", probe_host, METH_O, "Which kind of host memory works."},
    {"check", check, METH_O, "Raises ValueError if the records do not agree."},
    {"collect_garbage", collect_garbage, METH_O,
     "Runs Python's collector, unless the device captures; gives the bytes freed."},
    {"set_attempt", set_attempt, METH_O,
     "Whether this thread's requests are attempts from now on; gives what held "
     "before."},
    {"is_attempt", is_attempt, METH_NOARGS, "Whether they are."},
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
        {"OFFLOAD_AUTO", OOMPH_OFFLOAD_AUTO},
        {"HOST_AUTO", OOMPH_HOST_AUTO},
        {"HOST_NUMA", OOMPH_HOST_NUMA},
        {"HOST_PLAIN", OOMPH_HOST_PLAIN},
        {"HOST_PINNED", OOMPH_HOST_PINNED},
        {"HOST_OFF", OOMPH_HOST_OFF},
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
        {"BAN_REGION", OOMPH_BAN_REGION},
        {"BAN_BATCH_FINDER", OOMPH_BAN_BATCH_FINDER},
        {"BAN_TRIAL", OOMPH_BAN_TRIAL},
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
                                        .collect_garbage = oomph_collect_garbage,
                                        .make_room = oomph_make_room,
                                        .rescued = note_rescue,
                                        .idle_blocks = oomph_idle_blocks,
                                        .call_site = oomph_frames_site};
    PyMethodDef *const parts[] = {oomph_helper_methods, oomph_memory_methods,
                                  oomph_site_methods,   oomph_stats_methods,
                                  oomph_plain_methods,  oomph_line_methods,
                                  oomph_object_methods, oomph_path_methods};
    PyObject *capsule =
        PyCapsule_New((void *)(uintptr_t)oomph_api(), OOMPH_CAPSULE, NULL);

    oomph_layout_find();
    if (oomph_driver_error == NULL)
        oomph_driver_error =
            PyErr_NewException("oomph._C.DriverError", PyExc_RuntimeError, NULL);
    if (capsule == NULL || PyModule_AddObject(module, "api", capsule) < 0) {
        Py_XDECREF(capsule);
        return -1;
    }
    if (oomph_driver_error == NULL ||
        PyModule_AddObjectRef(module, "DriverError", oomph_driver_error) < 0 ||
        !oomph_helper_init())
        return -1;
    oomph_set_hooks(&hooks);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (PyModule_AddFunctions(module, parts[i]) < 0)
            return -1;
    return add_constants(module);
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
