/* memory.h - the part of oomph._C that moves what is in use, and gives a planner what
 * it needs.
 */
#pragma once
#include "oomph.h"
#include "python/interpreter/beyond.h"

// The hook of the core (oomph/start.h) that lists what is idle between steps. Takes the
// GIL.
size_t oomph_idle_blocks(int device, oomph_addr_t **addrs);

// buffer() to place() of oomph._C: blocks, their moves, copies and streams.
extern PyMethodDef oomph_memory_methods[];
