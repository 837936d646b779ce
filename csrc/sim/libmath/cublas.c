/* cublas.c - stand-ins for cuBLAS and cuBLASLt. */
#include "standin.h"

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

#pragma GCC visibility pop
