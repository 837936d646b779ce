#include "python/memory.h"

#include "python/types.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- What a planner needs */

// A buffer for copies on one stream out and on another back.
static PyObject *buffer(PyObject *Py_UNUSED(module), PyObject *args)
{
    int device;
    Py_ssize_t bytes;
    unsigned long long out, in;
    oomph_addr_t addr;
    oomph_status_t status;

    if (!PyArg_ParseTuple(args, "inKK:buffer", &device, &bytes, &out, &in))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = oomph_buffer(device, (size_t)bytes, (oomph_stream_t)(uintptr_t)out, &addr);
    if (status == OOMPH_OK) {
        status = oomph_record_stream(addr, device, (oomph_stream_t)(uintptr_t)in, true);
        if (status != OOMPH_OK)
            oomph_free(addr, NULL);
    }
    Py_END_ALLOW_THREADS
    return status == OOMPH_OK ? PyLong_FromUnsignedLongLong(addr) : oomph_raise(status);
}

static PyObject *free_buffer(PyObject *Py_UNUSED(module), PyObject *arg)
{
    oomph_addr_t addr = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred())
        return NULL;
    return oomph_none_or_raise(oomph_free(addr, NULL));
}

static PyObject *all_wait(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long stream;
    int device;

    if (!PyArg_ParseTuple(args, "iK:all_wait", &device, &stream))
        return NULL;
    return oomph_none_or_raise(
        oomph_all_wait(device, (oomph_stream_t)(uintptr_t)stream));
}

static PyObject *copy(PyObject *Py_UNUSED(module), PyObject *args)
{
    int device;
    unsigned long long to, from, stream;
    Py_ssize_t bytes;

    if (!PyArg_ParseTuple(args, "iKKnK:copy", &device, &to, &from, &bytes, &stream))
        return NULL;
    return oomph_none_or_raise(
        oomph_copy(device, to, from, (size_t)bytes, (oomph_stream_t)(uintptr_t)stream));
}

static PyObject *event_passed(PyObject *Py_UNUSED(module), PyObject *args)
{
    int device;
    unsigned long long event;
    bool passed = false;

    if (!PyArg_ParseTuple(args, "iK:event_passed", &device, &event))
        return NULL;
    oomph_status_t status =
        oomph_event_passed(device, (oomph_event_t)(uintptr_t)event, &passed);
    return status == OOMPH_OK ? PyBool_FromLong(passed) : oomph_raise(status);
}

static PyObject *predict_host(PyObject *Py_UNUSED(module), PyObject *args)
{
    int device;
    Py_ssize_t min_bytes, part_bytes;

    if (!PyArg_ParseTuple(args, "inn:predict_host", &device, &min_bytes, &part_bytes))
        return NULL;
    return oomph_none_or_raise(
        oomph_predict_host(device, (size_t)min_bytes, (size_t)part_bytes));
}

static PyObject *usage(PyObject *Py_UNUSED(module), PyObject *arg)
{
    int device;
    oomph_usage_t usage;

    if (!oomph_parse_device(arg, &device))
        return NULL;
    oomph_status_t status = oomph_read_usage(device, &usage);
    return status == OOMPH_OK
               ? Py_BuildValue("nnnnnn", (Py_ssize_t)usage.now, (Py_ssize_t)usage.high,
                               (Py_ssize_t)usage.host, (Py_ssize_t)usage.host_high,
                               (Py_ssize_t)usage.device_high,
                               (Py_ssize_t)usage.device_bytes)
               : oomph_raise(status);
}

/* ---- Moving blocks in use */

static bool parse_moves(PyObject *addresses, oomph_move_t *moves, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        moves[i].addr = PyLong_AsUnsignedLongLong(PyList_GetItem(addresses, i));
        if (PyErr_Occurred())
            return false;
    }
    return true;
}

// What was moved, and for each address why it was not, or None.
static PyObject *report_moves(size_t moved_bytes, const oomph_move_t *moves,
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
            PyList_SetItem(reasons, i, reason);
    }
    return reasons == NULL ? NULL
                           : Py_BuildValue("nN", (Py_ssize_t)moved_bytes, reasons);
}

static PyObject *move(PyObject *Py_UNUSED(module), PyObject *args)
{
    int device, tier, idle = false;
    PyObject *addresses, *result = NULL;
    size_t moved_bytes = 0;
    oomph_status_t status;

    if (!PyArg_ParseTuple(args, "iiO!|p:move", &device, &tier, &PyList_Type, &addresses,
                          &idle))
        return NULL;
    Py_ssize_t count = PyList_Size(addresses);
    oomph_move_t *moves = PyMem_Calloc((size_t)count, sizeof *moves);
    if (moves == NULL)
        return PyErr_NoMemory();
    if (parse_moves(addresses, moves, count)) {
        Py_BEGIN_ALLOW_THREADS
        status = idle ? oomph_move_idle(device, moves, (size_t)count, &moved_bytes)
                      : oomph_move(device, (oomph_tier_t)tier, moves, (size_t)count,
                                   &moved_bytes);
        Py_END_ALLOW_THREADS
        result = status == OOMPH_OK ? report_moves(moved_bytes, moves, count)
                                    : oomph_raise(status);
    }
    PyMem_Free(moves);
    return result;
}

static PyObject *pin(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long addr;
    int on;

    if (!PyArg_ParseTuple(args, "Kp:pin", &addr, &on))
        return NULL;
    return oomph_none_or_raise(oomph_pin(addr, on));
}

static PyObject *on_idle_blocks; // called with a device; guarded by the GIL

static PyObject *set_idle_hook(PyObject *Py_UNUSED(module), PyObject *callable)
{
    Py_INCREF(callable);
    oomph_exchange(&on_idle_blocks, callable);
    Py_RETURN_NONE;
}

// The addresses in a list, which the caller is to free; NULL with an exception.
static oomph_addr_t *parse_addresses(PyObject *list, size_t *count)
{
    if (!PyList_Check(list)) {
        PyErr_Format(PyExc_TypeError, "a list of addresses, not %R",
                     (PyObject *)Py_TYPE(list));
        return NULL;
    }
    *count = (size_t)PyList_Size(list);
    oomph_addr_t *addrs = malloc((*count + 1) * sizeof *addrs);
    if (addrs == NULL)
        PyErr_NoMemory();
    for (size_t i = 0; i < *count && addrs != NULL; i++)
        addrs[i] = PyLong_AsUnsignedLongLong(PyList_GetItem(list, (Py_ssize_t)i));
    if (PyErr_Occurred()) {
        free(addrs);
        return NULL;
    }
    return addrs;
}

// Says something of the blocks of a list of addresses.
static PyObject *mark_all(PyObject *list, oomph_status_t (*mark)(oomph_addr_t))
{
    size_t count = 0;
    oomph_addr_t *addrs = parse_addresses(list, &count);
    oomph_status_t status = OOMPH_OK;

    if (addrs == NULL)
        return NULL;
    for (size_t i = 0; i < count && status == OOMPH_OK; i++) {
        status = mark(addrs[i]);
        if (status == OOMPH_ERR_INVALID)
            status = OOMPH_OK;
    }
    free(addrs);
    return oomph_none_or_raise(status);
}

static PyObject *mark_idle(PyObject *Py_UNUSED(module), PyObject *arg)
{
    return mark_all(arg, oomph_mark_idle);
}

static PyObject *unmark_idle(PyObject *Py_UNUSED(module), PyObject *arg)
{
    return mark_all(arg, oomph_unmark_idle);
}

static PyObject *mark_copied(PyObject *Py_UNUSED(module), PyObject *arg)
{
    return mark_all(arg, oomph_mark_copied);
}

// An error of the embedder's is reported, and nothing counts as idle.
size_t oomph_idle_blocks(int device, oomph_addr_t **addrs)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *list = NULL;
    size_t count = 0;

    if (on_idle_blocks != NULL)
        list = PyObject_CallFunction(on_idle_blocks, "i", device);
    if (list != NULL)
        *addrs = parse_addresses(list, &count);
    if (PyErr_Occurred())
        PyErr_WriteUnraisable(on_idle_blocks);
    Py_XDECREF(list);
    PyGILState_Release(gil);
    return *addrs == NULL ? 0 : count;
}

static PyObject *know_stream(PyObject *Py_UNUSED(module), PyObject *args)
{
    int device, lives;
    unsigned long long stream;

    if (!PyArg_ParseTuple(args, "iKp:know_stream", &device, &stream, &lives))
        return NULL;
    return oomph_none_or_raise(
        oomph_know_stream(device, (oomph_stream_t)(uintptr_t)stream, lives));
}

static PyObject *place(PyObject *Py_UNUSED(module), PyObject *arg)
{
    unsigned long long addr = PyLong_AsUnsignedLongLong(arg);
    oomph_block_info_t info;

    if (PyErr_Occurred())
        return NULL;
    oomph_status_t status = oomph_lookup(addr, &info);
    return status == OOMPH_OK
               ? Py_BuildValue("in", (int)info.tier, (Py_ssize_t)info.host_bytes)
               : oomph_raise(status);
}

PyMethodDef oomph_memory_methods[] = {
    {"buffer", buffer, METH_VARARGS,
     "A buffer on host pages: device, bytes, the streams that use it."},
    {"free_buffer", free_buffer, METH_O, "Frees it once both streams are done."},
    {"event_passed", event_passed, METH_VARARGS,
     "Whether the device has reached an event: device, handle; not in a capture."},
    {"all_wait", all_wait, METH_VARARGS,
     "Has all known streams of a device wait for one of them."},
    {"copy", copy, METH_VARARGS, "Queues a copy: device, to, from, bytes, stream."},
    {"predict_host", predict_host, METH_VARARGS,
     "Blocks that found no room in the last step go to the host: device, least bytes, "
     "and of each at least so many of its bytes."},
    {"usage", usage, METH_O, "Bytes of blocks in use; see oomph/planner.h."},
    {"move", move, METH_VARARGS,
     "Moves blocks in use to a tier; see oomph.evict(). With a last True those that "
     "are idle between steps go to the host, and return by themselves."},
    {"pin", pin, METH_VARARGS, "Whether a block is to stay on the device."},
    {"mark_idle", mark_idle, METH_O,
     "Nothing uses the blocks of these addresses between steps; see oomph/move.h. "
     "Addresses "
     "of no block in use are ignored."},
    {"unmark_idle", unmark_idle, METH_O, "Takes back mark_idle() of these addresses."},
    {"mark_copied", mark_copied, METH_O,
     "The blocks of these addresses were, in this step, worked on in copies alone; see "
     "oomph/move.h. Addresses of no block in use are ignored."},
    {"set_idle_hook", set_idle_hook, METH_O,
     "A callable that gives the addresses of what is idle on a device between steps, "
     "in "
     "the order in which it may leave."},
    {"know_stream", know_stream, METH_VARARGS,
     "Work is queued on a stream: device, handle, whether it is never destroyed."},
    {"place", place, METH_O, "Tier and bytes on host of the block of an address."},
    {NULL, NULL, 0, NULL},
};
