/* stats.h - the part of oomph._C that reads the counters of a device. */
#pragma once
#include "oomph.h"
#include "python/interpreter/beyond.h"

// The counters of a device, as oomph.stats() has them; NULL with an exception.
PyObject *oomph_stats_dict(const oomph_stats_t *stats);

// stats() and allocated() of oomph._C.
extern PyMethodDef oomph_stats_methods[];
