/* objects.h - the instances of some types, of all objects that Python's collector
 * knows.
 */
#pragma once
#include "python/interpreter/beyond.h"

// instances() and newer() of oomph._C.
extern PyMethodDef oomph_object_methods[];
