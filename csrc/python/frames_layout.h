/* frames_layout.h - where each Python keeps a frame, its code and its position.
 *
 * The only place that knows of versions. Where `OOMPH_FRAMES_KNOWN` is not defined, as
 * with free threading, no line is known.
 */
#pragma once
#include <Python.h>

#include <frameobject.h>
#include <stdint.h>

#if PY_VERSION_HEX >= 0x030a0000 && PY_VERSION_HEX < 0x030f0000 &&                     \
    !defined(Py_GIL_DISABLED) && !defined(PYPY_VERSION)
#define OOMPH_FRAMES_KNOWN
#endif

#if PY_VERSION_HEX < 0x030b0000

typedef PyFrameObject oomph_frame_t;
#define OOMPH_FRAME_TOP(state) ((state)->frame)
#define OOMPH_FRAME_BACK(frame) ((frame)->f_back)
#define OOMPH_FRAME_CODE(frame) ((PyObject *)(frame)->f_code)
#define OOMPH_FRAME_OFFSET(frame, code)                                                \
    ((frame)->f_lasti * (int)sizeof(_Py_CODEUNIT)) // bytes
#define OOMPH_FRAME_IS_SHIM(frame) false
#define OOMPH_CODE_NAME(code) ((code)->co_name)

#else

typedef struct oomph_frame oomph_frame_t; // _PyInterpreterFrame
#define OOMPH_CODE_NAME(code) ((code)->co_qualname)
#define OOMPH_FRAME_BACK(frame) ((frame)->previous)
#define OOMPH_FRAME_OFFSET(frame, code)                                                \
    ((int)((const char *)(frame)->position - (code)->co_code_adaptive)) // bytes

#if PY_VERSION_HEX < 0x030c0000
struct oomph_frame {
    PyObject *function, *globals, *builtins, *locals;
    PyObject *code;
    PyObject *object;
    oomph_frame_t *previous;
    void *position; // the unit before the next instruction
    int stacktop;
    bool is_entry;
    char owner;
};
#elif PY_VERSION_HEX < 0x030e0000
struct oomph_frame {
    PyObject *code; // None in a shim
    oomph_frame_t *previous;
    PyObject *function, *globals, *builtins, *locals;
    PyObject *object;
    void *position; // the instruction, or the unit before the next one
    int stacktop;
    uint16_t return_offset;
    char owner;
};
#else
struct oomph_frame {
    uintptr_t code; // tagged
    oomph_frame_t *previous;
    uintptr_t function;
    PyObject *globals, *builtins, *locals;
    PyObject *object;
    void *position;
    void *stack_pointer;
    uint16_t return_offset;
    char owner;
};
#endif

#if PY_VERSION_HEX < 0x030d0000
#define OOMPH_FRAME_TOP(state) ((oomph_frame_t *)(state)->cframe->current_frame)
#else
#define OOMPH_FRAME_TOP(state) ((oomph_frame_t *)(state)->current_frame)
#endif
#if PY_VERSION_HEX < 0x030e0000
#define OOMPH_FRAME_CODE(frame) ((frame)->code)
#else
#define OOMPH_FRAME_CODE(frame) ((PyObject *)((frame)->code & ~(uintptr_t)3))
#endif
// Frames of the interpreter itself, between Python and C: no code of anybody's.
#define OOMPH_FRAME_IS_SHIM(frame) ((frame)->owner >= 3)

#endif
