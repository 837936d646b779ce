/* lines.c - calls Python for each line of the user's code that is executed.
 *
 * sys.settrace would do, but it copies the variables of each frame that it follows, and
 * so holds tensors for longer than the program does; and it is called for each call of
 * a library, too. Here those cost a look at a dict. All threads are followed that have
 * no tracer of their own, such as a debugger's; from Python 3.12 on one in any other
 * thread leaves only this one to us, as there is no function that asks for one thread.
 */
#include "python/interpreter/lines.h"

typedef struct oomph_follower {
    PyObject base;
    PyObject *report;  // called with (frame, what, result) for each line of the user's
    PyObject *is_user; // called with the name of a file that was not yet met
    PyObject *files;   // a dict: whether each that was met is the user's
    Py_ssize_t rest;   // events that may still come
} oomph_follower_t;

static void follower_free(PyObject *self)
{
    oomph_follower_t *follower = (oomph_follower_t *)self;

    Py_XDECREF(follower->report);
    Py_XDECREF(follower->is_user);
    Py_XDECREF(follower->files);
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static PyType_Slot follower_slots[] = {
    {Py_tp_doc, "What a thread calls for the lines that it executes."},
    {Py_tp_dealloc, (void *)(uintptr_t)follower_free},
    {0, NULL},
};

static PyType_Spec follower_spec = {
    .name = "oomph._C.LineFollower",
    .basicsize = sizeof(oomph_follower_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = follower_slots,
};

// Whose references are all to be set; NULL with an exception.
static oomph_follower_t *new_follower(void)
{
    static PyObject *type; // made once, guarded by the GIL

    if (type == NULL)
        type = PyType_FromSpec(&follower_spec);
    return type == NULL ? NULL : PyObject_New(oomph_follower_t, (PyTypeObject *)type);
}

// Whether a file is the user's; -1 with an exception.
static int is_of_user(oomph_follower_t *follower, PyObject *file)
{
    PyObject *known = PyDict_GetItemWithError(follower->files, file);

    if (known != NULL)
        return known == Py_True;
    if (PyErr_Occurred())
        return -1;
    PyObject *answer = PyObject_CallFunctionObjArgs(follower->is_user, file, NULL);
    int is_user = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (is_user >= 0 &&
        PyDict_SetItem(follower->files, file, is_user ? Py_True : Py_False) < 0)
        return -1;
    return is_user;
}

static int report_event(oomph_follower_t *follower, PyFrameObject *frame, int what,
                        PyObject *result)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    int is_user = is_of_user(follower, oomph_code_file(code));

    Py_DECREF(code);
    if (is_user <= 0)
        return is_user;
    PyObject *done = PyObject_CallFunction(follower->report, "OiO", (PyObject *)frame,
                                           what, result != NULL ? result : Py_None);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

// The program goes on whatever happens here.
static int on_event(PyObject *self, PyFrameObject *frame, int what, PyObject *result)
{
    oomph_follower_t *follower = (oomph_follower_t *)self;

    if (what != OOMPH_TRACE_CALL && what != OOMPH_TRACE_LINE &&
        what != OOMPH_TRACE_RETURN)
        return 0;
    Py_INCREF(self);
    if (follower->rest-- <= 0) {
        PyEval_SetTrace(NULL, NULL); // others end with their next events
    } else if (report_event(follower, frame, what, result) < 0) {
        follower->rest = 0;
        PyEval_SetTrace(NULL, NULL);
        PyErr_WriteUnraisable(follower->report);
    }
    Py_DECREF(self);
    return 0;
}

/* ---- Threads */

static bool is_free(const PyThreadState *thread)
{
    return oomph_thread_traces(thread, NULL) || oomph_thread_traces(thread, on_event);
}

static PyThreadState *first_thread(void)
{
    return PyInterpreterState_ThreadHead(PyInterpreterState_Get());
}

static void trace_each(oomph_tracer_t function, PyObject *argument)
{
    for (PyThreadState *t = first_thread(); t != NULL; t = PyThreadState_Next(t))
        if (is_free(t))
            _PyEval_SetTrace(t, function, argument);
}

// Has all threads call a function, or none; as far as they are free.
static void trace_all(oomph_tracer_t function, PyObject *argument)
{
    bool are_free = true;

    if (PyEval_SetTraceAllThreads == NULL) {
        trace_each(function, argument);
        return;
    }
    for (PyThreadState *t = first_thread(); t != NULL; t = PyThreadState_Next(t))
        are_free = are_free && is_free(t);
    if (are_free)
        PyEval_SetTraceAllThreads(function, argument);
    else if (is_free(PyThreadState_Get()))
        PyEval_SetTrace(function, argument);
}

// Whether this thread's tracer is where it is looked for; false with an exception. What
// sys.gettrace() gives is what a tracer was set with.
static bool tracers_are_known(void)
{
    PyThreadState *thread = PyThreadState_Get();
    PyObject *get = PySys_GetObject("gettrace");
    PyObject *tracer = get != NULL ? PyObject_CallNoArgs(get) : NULL;
    bool known =
        tracer != NULL && oomph_layout.minor != 0 &&
        oomph_thread_trace_argument(thread) == (Py_IsNone(tracer) ? NULL : tracer);

    Py_XDECREF(tracer);
    if (!known && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError,
                        "this Python keeps its tracers in a way that oomph does not "
                        "know: lines cannot be followed");
    return known;
}

static PyObject *follow_lines(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *report, *is_user;
    Py_ssize_t events_max;

    if (!PyArg_ParseTuple(args, "OOn:follow_lines", &report, &is_user, &events_max) ||
        !tracers_are_known())
        return NULL;
    oomph_follower_t *follower = new_follower();
    if (follower == NULL)
        return NULL;
    follower->report = Py_NewRef(report);
    follower->is_user = Py_NewRef(is_user);
    follower->files = PyDict_New();
    follower->rest = events_max;
    if (follower->files != NULL)
        trace_all(on_event, (PyObject *)follower);
    Py_DECREF(follower);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *follow_too(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arg))
{
    PyObject *follower = NULL;

    for (PyThreadState *t = first_thread(); t != NULL; t = PyThreadState_Next(t))
        if (oomph_thread_traces(t, on_event))
            follower = oomph_thread_trace_argument(t);
    Py_XINCREF(follower);
    PyEval_SetTrace(follower ? on_event : NULL, follower);
    Py_XDECREF(follower);
    Py_RETURN_NONE;
}

static PyObject *unfollow_lines(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arg))
{
    trace_all(NULL, NULL);
    Py_RETURN_NONE;
}

PyMethodDef oomph_line_methods[] = {
    {"follow_lines", follow_lines, METH_VARARGS,
     "Has all threads without a tracer call report(frame, what, result) for each call "
     "(0), line (2) and return (3) in a file for which is_user(name) is true, until so "
     "many events of any file have come. The result is what a function returns, if it "
     "does."},
    {"follow_too", follow_too, METH_NOARGS,
     "Follows this thread like the others, in place of its tracer."},
    {"unfollow_lines", unfollow_lines, METH_NOARGS, "Ends what follow_lines began."},
    {NULL, NULL, 0, NULL},
};
