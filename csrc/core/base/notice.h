/* notice.h - what happened to memory, kept until it can be reported without the lock.
 */
#pragma once
#include "core/base/util.h"

#include <stdatomic.h>

typedef struct oomph_notices {
    const atomic_bool *wanted; // else nothing is kept
    oomph_notice_t *list;
    size_t count, capacity;
} oomph_notices_t;

// Keeps the notice if notices are wanted and host memory allows.
void oomph_notices_add(oomph_notices_t *notices, oomph_notice_t notice);
