/* cudnn_rnn.c - stand-ins for cuDNN's recurrent networks. PyTorch asks where each
 * weight lies in one flat buffer and makes its parameters views of that, so the layout
 * has to hold together: all matrices, layer by layer, then all biases.
 */
#include "standin.h"

#include <stdbool.h>

enum {
    // From cudnn_graph.h and cudnn_adv.h.
    DATA_DOUBLE = 1,
    DATA_HALF = 2,
    DATA_BFLOAT16 = 9,
    MODE_LSTM = 2,
    MODE_GRU = 3,
    NO_BIAS = 0,
    BIDIRECTIONAL = 1,
    STATUS_BAD_PARAM = 2000,

    DIMS_MAX = 8,
};

typedef struct tensor {
    int type;
    int count; // of dimensions
    int dims[DIMS_MAX];
    int strides[DIMS_MAX];
} tensor_t;

typedef struct rnn {
    int mode, type, bias_mode;
    int direction_count, layer_count;
    int32_t input_size, hidden_size, projection_size; // projection 0: none
} rnn_t;

typedef struct sequences {
    int length_max, batch;
} sequences_t;

// One matrix or bias: where it starts in the buffer, in elements, and its shape.
typedef struct weight {
    size_t offset;
    int rows, columns; // rows 0: there is none
} weight_t;

// ---- the layout

static size_t element_bytes(int type)
{
    switch (type) {
    case DATA_DOUBLE:
        return 8;
    case DATA_HALF:
    case DATA_BFLOAT16:
        return 2;
    default:
        return 4;
    }
}

// Gates of one cell; each has a matrix for the input and one for the recurrence.
static int gate_count(const rnn_t *rnn)
{
    return rnn->mode == MODE_LSTM ? 4 : rnn->mode == MODE_GRU ? 3 : 1;
}

static int output_size(const rnn_t *rnn)
{
    return rnn->projection_size > 0 ? rnn->projection_size : rnn->hidden_size;
}

static int pseudo_layer_count(const rnn_t *rnn)
{
    return rnn->layer_count * rnn->direction_count;
}

// The shape of a matrix; after those of the gates comes the projection.
static weight_t matrix_shape(const rnn_t *rnn, int pseudo_layer, int id)
{
    int gates = gate_count(rnn);
    bool first = pseudo_layer < rnn->direction_count;

    if (id == 2 * gates && rnn->projection_size > 0)
        return (weight_t){0, rnn->projection_size, rnn->hidden_size};
    if (id >= 2 * gates)
        return (weight_t){0};
    if (id >= gates)
        return (weight_t){0, rnn->hidden_size, output_size(rnn)};
    return (weight_t){0, rnn->hidden_size,
                      first ? rnn->input_size
                            : output_size(rnn) * rnn->direction_count};
}

static size_t element_count(weight_t weight)
{
    return (size_t)weight.rows * (size_t)weight.columns;
}

static weight_t find_matrix(const rnn_t *rnn, int pseudo_layer, int id)
{
    weight_t found = matrix_shape(rnn, pseudo_layer, id);

    for (int layer = 0; layer <= pseudo_layer; layer++) {
        int end = layer < pseudo_layer ? 2 * gate_count(rnn) + 1 : id;
        for (int i = 0; i < end; i++)
            found.offset += element_count(matrix_shape(rnn, layer, i));
    }
    return found;
}

static weight_t find_bias(const rnn_t *rnn, int pseudo_layer, int id)
{
    int per_layer = 2 * gate_count(rnn);
    weight_t end_of_matrices = find_matrix(rnn, pseudo_layer_count(rnn), 0);
    size_t before = (size_t)pseudo_layer * (size_t)per_layer + (size_t)id;

    if (rnn->bias_mode == NO_BIAS || id >= per_layer)
        return (weight_t){0};
    return (weight_t){
        .offset = end_of_matrices.offset + before * (size_t)rnn->hidden_size,
        .rows = rnn->hidden_size,
        .columns = 1,
    };
}

static size_t weight_count(const rnn_t *rnn)
{
    size_t biases = 0;

    if (rnn->bias_mode != NO_BIAS)
        biases = (size_t)(pseudo_layer_count(rnn) * 2 * gate_count(rnn)) *
                 (size_t)rnn->hidden_size;
    return find_matrix(rnn, pseudo_layer_count(rnn), 0).offset + biases;
}

// Tells where a weight lies in `buffer`, if the caller wants to know.
static void describe(const rnn_t *rnn, weight_t weight, const char *buffer,
                     tensor_t *tensor, const void **place)
{
    if (tensor != NULL)
        *tensor = (tensor_t){
            .type = rnn->type,
            .count = 3,
            .dims = {weight.rows > 0, weight.rows, weight.columns},
            .strides = {weight.rows * weight.columns, weight.columns, 1},
        };
    if (place != NULL)
        *place =
            weight.rows > 0 ? buffer + weight.offset * element_bytes(rnn->type) : NULL;
}

#pragma GCC visibility push(default)

// ---- tensors

int cudnnSetTensorNdDescriptor(tensor_t *tensor, int type, int count, const int *dims,
                               const int *strides)
{
    if (count < 0 || count > DIMS_MAX)
        return STATUS_BAD_PARAM;
    tensor->type = type;
    tensor->count = count;
    for (int i = 0; i < count; i++) {
        tensor->dims[i] = dims[i];
        tensor->strides[i] = strides[i];
    }
    return STANDIN_SUCCESS;
}

int cudnnGetTensorNdDescriptor(const tensor_t *tensor, int wanted, int *type,
                               int *count, int *dims, int *strides)
{
    *type = tensor->type;
    *count = tensor->count;
    for (int i = 0; i < wanted && i < tensor->count; i++) {
        dims[i] = tensor->dims[i];
        strides[i] = tensor->strides[i];
    }
    return STANDIN_SUCCESS;
}

// ---- recurrent networks

int cudnnSetRNNDescriptor_v8(rnn_t *rnn, int algorithm, int mode, int bias_mode,
                             int direction, int input_mode, int type, int precision,
                             int math, int32_t input_size, int32_t hidden_size,
                             int32_t projection_size, int32_t layer_count,
                             void *dropout, uint32_t flags)
{
    *rnn = (rnn_t){
        .mode = mode,
        .type = type,
        .bias_mode = bias_mode,
        .direction_count = direction == BIDIRECTIONAL ? 2 : 1,
        .layer_count = layer_count,
        .input_size = input_size,
        .hidden_size = hidden_size,
        .projection_size = projection_size == hidden_size ? 0 : projection_size,
    };
    return STANDIN_SUCCESS;
}

int cudnnGetRNNWeightSpaceSize(void *handle, const rnn_t *rnn, size_t *bytes)
{
    *bytes = weight_count(rnn) * element_bytes(rnn->type);
    return STANDIN_SUCCESS;
}

int cudnnGetRNNWeightParams(void *handle, const rnn_t *rnn, int32_t pseudo_layer,
                            size_t bytes, const char *buffer, int32_t id,
                            tensor_t *matrix, const void **matrix_place, tensor_t *bias,
                            const void **bias_place)
{
    describe(rnn, find_matrix(rnn, pseudo_layer, id), buffer, matrix, matrix_place);
    describe(rnn, find_bias(rnn, pseudo_layer, id), buffer, bias, bias_place);
    return STANDIN_SUCCESS;
}

int cudnnSetRNNDataDescriptor(sequences_t *sequences, int type, int layout,
                              int length_max, int batch, int vector_size,
                              const int *lengths, void *padding)
{
    *sequences = (sequences_t){length_max, batch};
    return STANDIN_SUCCESS;
}

// An estimate: backward needs about the gates and the cell of every step. The caller
// may ask for either size alone.
int cudnnGetRNNTempSpaceSizes(void *handle, const rnn_t *rnn, int forward_mode,
                              const sequences_t *sequences, size_t *workspace_bytes,
                              size_t *reserve_bytes)
{
    size_t steps = (size_t)sequences->length_max * (size_t)sequences->batch;
    size_t values = (size_t)pseudo_layer_count(rnn) * ((size_t)gate_count(rnn) + 1);

    if (workspace_bytes != NULL)
        *workspace_bytes = 0;
    if (reserve_bytes != NULL)
        *reserve_bytes =
            steps * values * (size_t)rnn->hidden_size * element_bytes(rnn->type);
    return STANDIN_SUCCESS;
}

#pragma GCC visibility pop
