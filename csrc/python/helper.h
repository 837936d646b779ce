/* helper.h - a thread that runs Python for one that needs memory. */
#pragma once
#include "oomph.h"
#include "python/interpreter/beyond.h"

// Hooks of the core (oomph/start.h), called with or without the GIL, and with no lock
// held. Both wait for the thread, though not for ever.
bool oomph_collect_garbage(bool last, size_t *bytes);
size_t oomph_make_room(int device, size_t want);

// Before the first of these; with the GIL. False: with an exception. Repeating it is
// harmless.
bool oomph_helper_init(void);
// Has the thread end, and waits for that; without the GIL.
void oomph_helper_stop(void);

// set_collector() and set_room_maker() of oomph._C.
extern PyMethodDef oomph_helper_methods[];
