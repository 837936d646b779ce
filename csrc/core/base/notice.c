/* notice.c - a list that doubles when it is full.
 *
 * A notice costs amortised constant time, and no lock beside the device's, under which
 * it is added. Whoever gives that lock up takes the list along and reports it (sync.c),
 * so hooks run without the lock. Without host memory a notice is left out: the watcher
 * misses it, but no request fails for it.
 */
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
