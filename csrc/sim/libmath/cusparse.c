/* cusparse.c - the one call of cuSPARSE that does not return a status. */
#include "standin.h"

#pragma GCC visibility push(default)

const char *cusparseGetErrorString(int status);
const char *cusparseGetErrorString(int status)
{
    return status == 0 ? "success" : "not supported by the simulated GPU";
}

#pragma GCC visibility pop
