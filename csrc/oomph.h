/* oomph.h - the public C API. Everything else in csrc/ is private.
 *
 * Include this header. Its parts lie in oomph/, one for each topic; read types, start,
 * memory and block first.
 *
 * Sizes are bytes, addresses are device virtual addresses, times are nanoseconds.
 * Every function that can fail returns an oomph_status_t and writes its result
 * through its last parameter; on failure the result is untouched, the allocator is
 * unchanged and oomph_error_detail() says what happened. All functions are
 * thread-safe. None takes the Python GIL, prints, reads the environment or exits.
 * After a fork the child's calls fail with OOMPH_ERR_STATE and change nothing.
 *
 * A call that needs a device opens it, which may fail: OOMPH_ERR_INVALID (no such
 * device, or settings that it cannot have), OOMPH_ERR_STATE (a forked child),
 * OOMPH_ERR_DRIVER, OOMPH_ERR_NO_MEMORY (host memory). The parts call these "of
 * opening".
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "oomph/block.h"
#include "oomph/guard.h"
#include "oomph/ipc.h"
#include "oomph/limits.h"
#include "oomph/memory.h"
#include "oomph/move.h"
#include "oomph/offload.h"
#include "oomph/oom.h"
#include "oomph/planner.h"
#include "oomph/pool.h"
#include "oomph/site.h"
#include "oomph/start.h"
#include "oomph/stats.h"
#include "oomph/step.h"
#include "oomph/table.h"
#include "oomph/types.h"

#ifdef __cplusplus
}
#endif
