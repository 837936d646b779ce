/* faults.h - the real driver table, wrapped so that any call can be made to fail. */
#pragma once
#include "driver/driver.h"

// The wrapper around oomph_driver_cuda().
const oomph_driver_t *faulty_driver(void);

// The `nth` call from now that can fail does so, with `status`; 0: none does.
void fail_call(unsigned nth, oomph_status_t status);
// That call and every one after it.
void fail_from_call(unsigned nth, oomph_status_t status);
// Every call to the member of this name fails from now on; NULL: none does.
void fail_always(const char *member, oomph_status_t status);
// The member that failed last, or NULL.
const char *failed_member(void);
// Calls so far that could have failed.
unsigned call_count(void);
