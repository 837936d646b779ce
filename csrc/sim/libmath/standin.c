#include "standin.h"

#include "runtime.h"

#include <stdlib.h>

enum { OBJECT_BYTES = 256 };

int standin_make(void **object)
{
    *object = calloc(1, OBJECT_BYTES);
    return *object ? STANDIN_SUCCESS : STANDIN_ALLOC_FAILED;
}

int standin_free(void *object)
{
    free(object);
    return STANDIN_SUCCESS;
}

int oomph_sim_math_unsupported(const char *function, int status)
{
    oomph_sim_note_unsupported(function);
    return status;
}
