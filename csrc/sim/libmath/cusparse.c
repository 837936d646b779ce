/* cusparse.c - the one call of cuSPARSE that does not return a status. */
#include "standin.h"

#include "runtime.h"

#pragma GCC visibility push(default)

const char *cusparseGetErrorString(int status);
const char *cusparseGetErrorString(int status)
{
    return status == 0 ? "success" : oomph_sim_refusal();
}

#pragma GCC visibility pop
