/* sites.h - the part of oomph._C that says which line holds the memory, or held it. */
#pragma once
#include "python/interpreter/beyond.h"

// block_list() to live_blocks() of oomph._C: sites, blocks and their sites.
extern PyMethodDef oomph_site_methods[];
