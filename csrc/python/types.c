#include "python/types.h"

PyObject *oomph_driver_error;

PyObject *oomph_raise(oomph_status_t status)
{
    PyObject *type = status == OOMPH_ERR_INVALID     ? PyExc_ValueError
                     : status == OOMPH_ERR_NO_MEMORY ? PyExc_MemoryError
                     : status == OOMPH_ERR_DRIVER    ? oomph_driver_error
                                                     : PyExc_RuntimeError;
    PyErr_SetString(type, oomph_error_detail());
    return NULL;
}

PyObject *oomph_none_or_raise(oomph_status_t status)
{
    return status == OOMPH_OK ? Py_NewRef(Py_None) : oomph_raise(status);
}

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

_Thread_local bool oomph_keeps_gil;

PyObject *oomph_listener_set(oomph_listener_t *listener, PyObject *callable)
{
    Py_INCREF(callable);
    oomph_exchange(&listener->callable, callable);
    Py_RETURN_NONE;
}

// Run by the main thread, with the GIL. Ctrl-C and sys.exit() meanwhile are not the
// report's: -1.
static int call_listener(void *context)
{
    oomph_listener_t *listener = context;

    if (listener->callable == NULL)
        return 0;
    PyObject *result =
        PyObject_CallFunction(listener->callable, "in", atomic_load(&listener->device),
                              (Py_ssize_t)atomic_load(&listener->bytes));
    if (result == NULL && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    if (result == NULL)
        PyErr_WriteUnraisable(listener->callable);
    Py_XDECREF(result);
    return 0;
}

void oomph_listener_note(oomph_listener_t *listener, int device, size_t bytes)
{
    atomic_store(&listener->device, device);
    atomic_store(&listener->bytes, bytes);
    Py_AddPendingCall(call_listener, listener);
}
