/* cublas.c - stand-ins for cuBLAS and cuBLASLt. */
#include "standin.h"

#include "runtime.h"

#include <string.h>

enum { HEURISTIC_RESULT_BYTES = 64 + 8 + 4 }; // algorithm, workspace size, state

#pragma GCC visibility push(default)

int cublasGetMathMode(void *handle, int *mode)
{
    *mode = 0;
    return STANDIN_SUCCESS;
}

int cublasGetPointerMode_v2(void *handle, int *mode)
{
    *mode = 0;
    return STANDIN_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return 130100;
}

// One algorithm fits everything, and needs no workspace.
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b,
                                   void *c, void *d, void *preference, int wanted,
                                   void *results, int *count)
{
    *count = wanted > 0 ? 1 : 0;
    if (wanted > 0)
        memset(results, 0, HEURISTIC_RESULT_BYTES);
    return STANDIN_SUCCESS;
}

// ---- factorisations, which report bad arguments on the host: there are none

static int factorise(const char *name, int *info)
{
    *info = 0;
    return oomph_sim_refuses(name) ? STANDIN_NOT_SUPPORTED : STANDIN_SUCCESS;
}

int cublasSgeqrfBatched(void *handle, int m, int n, void *a, int a_leading, void *tau,
                        int *info, int batch)
{
    return factorise("cublasgeqrfBatched", info);
}

__typeof__(cublasSgeqrfBatched) cublasDgeqrfBatched
    __attribute__((alias("cublasSgeqrfBatched")));
__typeof__(cublasSgeqrfBatched) cublasCgeqrfBatched
    __attribute__((alias("cublasSgeqrfBatched")));
__typeof__(cublasSgeqrfBatched) cublasZgeqrfBatched
    __attribute__((alias("cublasSgeqrfBatched")));

int cublasSgetrsBatched(void *handle, int operation, int n, int right_sides, void *a,
                        int a_leading, void *pivots, void *b, int b_leading, int *info,
                        int batch)
{
    return factorise("cublasgetrsBatched", info);
}

__typeof__(cublasSgetrsBatched) cublasDgetrsBatched
    __attribute__((alias("cublasSgetrsBatched")));
__typeof__(cublasSgetrsBatched) cublasCgetrsBatched
    __attribute__((alias("cublasSgetrsBatched")));
__typeof__(cublasSgetrsBatched) cublasZgetrsBatched
    __attribute__((alias("cublasSgetrsBatched")));

int cublasSgelsBatched(void *handle, int operation, int m, int n, int right_sides,
                       void *a, int a_leading, void *c, int c_leading, int *info,
                       void *device_info, int batch)
{
    return factorise("cublasgelsBatched", info);
}

__typeof__(cublasSgelsBatched) cublasDgelsBatched
    __attribute__((alias("cublasSgelsBatched")));
__typeof__(cublasSgelsBatched) cublasCgelsBatched
    __attribute__((alias("cublasSgelsBatched")));
__typeof__(cublasSgelsBatched) cublasZgelsBatched
    __attribute__((alias("cublasSgelsBatched")));

#pragma GCC visibility pop
