/* cudnn.c - stand-ins for cuDNN: its legacy calls, and the backend that convolutions,
 * normalisations and attention use. One engine, with one configuration, fits everything
 * and needs no workspace: what a real engine would need depends on the card and is not
 * known.
 */
#include "standin.h"

#if __has_include(<cudnn_version.h>)
#include <cudnn_version.h> // of the cuDNN that PyTorch expects
#else
enum { CUDNN_MAJOR = 9, CUDNN_MINOR = 19, CUDNN_PATCHLEVEL = 0 };
#endif

enum {
    VERSION = CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL,
    DROPOUT_STATE_BYTES = 1 << 20, // about what an H100 needs
    // From cudnn_graph.h.
    TYPE_INT64 = 3,
    TYPE_INT32 = 23,
    ATTRIBUTE_HEURISTIC_RESULTS = 202,
    ATTRIBUTE_CONFIGURATION_ENGINE = 300,
};

#pragma GCC visibility push(default)

// ---- versions and errors

size_t cudnnGetVersion(void)
{
    return VERSION;
}

size_t cudnnGetCudartVersion(void)
{
    return 13000;
}

int cudnnGetProperty(int property, int *value)
{
    const int version[] = {CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL};

    *value = property >= 0 && property < 3 ? version[property] : 0;
    return STANDIN_SUCCESS;
}

const char *cudnnGetErrorString(int status)
{
    return status == STANDIN_SUCCESS ? "CUDNN_STATUS_SUCCESS"
                                     : "CUDNN_STATUS_SIMULATED";
}

void cudnnGetLastErrorString(char *text, size_t bytes)
{
    if (bytes > 0)
        text[0] = '\0';
}

// ---- sizes: no workspace

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    void *handle, int mode, int operations, void *x, void *z, void *y, void *scale,
    void *activation, size_t *bytes)
{
    *bytes = 0;
    return STANDIN_SUCCESS;
}

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode,
                                                      int operations, void *x, void *y,
                                                      void *dy, void *dz, void *dx,
                                                      void *scale, void *activation,
                                                      size_t *bytes)
{
    *bytes = 0;
    return STANDIN_SUCCESS;
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode,
                                                         int operations,
                                                         void *activation, void *x,
                                                         size_t *bytes)
{
    *bytes = 0;
    return STANDIN_SUCCESS;
}

int cudnnGetConvolutionForwardWorkspaceSize(void *handle, void *x, void *w,
                                            void *convolution, void *y, int algorithm,
                                            size_t *bytes)
{
    *bytes = 0;
    return STANDIN_SUCCESS;
}

__typeof__(cudnnGetConvolutionForwardWorkspaceSize)
    cudnnGetConvolutionBackwardDataWorkspaceSize
    __attribute__((alias("cudnnGetConvolutionForwardWorkspaceSize")));
__typeof__(cudnnGetConvolutionForwardWorkspaceSize)
    cudnnGetConvolutionBackwardFilterWorkspaceSize
    __attribute__((alias("cudnnGetConvolutionForwardWorkspaceSize")));

int cudnnGetCTCLossWorkspaceSize(void *handle, void *probabilities, void *gradients,
                                 const int *labels, const int *label_lengths,
                                 const int *input_lengths, int algorithm,
                                 void *descriptor, size_t *bytes)
{
    *bytes = 0;
    return STANDIN_SUCCESS;
}

int cudnnGetCTCLossWorkspaceSize_v8(void *handle, int algorithm, void *descriptor,
                                    void *probabilities, void *gradients, size_t *bytes)
{
    *bytes = 0;
    return STANDIN_SUCCESS;
}

int cudnnDropoutGetStatesSize(void *handle, size_t *bytes)
{
    *bytes = DROPOUT_STATE_BYTES;
    return STANDIN_SUCCESS;
}

// ---- the backend: descriptors made of attributes

int cudnnBackendCreateDescriptor(int type, void **descriptor)
{
    return standin_make(descriptor);
}

// Numbers are 0. There is one heuristic result with its engine, whose descriptors the
// caller has made, and nothing else: no knobs, no notes.
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t wanted,
                             int64_t *count, void *values)
{
    int64_t found = name == ATTRIBUTE_HEURISTIC_RESULTS ||
                    name == ATTRIBUTE_CONFIGURATION_ENGINE || type == TYPE_INT64 ||
                    type == TYPE_INT32;
    if (count != NULL)
        *count = found;
    if (values != NULL && wanted > 0 && type == TYPE_INT64)
        *(int64_t *)values = 0;
    if (values != NULL && wanted > 0 && type == TYPE_INT32)
        *(int32_t *)values = 0;
    return STANDIN_SUCCESS;
}

#pragma GCC visibility pop
