/* beyond.c - the table of where each Python keeps what, and how its row is found. */
#include "python/interpreter/beyond.h"

#include <stdlib.h>

oomph_layout_t oomph_layout;

static const oomph_layout_t layouts[] = {
    {.minor = 10,
     .thread = {24, OOMPH_NOWHERE, 64, 80, 240},
     .frame = {24, 32, 96, OOMPH_NOWHERE},
     .code = {104, 112, OOMPH_NOWHERE},
     .has_rings = true},
    {.minor = 11,
     .thread = {56, 8, 72, 88, 224},
     .frame = {48, 32, 56, 69},
     .code = {112, 128, 184},
     .has_rings = true},
    {.minor = 12,
     .thread = {56, 0, 72, 88, 208},
     .frame = {8, 0, 56, 70},
     .code = {112, 128, 192},
     .has_rings = true},
    {.minor = 13,
     .thread = {72, OOMPH_NOWHERE, 88, 104, 208},
     .frame = {8, 0, 56, 70},
     .code = {112, 128, 200},
     .has_rings = true},
    {.minor = 14,
     .thread = {64, OOMPH_NOWHERE, 80, 96, 200},
     .frame = {8, 0, 56, 74},
     .code = {112, 128, 208},
     .has_rings = false},
};

void oomph_layout_find(void)
{
    const char *version = Py_GetVersion(); // such as "3.12.1 (main, ..."
    char *end = NULL;
    bool is_three = strtol(version, &end, 10) == 3 && *end == '.';
    long minor = is_three ? strtol(end + 1, NULL, 10) : 0;

    if (strstr(version, "free-thread") != NULL)
        return;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i].minor == minor)
            oomph_layout = layouts[i];
}

/* ---- The end of code objects */

static void (*code_gone)(const void *code);

static int on_code_event(int event, PyCodeObject *code)
{
    if (event == OOMPH_CODE_DESTROYED)
        code_gone(code);
    return 0;
}

// Where nobody reports it: stand in its way.
static destructor free_code;

static void report_and_free_code(PyObject *code)
{
    code_gone(code);
    free_code(code);
}

static bool replace_free_code(void)
{
    enum { TYPE_DEALLOC = 48 }; // bytes, of a type until Python 3.11
    char *place = (char *)&PyCode_Type + TYPE_DEALLOC;
    destructor mine = report_and_free_code;

    free_code = (destructor)(uintptr_t)PyType_GetSlot(&PyCode_Type, Py_tp_dealloc);
    if (memcmp(place, &free_code, sizeof free_code) != 0)
        return false;
    memcpy(place, &mine, sizeof mine);
    return true;
}

bool oomph_watch_codes(void (*gone)(const void *code))
{
    code_gone = gone;
    return PyCode_AddWatcher != NULL ? PyCode_AddWatcher(on_code_event) >= 0
                                     : replace_free_code();
}

/* ---- Text */

enum { TEXT_LENGTH = 16, TEXT_STATE = 32, TEXT_DATA_MAX = 96 }; // bytes
enum { TEXT_SHIFT_MAX = 24 };                                   // bits

// What a string is like whose largest character takes so many bytes.
typedef struct text_kind {
    uint8_t flags; // how many bytes a character takes, whether it is compact, and ASCII
    uint8_t width; // bytes of a character
    uint16_t data; // where the characters begin
} text_kind_t;

static text_kind_t text_kinds[] = {
    {0x19, 1, 0}, {0x09, 1, 0}, {0x0A, 2, 0}, {0x0C, 4, 0}};
enum { TEXT_KINDS = sizeof text_kinds / sizeof text_kinds[0] };
static int text_shift; // where the flags are in the state of a string

static uint8_t text_flags(const PyObject *text, int shift)
{
    enum { FLAGS = 0x1F };
    uint32_t state;

    memcpy(&state, (const char *)text + TEXT_STATE, sizeof state);
    return (state >> shift) & FLAGS;
}

// Where a string keeps these characters; 0: in no place where it could.
static uint16_t find_data(const PyObject *text, const void *characters, size_t bytes)
{
    for (size_t at = TEXT_STATE + 8; at <= TEXT_DATA_MAX - bytes; at += 8)
        if (memcmp((const char *)text + at, characters, bytes) == 0)
            return (uint16_t)at;
    return 0;
}

static bool find_shift(PyObject *const texts[TEXT_KINDS])
{
    for (text_shift = 0; text_shift < TEXT_SHIFT_MAX; text_shift++) {
        int fits = 0;
        for (int i = 0; i < TEXT_KINDS; i++)
            fits += text_flags(texts[i], text_shift) == text_kinds[i].flags;
        if (fits == TEXT_KINDS)
            return true;
    }
    return false;
}

// A string of one character, many times, and where it has them; NULL: in no known
// place.
static PyObject *learn(text_kind_t *kind, Py_UCS4 character)
{
    enum { COUNT = 4 };
    Py_UCS4 wide[COUNT] = {character, character, character, character};
    char bytes[COUNT * sizeof *wide];
    PyObject *text = PyUnicode_DecodeUTF32((const char *)wide, sizeof wide, NULL, NULL);

    for (size_t i = 0; i < COUNT; i++)
        memcpy(bytes + i * kind->width, &character, kind->width);
    if (text != NULL)
        kind->data = find_data(text, bytes, (size_t)COUNT * kind->width);
    if (kind->data == 0)
        Py_CLEAR(text);
    return text;
}

bool oomph_text_find(void)
{
    static const Py_UCS4 characters[TEXT_KINDS] = {'o', 0xF6, 0x20AC, 0x1F600};
    PyObject *texts[TEXT_KINDS];
    bool found = true;

    for (int i = 0; i < TEXT_KINDS; i++) {
        texts[i] = learn(&text_kinds[i], characters[i]);
        found = found && texts[i] != NULL;
    }
    found = found && find_shift(texts);
    for (int i = 0; i < TEXT_KINDS; i++)
        Py_XDECREF(texts[i]);
    PyErr_Clear();
    return found;
}

static const text_kind_t *kind_of_text(const PyObject *text)
{
    for (int i = 0; i < TEXT_KINDS; i++)
        if (text_kinds[i].flags == text_flags(text, text_shift))
            return &text_kinds[i];
    return NULL;
}

static uint32_t character(const PyObject *text, const text_kind_t *kind, size_t i)
{
    uint32_t c = 0; // little-endian

    memcpy(&c, (const char *)text + kind->data + i * kind->width, kind->width);
    return c;
}

static size_t put_utf8(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((0xF0 << (4 - length)) | c);
    return length;
}

void oomph_text_copy(PyObject *text, char *out, size_t room)
{
    size_t used = 0;
    Py_ssize_t length = 0;
    const text_kind_t *kind =
        text != NULL && PyUnicode_CheckExact(text) ? kind_of_text(text) : NULL;

    if (kind != NULL)
        memcpy(&length, (const char *)text + TEXT_LENGTH, sizeof length);
    for (size_t i = 0; i < (size_t)length && used + 4 < room; i++)
        used += put_utf8(out + used, character(text, kind, i));
    out[used] = '\0';
}
