/* error.c - the calls that give an error's name and text. */
#include "libcuda/base/error.h"
#include "runtime.h"

CUresult cuGetErrorName(CUresult result, const char **name)
{
    const sim_error_t *error = sim_error_find(result);

    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *name = error ? error->name : NULL;
    return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
    const sim_error_t *error = sim_error_find(result);

    if (text == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *text = error == NULL ? NULL : error->text ? error->text : error->name;
    if (result == CUDA_ERROR_NOT_SUPPORTED && oomph_sim_refusal()[0] != '\0')
        *text = oomph_sim_refusal();
    return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
