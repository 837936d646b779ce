/* step.h - the end of a training step. */
#pragma once
#include <stdint.h>

// A training step has ended, on every device. Called by optimizer hooks. Gives a mask
// of the devices on which a block fell back to the host in it. Blocks that are idle
// between steps (oomph_mark_idle) and lived on host all through one return to the
// device, if there is room at the peak of a step and `promote` is set. Where several
// threads have ended steps, one may use what another leaves: then no block returns.
uint64_t oomph_step(void);
