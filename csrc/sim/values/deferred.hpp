// deferred.hpp - functions of Python that a graph calls at each replay, such as kernels
// that an interpreter runs.
#pragma once
#include "computation.hpp"

#include <Python.h>
#include <c10/cuda/CUDAStream.h>

#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace oomph_values
{

// Functions whose graph is gone. Who lets go of a graph has the driver's lock and may
// not wait for the interpreter.
inline std::mutex dropped_mutex;
inline std::vector<PyObject *> dropped;

inline void free_dropped()
{
    std::vector<PyObject *> taken;
    {
        std::lock_guard<std::mutex> guard(dropped_mutex);
        taken.swap(dropped);
    }
    for (PyObject *function : taken)
        Py_DECREF(function);
}

// The text of the exception that Python is in; clears it.
inline std::string take_exception()
{
    PyObject *kind = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *text = value != nullptr ? PyObject_Str(value) : nullptr;
    const char *bytes =
        text != nullptr ? PyUnicode_AsUTF8AndSize(text, nullptr) : nullptr;
    std::string found = bytes != nullptr ? bytes : "an exception without a text";

    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return found;
}

struct Deferred {
    PyObject *function;
    std::string name;

    int call() const
    {
        PyObject *result = PyObject_CallNoArgs(function);
        if (result == nullptr)
            keep_failure(name + " failed on the simulated GPU: " + take_exception());
        Py_XDECREF(result);
        return result == nullptr;
    }

    static int run(void *argument)
    {
        if (!Py_IsInitialized())
            return 1;
        PyGILState_STATE state = PyGILState_Ensure();
        int failed = static_cast<Deferred *>(argument)->call();
        PyGILState_Release(state);
        return failed;
    }

    static void release(void *argument)
    {
        auto *self = static_cast<Deferred *>(argument);
        std::lock_guard<std::mutex> guard(dropped_mutex);
        dropped.push_back(self->function);
        delete self;
    }
};

// The driver keeps names for ever.
inline const char *kept_name(const std::string &name)
{
    static auto *names = new std::set<std::string>;
    return names->insert(name).first->c_str();
}

// Gives the current stream a function to call. The launch of its graph waits for it, so
// that nobody has to wait later while he keeps the interpreter from others.
inline void defer(const std::string &name, PyObject *function)
{
    free_dropped();
    Py_INCREF(function);
    oomph_sim_compute_t what = {};
    what.name = kept_name(name);
    what.run = &Deferred::run;
    what.release = &Deferred::release;
    what.argument = new Deferred{function, name};
    what.makes_calls = 1;
    what.is_waited_for = 1;
    check_taken(name, sim_compute(&what, c10::cuda::getCurrentCUDAStream().stream()));
}

} // namespace oomph_values
