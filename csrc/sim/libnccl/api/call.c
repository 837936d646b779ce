/* call.c - what programs call: collectives, messages, operations of their own, memory.
 */
#include "libnccl/api/group.h"
#include "libnccl/base/reduce.h"
#include "libnccl/ranks/error.h"

#include <stdlib.h>
#include <string.h>

// ---- checks of what is called

static nccl_operation_t operation_of(struct ncclComm *comm, nccl_kind_t kind,
                                     const void *in, void *out, size_t count,
                                     ncclDataType_t type)
{
    return (nccl_operation_t){
        .comm = comm,
        .call = {.kind = kind, .type = type, .count = count, .root = -1, .op = -1},
        .op = ncclSum,
        .scale = 1,
        .in = (uint64_t)(uintptr_t)in,
        .out = (uint64_t)(uintptr_t)out,
        .in_bytes = count * nccl_type_bytes(type),
        .out_bytes = count * nccl_type_bytes(type),
    };
}

static ncclResult_t check(const nccl_operation_t *operation)
{
    const nccl_call_t *call = &operation->call;

    if (nccl_type_bytes(call->type) == 0)
        return nccl_refuse(ncclInvalidArgument, "data type %d is unknown",
                           (int)call->type);
    if (call->root >= operation->comm->board.size)
        return nccl_refuse(ncclInvalidArgument, "rank %d of a communicator of %d",
                           call->root, operation->comm->board.size);
    return ncclSuccess;
}

static ncclResult_t give_checked(nccl_operation_t *operation, cudaStream_t stream)
{
    ncclResult_t result = check(operation);

    return result == ncclSuccess ? nccl_give(operation, stream) : result;
}

// Of an operation that the communicator has made, its scale.
static ncclResult_t set_op(nccl_operation_t *operation, int op)
{
    const struct ncclComm *comm = operation->comm;
    const ncclDataType_t type = operation->call.type;

    if (!nccl_type_reduces(type))
        return nccl_refuse(ncclInvalidUsage, "the simulated NCCL does not reduce %s",
                           nccl_type_name(type));
    if (op < 0 || op >= ncclNumOps + comm->scale_count)
        return nccl_refuse(ncclInvalidArgument, "operation %d does not exist", op);
    operation->op = op;
    operation->call.op = op < ncclNumOps ? op : ncclNumOps;
    if (op >= ncclNumOps)
        operation->scale = comm->scales[op - ncclNumOps];
    else if (op == ncclAvg && nccl_type_is_float(type))
        operation->scale = 1.0 / comm->board.size;
    return ncclSuccess;
}

static ncclResult_t give_reduction(nccl_operation_t *operation, int op,
                                   cudaStream_t stream)
{
    ncclResult_t result = check(operation);

    if (result == ncclSuccess)
        result = set_op(operation, op);
    return result == ncclSuccess ? nccl_give(operation, stream) : result;
}

// ---- what is exported

#pragma GCC visibility push(default)

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           int op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           int op, ncclComm_t comm, cudaStream_t stream)
{
    nccl_operation_t all = operation_of(comm, NCCL_ALL_REDUCE, in, out, count, type);

    return give_reduction(&all, op, stream);
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                        int op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                        int op, int root, ncclComm_t comm, cudaStream_t stream)
{
    nccl_operation_t to_one = operation_of(comm, NCCL_REDUCE, in, out, count, type);

    to_one.call.root = root;
    if (root != comm->rank)
        to_one.out = 0;
    return give_reduction(&to_one, op, stream);
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count,
                               ncclDataType_t type, int op, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count,
                               ncclDataType_t type, int op, ncclComm_t comm,
                               cudaStream_t stream)
{
    nccl_operation_t part =
        operation_of(comm, NCCL_REDUCE_SCATTER, in, out, count, type);

    part.in_bytes *= (uint64_t)comm->board.size;
    return give_reduction(&part, op, stream);
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    nccl_operation_t all = operation_of(comm, NCCL_ALL_GATHER, in, out, count, type);

    all.out_bytes *= (uint64_t)comm->board.size;
    return give_checked(&all, stream);
}

ncclResult_t ncclAlltoAll(const void *in, void *out, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAlltoAll(const void *in, void *out, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream)
{
    nccl_operation_t all = operation_of(comm, NCCL_ALL_TO_ALL, in, out, count, type);

    all.in_bytes = all.out_bytes *= (uint64_t)comm->board.size;
    return give_checked(&all, stream);
}

ncclResult_t ncclGather(const void *in, void *out, size_t count, ncclDataType_t type,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclGather(const void *in, void *out, size_t count, ncclDataType_t type,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    nccl_operation_t to_one = operation_of(comm, NCCL_GATHER, in, out, count, type);

    to_one.call.root = root;
    to_one.out_bytes *= (uint64_t)comm->board.size;
    if (root != comm->rank)
        to_one.out = to_one.out_bytes = 0;
    return give_checked(&to_one, stream);
}

ncclResult_t ncclScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                         int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                         int root, ncclComm_t comm, cudaStream_t stream)
{
    nccl_operation_t from_one = operation_of(comm, NCCL_SCATTER, in, out, count, type);

    from_one.call.root = root;
    from_one.in_bytes *= (uint64_t)comm->board.size;
    if (root != comm->rank)
        from_one.in = from_one.in_bytes = 0;
    return give_checked(&from_one, stream);
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    nccl_operation_t all = operation_of(comm, NCCL_BROADCAST, in, out, count, type);

    all.call.root = root;
    if (root != comm->rank && comm->board.is_alone)
        all.in = all.out; // nobody sends: it stays as it is
    else if (root != comm->rank)
        all.in = all.in_bytes = 0;
    return give_checked(&all, stream);
}

ncclResult_t ncclBcast(void *place, size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBcast(void *place, size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t stream)
{
    return ncclBroadcast(place, place, count, type, root, comm, stream);
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int to,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int to,
                      ncclComm_t comm, cudaStream_t stream)
{
    nccl_operation_t message = operation_of(comm, NCCL_SEND, in, NULL, count, type);

    message.call.root = to;
    message.out_bytes = 0;
    return give_checked(&message, stream);
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int from,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int from,
                      ncclComm_t comm, cudaStream_t stream)
{
    nccl_operation_t message = operation_of(comm, NCCL_RECV, NULL, out, count, type);

    message.call.root = from;
    message.in_bytes = 0;
    return give_checked(&message, stream);
}

// ---- operations of the program's own

ncclResult_t ncclRedOpCreatePreMulSum(int *op, const void *scalar, ncclDataType_t type,
                                      int where, ncclComm_t comm);
ncclResult_t ncclRedOpCreatePreMulSum(int *op, const void *scalar, ncclDataType_t type,
                                      int where, ncclComm_t comm)
{
    unsigned char number[8] = {0};
    const size_t bytes = nccl_type_bytes(type);

    if (bytes == 0)
        return ncclInvalidArgument;
    double *grown =
        realloc(comm->scales, ((size_t)comm->scale_count + 1) * sizeof(double));
    if (grown == NULL)
        return ncclSystemError;
    comm->scales = grown;
    if (where == ncclScalarHostImmediate)
        memcpy(number, scalar, bytes);
    else if (cuMemcpyDtoH(number, (CUdeviceptr)(uintptr_t)scalar, bytes) !=
             CUDA_SUCCESS)
        return ncclUnhandledCudaError;
    comm->scales[comm->scale_count] = nccl_number(number, type);
    *op = ncclNumOps + comm->scale_count++;
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(int op, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(int op, ncclComm_t comm)
{
    (void)comm;
    return op >= ncclNumOps ? ncclSuccess : ncclInvalidArgument;
}

// ---- memory

ncclResult_t ncclMemAlloc(void **place, size_t bytes);
ncclResult_t ncclMemAlloc(void **place, size_t bytes)
{
    CUdeviceptr addr;

    if (cuMemAlloc(&addr, bytes) != CUDA_SUCCESS)
        return nccl_refuse(ncclUnhandledCudaError, "out of memory");
    *place = (void *)(uintptr_t)addr;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *place);
ncclResult_t ncclMemFree(void *place)
{
    return cuMemFree((CUdeviceptr)(uintptr_t)place) == CUDA_SUCCESS
               ? ncclSuccess
               : ncclUnhandledCudaError;
}

// A real one speeds up what is registered.
ncclResult_t ncclCommRegister(ncclComm_t comm, void *place, size_t bytes,
                              void **handle);
ncclResult_t ncclCommRegister(ncclComm_t comm, void *place, size_t bytes, void **handle)
{
    (void)comm, (void)bytes;
    *handle = place;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle)
{
    (void)comm, (void)handle;
    return ncclSuccess;
}

#pragma GCC visibility pop
