/* message.c - calls between two ranks.
 *
 * A message goes through the communicator's file, each behind the one before, so who
 * sends waits for nobody. As with a real one, whose buffers are small, a large one is
 * over only when it has been taken.
 */
#include "libnccl/operations/message.h"

#include "libnccl/base/reduce.h"
#include "libnccl/ranks/error.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum {
    LARGE = 4 << 20,     // bytes: more than the buffers of a pair hold
    ALIGNMENT = 4 << 10, // of a message in the file
};

// What lies before a message in the file.
typedef struct head {
    nccl_call_t call;
    uint64_t bytes;
    int is_known;
} head_t;

static nccl_pair_t *out_of(const nccl_operation_t *operation)
{
    const struct ncclComm *comm = operation->comm;

    return nccl_pair(&comm->board, comm->rank, operation->call.root);
}

static nccl_pair_t *in_from(const nccl_operation_t *operation)
{
    const struct ncclComm *comm = operation->comm;

    return nccl_pair(&comm->board, operation->call.root, comm->rank);
}

static bool needs_nobody(const nccl_operation_t *operation)
{
    return operation->comm->is_stopped || operation->comm->board.is_alone;
}

// Where a message of so many bytes lies behind `done` bytes of others, which become
// more by it. Both sides reckon alike.
static uint64_t next_place(uint64_t *done, uint64_t bytes)
{
    const uint64_t whole =
        (sizeof(head_t) + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const uint64_t room = NCCL_ROOM - *done % NCCL_ROOM;

    if (room < whole) // it is not cut
        *done += room;
    const uint64_t place = *done % NCCL_ROOM;
    *done += whole;
    return place;
}

// ---- sending

static void come_to_send(void *argument, uint64_t now_ns)
{
    const nccl_operation_t *operation = argument;

    nccl_own(operation->comm)->call = operation->call;
    atomic_store(&out_of(operation)->sent_ns, now_ns + operation->cost_ns);
}

static int may_send(void *argument, uint64_t *met_ns)
{
    (void)argument;
    *met_ns = 0;
    return 1;
}

static void call_nobody(void *argument)
{
    (void)argument;
}

static int is_expected(void *argument)
{
    const nccl_pair_t *pair = out_of(argument);

    return atomic_load(&pair->wanted) > atomic_load(&pair->sent_count);
}

static int send_message(void *argument)
{
    const nccl_operation_t *operation = argument;
    struct ncclComm *comm = operation->comm;
    const int to = operation->call.root;
    _Alignas(16) unsigned char small[NCCL_SMALL];
    const void *payload = (const void *)(uintptr_t)operation->in;
    head_t head = {
        .call = operation->call, .bytes = operation->in_bytes, .is_known = 1};

    if (needs_nobody(operation))
        return 0;
    if (!oomph_sim_has_bytes()) {
        head.is_known = head.bytes <= sizeof small &&
                        oomph_sim_peek(operation->in, small, head.bytes);
        payload = small;
    }
    const uint64_t place = nccl_mail_place(&comm->board, comm->rank, to) +
                           next_place(&comm->sent_bytes[to], head.bytes);
    if (pwrite(comm->board.file, &head, sizeof head, (off_t)place) != sizeof head)
        return 1;
    if (head.is_known && pwrite(comm->board.file, payload, head.bytes,
                                (off_t)(place + sizeof head)) != (ssize_t)head.bytes)
        return 1;
    out_of(operation)->call = operation->call;
    atomic_fetch_add(&out_of(operation)->sent_count, 1);
    return 0;
}

// ---- receiving

static void come_to_receive(void *argument, uint64_t now_ns)
{
    const nccl_operation_t *operation = argument;
    nccl_pair_t *pair = in_from(operation);

    (void)now_ns;
    nccl_own(operation->comm)->call = operation->call;
    atomic_store(&pair->expected_count, atomic_load(&pair->taken_count) + 1);
}

static int may_receive(void *argument, uint64_t *met_ns)
{
    const nccl_operation_t *operation = argument;
    nccl_pair_t *pair = in_from(operation);

    *met_ns = needs_nobody(operation) ? 0 : atomic_load(&pair->sent_ns);
    return needs_nobody(operation) || nccl_is_under_way(pair);
}

static void call_sender(void *argument)
{
    nccl_pair_t *pair = in_from(argument);

    atomic_store(&pair->wanted, atomic_load(&pair->taken_count) + 1);
}

static int is_receipt_expected(void *argument)
{
    const nccl_pair_t *pair = in_from(argument);

    return atomic_load(&pair->wanted_back) > atomic_load(&pair->taken_count);
}

static void check(struct ncclComm *comm, const nccl_call_t *taken,
                  const nccl_call_t *sent)
{
    if (taken->count == sent->count && taken->type == sent->type)
        return;
    nccl_fail(comm, ncclInvalidUsage,
              "rank %d sends %zu %s%s%s, and rank %d receives %zu %s%s%s",
              nccl_name(&comm->board, taken->root), sent->count,
              nccl_type_name(sent->type), *sent->line ? " at " : "", sent->line,
              nccl_name(&comm->board, comm->rank), taken->count,
              nccl_type_name(taken->type), *taken->line ? " at " : "", taken->line);
}

static bool take(const nccl_operation_t *operation, uint64_t place, const head_t *head)
{
    const uint64_t bytes =
        head->bytes < operation->out_bytes ? head->bytes : operation->out_bytes;
    const int file = operation->comm->board.file;
    char small[NCCL_SMALL];
    const bool has_bytes = oomph_sim_has_bytes();

    if (!has_bytes && (!head->is_known || bytes > sizeof small)) {
        oomph_sim_poke(operation->out, NULL, operation->out_bytes);
        return true;
    }
    char *into = has_bytes ? (char *)(uintptr_t)operation->out : small;
    if (pread(file, into, bytes, (off_t)(place + sizeof *head)) != (ssize_t)bytes)
        return false;
    if (!has_bytes)
        oomph_sim_poke(operation->out, small, bytes);
    if (bytes > LARGE)
        fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)(place + ALIGNMENT), (off_t)(bytes / ALIGNMENT * ALIGNMENT));
    return true;
}

// What the rank itself has sent, if that is known (group.c).
static void receive_alone(const nccl_operation_t *operation)
{
    char small[NCCL_SMALL];
    const uint64_t bytes = operation->in_bytes;
    const bool has_bytes = oomph_sim_has_bytes();

    if (has_bytes && bytes > 0)
        memmove((void *)(uintptr_t)operation->out,
                (const void *)(uintptr_t)operation->in, bytes);
    else if (!has_bytes && bytes > 0 && bytes <= sizeof small &&
             oomph_sim_peek(operation->in, small, bytes))
        oomph_sim_poke(operation->out, small, bytes);
    else if (!has_bytes)
        oomph_sim_poke(operation->out, NULL, operation->out_bytes);
}

static int receive(void *argument)
{
    const nccl_operation_t *operation = argument;
    struct ncclComm *comm = operation->comm;
    const int from = operation->call.root;
    nccl_pair_t *pair = in_from(operation);
    head_t head;

    if (needs_nobody(operation)) {
        receive_alone(operation);
        return 0;
    }
    uint64_t begin = comm->taken_bytes[from];
    const uint64_t room = nccl_mail_place(&comm->board, from, comm->rank);
    const uint64_t expected = operation->out_bytes;
    uint64_t place = room + next_place(&begin, expected);
    if (pread(comm->board.file, &head, sizeof head, (off_t)place) != sizeof head)
        return 1;
    comm->taken_bytes[from] = begin;
    check(comm, &operation->call, &head.call);
    if (!take(operation, place, &head))
        return 1;
    atomic_store(&pair->taken_ns, atomic_load(&pair->sent_ns));
    atomic_fetch_add(&pair->taken_count, 1);
    return 0;
}

// ---- the end of a large one

static void come_for_receipt(void *argument, uint64_t now_ns)
{
    const nccl_operation_t *operation = argument;
    nccl_pair_t *pair = out_of(operation);

    (void)now_ns;
    nccl_own(operation->comm)->call = operation->call;
    atomic_store(&pair->receipt_count, atomic_load(&pair->sent_count));
}

static int is_taken(void *argument, uint64_t *met_ns)
{
    const nccl_operation_t *operation = argument;
    const nccl_pair_t *pair = out_of(operation);

    *met_ns = needs_nobody(operation) ? 0 : atomic_load(&pair->taken_ns);
    return needs_nobody(operation) ||
           atomic_load(&pair->taken_count) >= atomic_load(&pair->sent_count);
}

static void call_receiver(void *argument)
{
    nccl_pair_t *pair = out_of(argument);

    atomic_store(&pair->wanted_back, atomic_load(&pair->sent_count));
}

static int is_called_by_nobody(void *argument)
{
    (void)argument;
    return 0;
}

static int do_nothing(void *argument)
{
    (void)argument;
    return 0;
}

static const oomph_sim_meeting_t SENDING = {come_to_send, may_send, call_nobody,
                                            is_expected};
static const oomph_sim_meeting_t RECEIVING = {come_to_receive, may_receive, call_sender,
                                              is_receipt_expected};
static const oomph_sim_meeting_t RECEIPT = {come_for_receipt, is_taken, call_receiver,
                                            is_called_by_nobody};

// ---- what is given to a stream

static ncclResult_t submit_all(const nccl_operation_t *operations, size_t count,
                               nccl_kind_t kind, cudaStream_t stream)
{
    const bool sends = kind == NCCL_SEND;
    ncclResult_t result = ncclSuccess;

    for (size_t i = 0; result == ncclSuccess && i < count; i++) {
        nccl_operation_t given = operations[i];
        if (given.call.kind != kind)
            continue;
        given.cost_ns =
            nccl_cost_ns((double)(sends ? given.in_bytes : given.out_bytes), 1);
        result = nccl_submit(&given, sends ? &SENDING : &RECEIVING,
                             sends ? send_message : receive, stream);
    }
    return result;
}

static ncclResult_t submit_receipts(const nccl_operation_t *operations, size_t count,
                                    cudaStream_t stream)
{
    ncclResult_t result = ncclSuccess;

    for (size_t i = 0; result == ncclSuccess && i < count; i++) {
        nccl_operation_t given = operations[i];
        if (given.call.kind == NCCL_SEND && given.in_bytes > LARGE)
            result = nccl_submit(&given, &RECEIPT, do_nothing, stream);
    }
    return result;
}

// All of a group go on together: so what is sent comes first.
ncclResult_t nccl_give_messages(const nccl_operation_t *operations, size_t count,
                                cudaStream_t stream)
{
    ncclResult_t result = ncclSuccess;

    if (!nccl_enter(operations[0].comm))
        return ncclUnhandledCudaError;
    for (size_t i = 0; result == ncclSuccess && i < count; i++)
        result = nccl_order(operations[i].comm, stream);
    if (result == ncclSuccess)
        result = submit_all(operations, count, NCCL_SEND, stream);
    if (result == ncclSuccess)
        result = submit_all(operations, count, NCCL_RECV, stream);
    if (result == ncclSuccess)
        result = submit_receipts(operations, count, stream);
    for (size_t i = 0; result == ncclSuccess && i < count; i++)
        result = nccl_ordered(operations[i].comm, stream);
    nccl_leave();
    return result;
}
