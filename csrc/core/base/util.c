/* util.c - the error text of each thread (oomph/types.h), sizes for people, and memory
 * for records.
 *
 * The text has 512 bytes in each thread, so that setting it takes no memory and no lock
 * where either may be what failed; what is longer is cut off. Records come from mmap(),
 * not malloc(): zeroed, backed only once they are touched, and in huge pages if the
 * system gives them, as they are looked up at random. That costs a system call, so it
 * is for chunks and tables.
 */
#include "core/base/util.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

static _Thread_local char detail[512];

oomph_status_t oomph_fail(oomph_status_t status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    return status;
}

const char *oomph_error_detail(void)
{
    return detail;
}

oomph_size_text_t oomph_size_text(uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    oomph_size_text_t size;
    double value = (double)bytes;
    int unit = -1;

    for (; unit < 5 && value >= 1024; unit++)
        value /= 1024;
    if (unit < 0)
        snprintf(size.text, sizeof size.text, "%u bytes", (unsigned)bytes);
    else
        snprintf(size.text, sizeof size.text, "%.2f %s", value, units[unit]);
    return size;
}

void *oomph_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE); // a hint: it need not be followed
    return memory;
}

void oomph_unmap(void *memory, size_t bytes)
{
    if (memory != NULL)
        munmap(memory, bytes);
}
