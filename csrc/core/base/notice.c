#include "core/base/notice.h"

#include <stdlib.h>

void oomph_notices_add(oomph_notices_t *notices, oomph_notice_t notice)
{
    if (!atomic_load_explicit(notices->wanted, memory_order_relaxed))
        return;
    if (notices->count == notices->capacity) {
        size_t capacity = notices->capacity == 0 ? 16 : notices->capacity * 2;
        oomph_notice_t *list = realloc(notices->list, capacity * sizeof *list);
        if (list == NULL)
            return;
        notices->list = list;
        notices->capacity = capacity;
    }
    notices->list[notices->count++] = notice;
}
