/* lines.h - calls Python for each line of the user's code that is executed. */
#pragma once
#include "python/interpreter/beyond.h"

// follow_lines(), follow_too() and unfollow_lines() of oomph._C.
extern PyMethodDef oomph_line_methods[];
