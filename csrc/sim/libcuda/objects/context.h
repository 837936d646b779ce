/* context.h - the stack of contexts of each thread; its top is current. The caller
 * holds the driver's lock.
 */
#pragma once
#include "libcuda/memory/device.h"

// What is current to this thread, even if it is not active; NULL if nothing is.
CUcontext sim_context_top(void);

// Errors: INVALID_VALUE if the stack is full.
CUresult sim_context_push(CUcontext context);

// Puts a context, or NULL, in the place of the top. Errors: as a push, on an empty
// stack.
CUresult sim_context_replace(CUcontext context);

// Errors: INVALID_CONTEXT if the stack is empty.
CUresult sim_context_pop(void);

// The context that is current to this thread, even if an error has broken it. Errors:
// INVALID_CONTEXT if none, CONTEXT_IS_DESTROYED if it is not active.
CUresult sim_context_of_thread(CUcontext *context);

// The same; besides, the error that has broken the context.
CUresult sim_context_usable(CUcontext *context);
