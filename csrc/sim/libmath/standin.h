/* standin.h - stand-ins for cuBLAS, cuBLASLt and cuDNN on the simulated GPU.
 *
 * Loaded before PyTorch with global symbols, they win over the real libraries. Calls
 * succeed and compute nothing: PyTorch's own code around them allocates and launches as
 * on a GPU. With values, what others than PyTorch's operators call fails. Prototypes
 * are loose on purpose, handles are void *: the ABI is what counts. stubs.py adds the
 * names that are not written here: what creates and destroys objects, and what
 * succeeds; those of cuFFT, cuSOLVER and cuSPARSE fail.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" // most of what callers pass

enum { STANDIN_SUCCESS = 0, STANDIN_ALLOC_FAILED = 3, STANDIN_NOT_SUPPORTED = 15 };

// Makes an opaque object of zeros, larger than any that the caller looks into.
int standin_make(void **object);
int standin_free(void *object);

// Records that `function` is not supported, and returns `status`.
int oomph_sim_math_unsupported(const char *function, int status);
