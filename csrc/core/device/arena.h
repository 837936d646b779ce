/* arena.h - the address space of a layout, and the pages that move into it. */
#pragma once
#include "core/device/steal.h"

// Replaces the arena by one for the layout in force, or by none. May give up the lock.
void oomph_arena_rebuild(oomph_pool_t *pool);
// Makes its address space the heap's; the blocks there stay where they are.
void oomph_arena_empty(oomph_pool_t *pool);
