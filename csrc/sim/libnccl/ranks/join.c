#include "libnccl/ranks/join.h"

#include "libnccl/ranks/error.h"
#include "libnccl/ranks/watch.h"
#include "sim.h"

#include <ctype.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PATIENCE = 200, // looks at others before a thread sleeps between them
};

static const uint64_t MIB = 1 << 20, CHANNELS = 24;

// ---- meeting on the host

void nccl_pause_after(unsigned looks)
{
    const struct timespec while_ = {.tv_nsec = 500000};

    if (looks < PATIENCE)
        sched_yield();
    else
        nanosleep(&while_, NULL);
}

// Waits until a rank has come as far on its host. False: it never will.
static bool wait_for(struct ncclComm *comm, int rank, uint64_t host_count, bool may_end)
{
    const nccl_member_t *member = nccl_member(&comm->board, rank);

    for (unsigned looks = 0; atomic_load(&member->host_count) < host_count; looks++) {
        if (comm->is_stopped || comm->error != ncclSuccess ||
            (may_end && !nccl_board_lives(&comm->board, rank) &&
             atomic_load(&member->host_count) < host_count))
            return false;
        nccl_pause_after(looks);
    }
    return true;
}

ncclResult_t nccl_meet_on_host(struct ncclComm *comm)
{
    const uint64_t host_count = ++comm->host_count;

    if (comm->board.is_alone)
        return ncclSuccess;
    atomic_store(&nccl_own(comm)->host_count, host_count);
    nccl_watch_host(comm, true);
    int rank = 0;
    while (rank < comm->board.size && wait_for(comm, rank, host_count, host_count > 1))
        rank++;
    nccl_watch_host(comm, false);
    if (comm->error != ncclSuccess)
        return nccl_refuse((ncclResult_t)comm->error, "%s", comm->text);
    return rank == comm->board.size
               ? ncclSuccess
               : nccl_refuse(ncclRemoteError, "rank %d of the communicator has ended",
                             rank);
}

// ---- what NCCL takes for itself

// NCCL 2.28's own sources (init.cc, p2p.cc, nvls.cc): over NVLink each channel of a
// ring has 10 MiB to receive and 2 MiB to send, and a card of compute capability 9 or
// more has 16 channels of 16 MiB for the switch. Without NVLink buffers lie on the
// host.
static uint64_t own_bytes(int size)
{
    if (size == 1)
        return 0;
    if (!oomph_sim_has_nvlink())
        return 4 * MIB;
    return CHANNELS * 12 * MIB + (oomph_sim_cc_major() >= 9 ? 256 * MIB : 0);
}

// ---- joining

static bool is_alone(void)
{
    const char *world = getenv("OOMPH_SIMULATE_WORLD"); // oomph run --world

    return world != NULL && *world != '\0';
}

static int world_rank(void)
{
    const char *rank = getenv("RANK");

    return rank != NULL && isdigit((unsigned char)*rank) ? (int)strtol(rank, NULL, 10)
                                                         : -1;
}

static ncclResult_t open_board(const nccl_address_t *address, int size, int rank,
                               nccl_board_t *board)
{
    if (is_alone())
        return nccl_board_open_alone(size, board);
    if (size > NCCL_RANKS_MAX)
        return nccl_refuse(ncclInvalidArgument,
                           "the simulated NCCL has at most %d ranks; to run one of "
                           "more, use oomph run --world",
                           NCCL_RANKS_MAX);
    ncclResult_t result = nccl_board_open(address, size, rank, board);
    if (result == ncclInvalidArgument)
        return nccl_refuse(
            result,
            "process %d, which made the communicator's id, has ended, or "
            "is on another machine, or made it for another world size",
            address->process);
    return result;
}

ncclResult_t nccl_join_begin(const nccl_address_t *address, int size, int rank,
                             int device, struct ncclComm **made)
{
    if (made == NULL || size < 1 || rank < 0 || rank >= size)
        return nccl_refuse(ncclInvalidArgument, "rank %d of %d", rank, size);
    struct ncclComm *comm = nccl_comm_new(size, rank, device);
    if (comm == NULL)
        return ncclSystemError;
    if (cuDevicePrimaryCtxRetain(&comm->context, device) != CUDA_SUCCESS) {
        nccl_comm_free(comm);
        return nccl_refuse(ncclUnhandledCudaError, "device %d has no context", device);
    }
    ncclResult_t result = open_board(address, size, rank, &comm->board);
    if (result != ncclSuccess) {
        cuDevicePrimaryCtxRelease(device);
        nccl_comm_free(comm);
        return result;
    }
    nccl_member_t *own = nccl_own(comm);
    own->process = getpid();
    own->world_rank = world_rank();
    own->bytes_file = oomph_sim_bytes_file();
    own->now_ns = oomph_sim_now_ns();
    memcpy(&own->child, address, sizeof *address);
    atomic_store(&own->host_count, 1);
    *made = comm;
    return ncclSuccess;
}

// Clocks of processes start when they start: from here on they are one.
static void set_clock(struct ncclComm *comm)
{
    const uint64_t now_ns = oomph_sim_now_ns();
    uint64_t latest_ns = now_ns;

    for (int rank = 0; !comm->board.is_alone && rank < comm->board.size; rank++) {
        const uint64_t theirs = nccl_member(&comm->board, rank)->now_ns;
        latest_ns = theirs > latest_ns ? theirs : latest_ns;
    }
    oomph_sim_advance(latest_ns - now_ns);
}

static ncclResult_t take_own_memory(struct ncclComm *comm)
{
    const uint64_t bytes = own_bytes(comm->board.size);
    CUresult result = CUDA_SUCCESS;

    if (bytes == 0)
        return ncclSuccess;
    if (!nccl_enter(comm))
        return ncclUnhandledCudaError;
    result = cuMemAlloc(&comm->buffers, bytes);
    nccl_leave();
    return result == CUDA_SUCCESS
               ? ncclSuccess
               : nccl_refuse(ncclUnhandledCudaError,
                             "out of memory: NCCL takes %llu MiB of the device for a "
                             "communicator of %d ranks",
                             (unsigned long long)(bytes / MIB), comm->board.size);
}

ncclResult_t nccl_join_end(struct ncclComm *comm)
{
    ncclResult_t result = nccl_meet_on_host(comm);

    nccl_board_forget(&nccl_own(comm)->child);
    if (result != ncclSuccess)
        return result;
    set_clock(comm);
    if (!comm->board.is_alone && comm->board.size > 1)
        nccl_watch(comm);
    return take_own_memory(comm);
}
