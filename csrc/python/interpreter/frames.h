/* frames.h - which line of Python this thread executes, read without the GIL.
 *
 * A thread may read its own frames whether it has the GIL or not: nobody else changes
 * them, and they keep their code objects alive. Where a frame keeps what differs from
 * one Python to the next, so it is tried at the start against what Python itself says.
 */
#pragma once
#include "oomph.h"
#include "python/interpreter/beyond.h"

// Begins to know the lines. Files below one of the `prefixes`, a list of strings, are
// not the user's own, nor are those in a folder site-packages or dist-packages. Gives
// NULL, or why lines are unknown with this Python. The caller has the GIL and a frame.
const char *oomph_frames_start(PyObject *prefixes);
// From now on no line is known: Python is about to end.
void oomph_frames_stop(void);

// The innermost line of the user's own code, or else of any; 0 if there is none. With
// `in_backward`, 0 where autograd's engine was entered after the user's code, and where
// there is none of the user's. Needs no GIL.
oomph_site_t oomph_frames_site(bool in_backward);
