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
