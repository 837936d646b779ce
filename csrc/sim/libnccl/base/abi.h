/* abi.h - NCCL's types and numbers, as nccl.h of 2.28 has them. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { NCCL_VERSION = 22809 };

typedef enum ncclResult {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress,
} ncclResult_t;

typedef enum ncclDataType {
    ncclInt8,
    ncclUint8,
    ncclInt32,
    ncclUint32,
    ncclInt64,
    ncclUint64,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
    ncclBfloat16,
    ncclFloat8e4m3,
    ncclFloat8e5m2,
    ncclNumTypes,
} ncclDataType_t;

// From ncclNumOps on: those that a communicator has made.
enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps };

enum { ncclScalarDevice, ncclScalarHostImmediate };
enum { NCCL_SPLIT_NOCOLOR = -1, NCCL_SHRINK_ABORT = 1 };

typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *cudaStream_t;
