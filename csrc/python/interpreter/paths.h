/* paths.h - how some objects are reached from others: the references on the way. */
#pragma once
#include "python/interpreter/beyond.h"

// paths() of oomph._C.
extern PyMethodDef oomph_path_methods[];
