/* frames.c - from a frame to the number of its line, without the GIL.
 *
 * What a code object is, the user's or a library's, is decided when it is first seen,
 * and so is the number of each place in it that allocates: names and line tables of
 * code never change, and the frame keeps them alive meanwhile. They are found again by
 * the address of the code object; when Python frees one, it is forgotten here, so that
 * another one at the same address is not taken for it. The numbers stay (site.c).
 */
#include "python/interpreter/frames.h"

#include "core/base/lock.h"
#include "core/base/map.h"

#include <pthread.h>
#include <string.h>

enum {
    DEPTH_MAX = 128,      // frames looked at
    PLACES_MAX = 1 << 16, // places of code remembered, some of code that is gone
    TEXT_MAX = 4096,      // bytes of a file's or a function's name
    KIND_BITS = 2,
};

typedef enum code_kind {
    KIND_USER,
    KIND_LIBRARY,
    KIND_ENGINE, // calls autograd's engine
    KIND_UNSEEN, // not yet looked at; also the mask of the kind
} code_kind_t;

// Guarded by `lock`, which is never held while waiting for anything.
static oomph_lock_t lock;
static oomph_map_t codes;  // by address: serial number << KIND_BITS | kind
static oomph_map_t places; // by serial number << 32 | offset: site
static uint32_t serial_count;
static char **library_prefixes; // ends with NULL

static atomic_bool on;

/* ---- Names */

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

// Which modules made from no file, or from one that nobody wrote, are a library's.
static bool is_library(const char *file)
{
    static const char *const starts[] = {"<frozen ", "<eval_with_key>", "<__array_"};
    static const char *const folders[] = {"/site-packages/", "/dist-packages/",
                                          "/torchinductor_"};

    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        if (starts_with(file, starts[i]))
            return true;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        if (strstr(file, folders[i]) != NULL)
            return true;
    for (char **prefix = library_prefixes; prefix != NULL && *prefix != NULL; prefix++)
        if (starts_with(file, *prefix))
            return true;
    return false;
}

static code_kind_t kind_of(const PyCodeObject *code)
{
    char text[TEXT_MAX];

    oomph_text_copy(oomph_code_file(code), text, sizeof text);
    if (!is_library(text))
        return KIND_USER;
    if (!ends_with(text, "/torch/autograd/graph.py"))
        return KIND_LIBRARY;
    oomph_text_copy(oomph_code_name(code), text, sizeof text);
    return strcmp(text, "_engine_run_backward") == 0 ? KIND_ENGINE : KIND_LIBRARY;
}

/* ---- Code objects and places in them. The caller holds `lock`. */

// Its kind and serial number, as in `codes`; KIND_UNSEEN if there is no memory for it.
static uint32_t look_up_code(PyCodeObject *code)
{
    uint32_t known = (uint32_t)oomph_map_get(&codes, (uintptr_t)code, KIND_UNSEEN);

    if (known != KIND_UNSEEN)
        return known;
    known = ++serial_count << KIND_BITS | kind_of(code);
    return oomph_map_add(&codes, (uintptr_t)code, known) ? known : KIND_UNSEEN;
}

static oomph_site_t new_site(PyCodeObject *code, int offset, uint64_t place)
{
    char file[TEXT_MAX], function[TEXT_MAX];

    oomph_text_copy(oomph_code_file(code), file, sizeof file);
    oomph_text_copy(oomph_code_name(code), function, sizeof function);
    oomph_site_t site = oomph_site(file, function, PyCode_Addr2Line(code, offset));
    if (places.count >= PLACES_MAX)
        oomph_map_clear(&places);
    if (site != 0)
        oomph_map_add(&places, place, site);
    return site;
}

static oomph_site_t site_at(const oomph_frame_t *frame, uint32_t serial)
{
    PyCodeObject *code = (PyCodeObject *)oomph_frame_code(frame);
    int offset = oomph_frame_offset(frame, code);
    uint64_t place = (uint64_t)serial << 32 | (uint32_t)offset;
    oomph_site_t site = (oomph_site_t)oomph_map_get(&places, place, 0);

    return site != 0 ? site : new_site(code, offset, place);
}

/* ---- Frames */

static const oomph_frame_t *own_frames(void)
{
    PyThreadState *state = PyGILState_GetThisThreadState();
    return state != NULL ? oomph_thread_top(state) : NULL;
}

static bool has_code(const oomph_frame_t *frame)
{
    PyObject *code = oomph_frame_code(frame);
    return code != NULL && Py_TYPE(code) == &PyCode_Type;
}

static oomph_site_t find_site(bool in_backward)
{
    const oomph_frame_t *innermost = NULL;
    uint32_t innermost_serial = 0;
    int depth = 0;

    for (const oomph_frame_t *frame = own_frames(); frame != NULL && depth < DEPTH_MAX;
         frame = oomph_frame_back(frame), depth++) {
        if (!has_code(frame))
            continue;
        uint32_t known = look_up_code((PyCodeObject *)oomph_frame_code(frame));
        code_kind_t kind = known & KIND_UNSEEN;
        if (kind == KIND_USER)
            return site_at(frame, known >> KIND_BITS);
        if (kind == KIND_UNSEEN || (kind == KIND_ENGINE && in_backward))
            return 0;
        if (innermost == NULL) {
            innermost = frame;
            innermost_serial = known >> KIND_BITS;
        }
    }
    return innermost != NULL && !in_backward ? site_at(innermost, innermost_serial) : 0;
}

oomph_site_t oomph_frames_site(bool in_backward)
{
    if (!atomic_load_explicit(&on, memory_order_relaxed))
        return 0;
    oomph_lock_take(&lock);
    oomph_site_t site = find_site(in_backward);
    oomph_lock_give(&lock);
    return site;
}

/* ---- The end of code objects. Their freer has the GIL. */

static void forget(const void *code)
{
    if (!atomic_load_explicit(&on, memory_order_relaxed))
        return;
    oomph_lock_take(&lock);
    oomph_map_take(&codes, (uintptr_t)code, 0);
    oomph_lock_give(&lock);
}

// The lock and the tables may be those of a thread that is not in the child.
static void stop_in_child(void)
{
    atomic_store(&on, false);
}

/* ---- Start */

// Whether an attribute of a code object is what lies where it is looked for.
static bool name_agrees(PyObject *code, const char *attribute, const PyObject *found)
{
    PyObject *name = PyObject_GetAttrString(code, attribute);

    Py_XDECREF(name);
    return name != NULL && name == found;
}

static bool names_agree(PyObject *code)
{
    const char *name =
        PyObject_HasAttrString(code, "co_qualname") ? "co_qualname" : "co_name";

    return name_agrees(code, "co_filename", oomph_code_file(code)) &&
           name_agrees(code, name, oomph_code_name(code));
}

// Whether the frame is what Python says of the object, in all that is used.
static bool agrees(const oomph_frame_t *frame, PyFrameObject *object)
{
    PyCodeObject *code = PyFrame_GetCode(object);
    PyObject *offset = PyObject_GetAttrString((PyObject *)object, "f_lasti");
    bool same = offset != NULL && names_agree((PyObject *)code) && has_code(frame) &&
                oomph_frame_code(frame) == (PyObject *)code &&
                oomph_frame_offset(frame, code) == PyLong_AsLong(offset);

    Py_DECREF(code);
    Py_XDECREF(offset);
    return same;
}

static const oomph_frame_t *next_with_code(const oomph_frame_t *frame)
{
    while (frame != NULL && !has_code(frame))
        frame = oomph_frame_back(frame);
    return frame;
}

// Whether the layout is this Python's: all frames that there are now must agree.
static bool layout_is_right(void)
{
    PyFrameObject *object = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    const oomph_frame_t *frame = next_with_code(own_frames());
    bool right = object != NULL;

    while (right && object != NULL) {
        PyFrameObject *back = PyFrame_GetBack(object);
        right = frame != NULL && agrees(frame, object);
        Py_DECREF(object);
        object = back;
        frame = right ? next_with_code(oomph_frame_back(frame)) : NULL;
    }
    Py_XDECREF(object);
    PyErr_Clear();
    return right && frame == NULL;
}

static char **copy_prefixes(PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    char **copy = calloc((size_t)count + 1, sizeof *copy);

    for (Py_ssize_t i = 0; i < count && copy != NULL; i++) {
        const char *text = PyUnicode_AsUTF8AndSize(PyList_GetItem(list, i), NULL);
        copy[i] = text != NULL ? strdup(text) : NULL;
        if (copy[i] == NULL)
            break; // later ones would be lost: the list ends here
    }
    PyErr_Clear();
    return copy;
}

// They are never freed: a thread may be reading them.
static void set_prefixes(PyObject *list)
{
    char **prefixes = copy_prefixes(list);

    oomph_lock_take(&lock);
    library_prefixes = prefixes;
    oomph_map_clear(&codes);
    oomph_lock_give(&lock);
}

const char *oomph_frames_start(PyObject *prefixes)
{
    static bool watching;

    if (oomph_layout.minor == 0 || !oomph_text_find() || !layout_is_right())
        return "this Python keeps its frames in a way that oomph does not know";
    if (!watching && !oomph_watch_codes(forget))
        return "this Python has no place left to watch code objects";
    if (!watching)
        pthread_atfork(NULL, NULL, stop_in_child);
    watching = true;
    set_prefixes(prefixes);
    atomic_store(&on, true);
    return NULL;
}

void oomph_frames_stop(void)
{
    atomic_store(&on, false);
}
