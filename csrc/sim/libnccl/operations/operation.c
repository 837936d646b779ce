#include "libnccl/operations/operation.h"

#include <stdlib.h>

// Estimates: what a kernel of NCCL takes, and each step of a ring; and what large
// messages reach of the fabric's speed.
enum { KERNEL_NS = 8000, STEP_NS = 1500 };
static const double FABRIC_SHARE = 0.8;

uint64_t nccl_cost_ns(double bytes, int step_count)
{
    const double bytes_per_s = oomph_sim_fabric_bytes_per_s() * FABRIC_SHARE;

    return (uint64_t)KERNEL_NS + (uint64_t)step_count * STEP_NS +
           (uint64_t)(bytes * 1e9 / bytes_per_s);
}

static void release(void *argument)
{
    nccl_operation_t *operation = argument;

    nccl_comm_drop(operation->comm);
    free(operation);
}

ncclResult_t nccl_submit(const nccl_operation_t *operation,
                         const oomph_sim_meeting_t *meeting, int (*run)(void *),
                         cudaStream_t stream)
{
    nccl_operation_t *own = malloc(sizeof *own);
    oomph_sim_range_t ranges[2];
    size_t range_count = 0;

    if (own == NULL)
        return ncclSystemError;
    *own = *operation;
    nccl_comm_share(own->comm);
    if (own->in != 0 && own->in_bytes > 0)
        ranges[range_count++] =
            (oomph_sim_range_t){.addr = own->in, .bytes = own->in_bytes};
    if (own->out != 0 && own->out_bytes > 0)
        ranges[range_count++] =
            (oomph_sim_range_t){.addr = own->out, .bytes = own->out_bytes, .writes = 1};
    const oomph_sim_compute_t what = {
        .name = "NCCL",
        .ranges = ranges,
        .range_count = range_count,
        .run = run,
        .release = release,
        .argument = own,
        .makes_calls = oomph_sim_has_bytes(),
        .meeting = meeting,
        .cost_ns = own->cost_ns,
    };
    return oomph_sim_compute(&what, stream) == 0 ? ncclSuccess : ncclUnhandledCudaError;
}

// A graph that is captured has its own order.
static bool is_captured(cudaStream_t stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

ncclResult_t nccl_order(struct ncclComm *comm, cudaStream_t stream)
{
    if (comm->last == NULL || comm->last_stream == stream || is_captured(stream))
        return ncclSuccess;
    return cuStreamWaitEvent(stream, comm->last, 0) == CUDA_SUCCESS
               ? ncclSuccess
               : ncclUnhandledCudaError;
}

ncclResult_t nccl_ordered(struct ncclComm *comm, cudaStream_t stream)
{
    if (is_captured(stream))
        return ncclSuccess;
    if (comm->last == NULL &&
        cuEventCreate(&comm->last, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return ncclUnhandledCudaError;
    comm->last_stream = stream;
    return cuEventRecord(comm->last, stream) == CUDA_SUCCESS ? ncclSuccess
                                                             : ncclUnhandledCudaError;
}
