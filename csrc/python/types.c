// types.c - what comes in from Python and what goes out, for all of oomph._C.
#include "python/module.h"

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

int oomph_call_listener(PyObject *listener, int device, size_t bytes)
{
    PyObject *result = PyObject_CallFunction(listener, "in", device, (Py_ssize_t)bytes);
    if (result == NULL && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    if (result == NULL)
        PyErr_WriteUnraisable(listener);
    Py_XDECREF(result);
    return 0;
}
