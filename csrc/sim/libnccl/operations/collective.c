/* collective.c - calls that all ranks of a communicator make.
 *
 * A reduction goes as on a ring: the part of rank j starts with the numbers of rank
 * j + 1 and ends with its own. For a reduction to all, each rank reduces its part, and
 * then reads the others' from the communicator's file.
 */
#include "libnccl/operations/collective.h"

#include "libnccl/base/reduce.h"
#include "libnccl/operations/meeting.h"
#include "libnccl/ranks/error.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t CHUNK = 256 << 10; // bytes that are reduced at a time

// ---- what others give

// Reads from a rank's input where memory is real.
static bool read_bytes(struct ncclComm *comm, int rank, uint64_t from, void *into,
                       size_t bytes)
{
    const nccl_input_t *input = &nccl_member(&comm->board, rank)->input;
    const int file = nccl_bytes_file(comm, comm->board.is_alone ? comm->rank : rank);
    char *place = into;

    for (size_t i = 0; i < input->piece_count && bytes > 0; i++) {
        const oomph_sim_piece_t *piece = &input->pieces[i];
        if (from >= piece->bytes) {
            from -= piece->bytes;
            continue;
        }
        const size_t part = piece->bytes - from < bytes ? piece->bytes - from : bytes;
        if (pread(file, place, part, (off_t)(piece->offset + from)) != (ssize_t)part)
            return false;
        place += part;
        bytes -= part;
        from = 0;
    }
    return bytes == 0;
}

// Reads from a rank's input. False: it cannot be read, or nothing is known of it.
static bool read_input(struct ncclComm *comm, int rank, uint64_t from, void *into,
                       size_t bytes)
{
    const nccl_input_t *input = &nccl_member(&comm->board, rank)->input;

    if (oomph_sim_has_bytes())
        return read_bytes(comm, rank, from, into, bytes);
    if (input->is_known)
        memcpy(into, input->small + from, bytes);
    return input->is_known;
}

// ---- reductions

// As if all ranks gave the same.
static bool reduce_alone(const nccl_operation_t *operation, uint64_t from, char *into,
                         size_t bytes)
{
    const ncclDataType_t type = operation->call.type;
    const size_t count = bytes / nccl_type_bytes(type);

    if (!read_input(operation->comm, operation->comm->rank, from, into, bytes))
        return false;
    if (operation->scale != 1)
        nccl_scale(into, count, type, operation->scale);
    if (operation->op == ncclSum || operation->op >= ncclNumOps ||
        (operation->op == ncclAvg && nccl_type_is_float(type)))
        nccl_scale(into, count, type, operation->comm->board.size);
    return true;
}

// Reduces `bytes`, from `from` on, of all inputs, the one of `last` at the end.
static bool reduce_chunk(const nccl_operation_t *operation, int last, uint64_t from,
                         char *into, char *other, size_t bytes)
{
    struct ncclComm *comm = operation->comm;
    const ncclDataType_t type = operation->call.type;
    const size_t count = bytes / nccl_type_bytes(type);
    const int size = comm->board.size;

    if (comm->board.is_alone)
        return reduce_alone(operation, from, into, bytes);
    for (int i = 1; i <= size; i++) {
        char *read = i == 1 ? into : other;
        if (!read_input(comm, (last + i) % size, from, read, bytes))
            return false;
        if (operation->scale != 1)
            nccl_scale(read, count, type, operation->scale);
        if (i > 1)
            nccl_combine(into, other, count, type, operation->op);
    }
    if (operation->op == ncclAvg && !nccl_type_is_float(type))
        nccl_divide(into, count, type, size);
    return true;
}

// Where a result goes: to memory, or where that is 0, into a file.
typedef struct target {
    char *place;
    int file;
    uint64_t offset;
} target_t;

static bool put(const target_t *target, uint64_t at, const char *from, size_t bytes)
{
    if (target->place != NULL)
        memcpy(target->place + at, from, bytes);
    return target->place != NULL ||
           pwrite(target->file, from, bytes, (off_t)(target->offset + at)) ==
               (ssize_t)bytes;
}

static bool reduce(const nccl_operation_t *operation, int last, uint64_t from,
                   uint64_t bytes, const target_t *target)
{
    char *into = malloc(2 * CHUNK);
    bool is_done = into != NULL;

    for (uint64_t at = 0; is_done && at < bytes; at += CHUNK) {
        const size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
        is_done = reduce_chunk(operation, last, from + at, into, into + CHUNK, part) &&
                  put(target, at, into, part);
    }
    free(into);
    return is_done;
}

// The part of a reduction to all that is a rank's, in bytes.
static void part_of(const nccl_operation_t *operation, int rank, uint64_t *from,
                    uint64_t *bytes)
{
    const uint64_t item = nccl_type_bytes(operation->call.type);
    const uint64_t size = (uint64_t)operation->comm->board.size;
    const uint64_t each = (operation->call.count + size - 1) / size * item;
    const uint64_t end = operation->in_bytes;

    *from = each * (uint64_t)rank < end ? each * (uint64_t)rank : end;
    *bytes = end - *from < each ? end - *from : each;
}

// ---- what a rank does

// Gathers from each rank what lies at `from` in its input; the parts go one behind the
// other.
static bool gather(const nccl_operation_t *operation, uint64_t from, uint64_t bytes,
                   char *into)
{
    for (int rank = 0; rank < operation->comm->board.size; rank++)
        if (!read_input(operation->comm, rank, from, into + (uint64_t)rank * bytes,
                        bytes))
            return false;
    return true;
}

// The result of this rank, in one piece.
static bool compute(const nccl_operation_t *operation, char *out)
{
    struct ncclComm *comm = operation->comm;
    const nccl_call_t *call = &operation->call;
    const uint64_t bytes = call->count * nccl_type_bytes(call->type);
    const uint64_t rank = (uint64_t)comm->rank;
    const target_t target = {.place = out};

    switch (call->kind) {
    case NCCL_ALL_GATHER:
    case NCCL_GATHER:
        return gather(operation, 0, bytes, out);
    case NCCL_ALL_TO_ALL:
        return gather(operation, rank * bytes, bytes, out);
    case NCCL_SCATTER:
        return read_input(comm, call->root, rank * bytes, out, bytes);
    case NCCL_BROADCAST:
        return read_input(comm, call->root, 0, out, bytes);
    case NCCL_REDUCE_SCATTER:
        return reduce(operation, comm->rank, rank * bytes, bytes, &target);
    case NCCL_REDUCE:
        return reduce(operation, call->root, 0, bytes, &target);
    default:
        return reduce(operation, 0, 0, bytes, &target);
    }
}

// Where memory is not real: what is known.
static void compute_small(const nccl_operation_t *operation)
{
    _Alignas(16) char small[NCCL_SMALL];
    const bool is_known =
        operation->out_bytes <= sizeof small && compute(operation, small);

    oomph_sim_poke(operation->out, is_known ? small : NULL, operation->out_bytes);
}

// The part of this rank, for all.
static bool reduce_part(const nccl_operation_t *operation)
{
    const struct ncclComm *comm = operation->comm;
    const target_t target = {.file = comm->board.file,
                             .offset = nccl_result_place(comm->rank)};
    uint64_t from, bytes;

    part_of(operation, comm->rank, &from, &bytes);
    return reduce(operation, comm->rank, from, bytes, &target);
}

static int run_first(void *argument)
{
    const nccl_operation_t *operation = argument;
    struct ncclComm *comm = operation->comm;
    const bool is_for_all =
        operation->call.kind == NCCL_ALL_REDUCE && !comm->board.is_alone;

    if (comm->is_stopped || operation->out == 0)
        return 0;
    if (!oomph_sim_has_bytes()) {
        compute_small(operation);
        return 0;
    }
    if (is_for_all ? reduce_part(operation)
                   : compute(operation, (char *)(uintptr_t)operation->out))
        return 0;
    nccl_fail(comm, ncclSystemError,
              "what a rank gives cannot be read: it lies in memory of another process, "
              "or in more than %d pieces",
              NCCL_PIECES_MAX);
    return 1;
}

static int run_second(void *argument)
{
    const nccl_operation_t *operation = argument;
    const nccl_board_t *board = &operation->comm->board;
    uint64_t from, bytes;

    if (operation->comm->is_stopped || operation->call.kind != NCCL_ALL_REDUCE ||
        !oomph_sim_has_bytes() || board->is_alone)
        return 0;
    for (int rank = 0; rank < board->size; rank++) {
        part_of(operation, rank, &from, &bytes);
        char *place = (char *)(uintptr_t)(operation->out + from);
        if (bytes > 0 && pread(board->file, place, bytes,
                               (off_t)nccl_result_place(rank)) != (ssize_t)bytes)
            return 1;
    }
    return 0;
}

static uint64_t cost_ns(const nccl_operation_t *operation)
{
    const int size = operation->comm->board.size;
    const double bytes =
        (double)operation->call.count * (double)nccl_type_bytes(operation->call.type);

    switch (operation->call.kind) {
    case NCCL_ALL_REDUCE:
        return nccl_cost_ns(2 * bytes * (size - 1) / size, 2 * (size - 1));
    case NCCL_ALL_GATHER:
    case NCCL_REDUCE_SCATTER:
    case NCCL_ALL_TO_ALL:
    case NCCL_GATHER:
    case NCCL_SCATTER:
        return nccl_cost_ns(bytes * (size - 1), size - 1);
    default:
        return nccl_cost_ns(size > 1 ? bytes : 0, size - 1);
    }
}

ncclResult_t nccl_give_collective(const nccl_operation_t *operation,
                                  cudaStream_t stream)
{
    nccl_operation_t given = *operation;

    if (!nccl_enter(given.comm))
        return ncclUnhandledCudaError;
    ncclResult_t result = nccl_order(given.comm, stream);
    given.cost_ns = cost_ns(operation);
    if (result == ncclSuccess)
        result = nccl_submit(&given, &nccl_first_meeting, run_first, stream);
    given.cost_ns = 0;
    if (result == ncclSuccess)
        result = nccl_submit(&given, &nccl_second_meeting, run_second, stream);
    if (result == ncclSuccess)
        result = nccl_ordered(given.comm, stream);
    nccl_leave();
    return result;
}
