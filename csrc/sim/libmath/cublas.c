/* cublas.c - stand-ins for cuBLAS and cuBLASLt. */
#include "standin.h"

#include "runtime.h"

#include <string.h>

enum { HEURISTIC_RESULT_BYTES = 64 + 8 + 4 }; // algorithm, workspace size, state

#pragma GCC visibility push(default)

int cublasCreate_v2(void **handle)
{
    return standin_make(handle);
}

int cublasDestroy_v2(void *handle)
{
    return standin_free(handle);
}

int cublasGetMathMode(void *handle, int *mode)
{
    (void)handle;
    *mode = 0;
    return STANDIN_SUCCESS;
}

int cublasGetPointerMode_v2(void *handle, int *mode)
{
    (void)handle;
    *mode = 0;
    return STANDIN_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return 130100;
}

int cublasLtMatmulDescCreate(void **descriptor)
{
    return standin_make(descriptor);
}

int cublasLtMatmulDescDestroy(void *descriptor)
{
    return standin_free(descriptor);
}

int cublasLtMatrixLayoutCreate(void **layout)
{
    return standin_make(layout);
}

int cublasLtMatrixLayoutDestroy(void *layout)
{
    return standin_free(layout);
}

int cublasLtMatmulPreferenceCreate(void **preference)
{
    return standin_make(preference);
}

int cublasLtMatmulPreferenceDestroy(void *preference)
{
    return standin_free(preference);
}

// One algorithm fits everything, and needs no workspace.
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b,
                                   void *c, void *d, void *preference, int wanted,
                                   void *results, int *count)
{
    (void)handle;
    (void)operation;
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    (void)preference;
    *count = wanted > 0 ? 1 : 0;
    if (wanted > 0)
        memset(results, 0, HEURISTIC_RESULT_BYTES);
    return STANDIN_SUCCESS;
}

// ---- factorisations, which report bad arguments on the host: there are none

int cublasSgeqrfBatched(void *handle, int m, int n, void *a, int a_leading, void *tau,
                        int *info, int batch)
{
    (void)handle;
    (void)m;
    (void)n;
    (void)a;
    (void)a_leading;
    (void)tau;
    (void)batch;
    *info = 0;
    return oomph_sim_refuses("cublasgeqrfBatched") ? STANDIN_NOT_SUPPORTED
                                                   : STANDIN_SUCCESS;
}

int cublasDgeqrfBatched(void *handle, int m, int n, void *a, int a_leading, void *tau,
                        int *info, int batch)
    __attribute__((alias("cublasSgeqrfBatched")));
int cublasCgeqrfBatched(void *handle, int m, int n, void *a, int a_leading, void *tau,
                        int *info, int batch)
    __attribute__((alias("cublasSgeqrfBatched")));
int cublasZgeqrfBatched(void *handle, int m, int n, void *a, int a_leading, void *tau,
                        int *info, int batch)
    __attribute__((alias("cublasSgeqrfBatched")));

int cublasSgetrsBatched(void *handle, int operation, int n, int right_sides, void *a,
                        int a_leading, void *pivots, void *b, int b_leading, int *info,
                        int batch)
{
    (void)handle;
    (void)operation;
    (void)n;
    (void)right_sides;
    (void)a;
    (void)a_leading;
    (void)pivots;
    (void)b;
    (void)b_leading;
    (void)batch;
    *info = 0;
    return oomph_sim_refuses("cublasgetrsBatched") ? STANDIN_NOT_SUPPORTED
                                                   : STANDIN_SUCCESS;
}

int cublasDgetrsBatched(void *handle, int operation, int n, int right_sides, void *a,
                        int a_leading, void *pivots, void *b, int b_leading, int *info,
                        int batch) __attribute__((alias("cublasSgetrsBatched")));
int cublasCgetrsBatched(void *handle, int operation, int n, int right_sides, void *a,
                        int a_leading, void *pivots, void *b, int b_leading, int *info,
                        int batch) __attribute__((alias("cublasSgetrsBatched")));
int cublasZgetrsBatched(void *handle, int operation, int n, int right_sides, void *a,
                        int a_leading, void *pivots, void *b, int b_leading, int *info,
                        int batch) __attribute__((alias("cublasSgetrsBatched")));

int cublasSgelsBatched(void *handle, int operation, int m, int n, int right_sides,
                       void *a, int a_leading, void *c, int c_leading, int *info,
                       void *device_info, int batch)
{
    (void)handle;
    (void)operation;
    (void)m;
    (void)n;
    (void)right_sides;
    (void)a;
    (void)a_leading;
    (void)c;
    (void)c_leading;
    (void)device_info;
    (void)batch;
    *info = 0;
    return oomph_sim_refuses("cublasgelsBatched") ? STANDIN_NOT_SUPPORTED
                                                  : STANDIN_SUCCESS;
}

int cublasDgelsBatched(void *handle, int operation, int m, int n, int right_sides,
                       void *a, int a_leading, void *c, int c_leading, int *info,
                       void *device_info, int batch)
    __attribute__((alias("cublasSgelsBatched")));
int cublasCgelsBatched(void *handle, int operation, int m, int n, int right_sides,
                       void *a, int a_leading, void *c, int c_leading, int *info,
                       void *device_info, int batch)
    __attribute__((alias("cublasSgelsBatched")));
int cublasZgelsBatched(void *handle, int operation, int m, int n, int right_sides,
                       void *a, int a_leading, void *c, int c_leading, int *info,
                       void *device_info, int batch)
    __attribute__((alias("cublasSgelsBatched")));

#pragma GCC visibility pop
