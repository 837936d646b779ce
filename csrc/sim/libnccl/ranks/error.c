#include "libnccl/ranks/error.h"

#include "libnccl/base/reduce.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// ---- what ranks call

static const char *name_of(nccl_kind_t kind)
{
    static const char *const NAMES[] = {
        "all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce",
        "all-to-all", "gather",     "scatter",        "send",      "receive",
    };

    return NAMES[kind];
}

int nccl_name(const nccl_board_t *board, int rank)
{
    const int world_rank = nccl_member(board, rank)->world_rank;

    return world_rank >= 0 && !board->is_alone ? world_rank : rank;
}

// What there is to say besides: ", root 0".
static void describe_more(const nccl_board_t *board, const nccl_call_t *call,
                          char *text, size_t bytes)
{
    static const char *const OPS[] = {"sum", "product", "maximum", "minimum",
                                      "average"};

    *text = '\0';
    if (call->kind == NCCL_ALL_REDUCE || call->kind == NCCL_REDUCE ||
        call->kind == NCCL_REDUCE_SCATTER)
        snprintf(text, bytes, ", %s",
                 call->op < ncclNumOps ? OPS[call->op] : "scaled sum");
    const size_t used = strlen(text);
    if (call->root >= 0)
        snprintf(text + used, bytes - used, ", %s %d",
                 call->kind == NCCL_SEND   ? "to rank"
                 : call->kind == NCCL_RECV ? "from rank"
                                           : "root",
                 nccl_name(board, call->root));
}

void nccl_describe(const nccl_board_t *board, int rank, const nccl_call_t *call,
                   char *text, size_t bytes)
{
    char more[64];

    if (call->count == 0) {
        snprintf(text, bytes, "rank %d: no call yet", nccl_name(board, rank));
        return;
    }
    describe_more(board, call, more, sizeof more);
    snprintf(text, bytes, "rank %d: %s of %zu %s%s%s%s", nccl_name(board, rank),
             name_of(call->kind), call->count, nccl_type_name(call->type), more,
             *call->line ? " at " : "", call->line);
}

// ---- errors

// Of all communicators, as PyTorch asks for it without naming one.
static char last_error[640];
static pthread_mutex_t last_error_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_error(const char *text)
{
    pthread_mutex_lock(&last_error_lock);
    snprintf(last_error, sizeof last_error, "%s", text);
    pthread_mutex_unlock(&last_error_lock);
}

void nccl_fail(struct ncclComm *comm, ncclResult_t error, const char *format, ...)
{
    va_list arguments;

    pthread_mutex_lock(&last_error_lock);
    const bool is_first = comm->error == ncclSuccess;
    va_start(arguments, format);
    if (is_first)
        vsnprintf(comm->text, sizeof comm->text, format, arguments);
    va_end(arguments);
    if (is_first)
        atomic_store(&comm->error, (int)error);
    pthread_mutex_unlock(&last_error_lock);
    if (!is_first)
        return;
    keep_error(comm->text);
    fprintf(stderr, "oomph: %s\n", comm->text); // PyTorch 2.15 asks for the code alone
}

void nccl_fail_both(struct ncclComm *comm, ncclResult_t error, const char *text,
                    const nccl_call_t *call, int other, const nccl_call_t *theirs)
{
    char own[NCCL_CALL_TEXT], others[NCCL_CALL_TEXT];
    const bool is_first =
        nccl_name(&comm->board, comm->rank) < nccl_name(&comm->board, other);

    nccl_describe(&comm->board, comm->rank, call, own, sizeof own);
    nccl_describe(&comm->board, other, theirs, others, sizeof others);
    nccl_fail(comm, error, "%s: %s; %s", text, is_first ? own : others,
              is_first ? others : own);
}

ncclResult_t nccl_refuse(ncclResult_t error, const char *format, ...)
{
    char text[sizeof last_error];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    keep_error(text);
    return error;
}

int oomph_sim_nccl_unsupported(const char *function, int status)
{
    oomph_sim_note_unsupported(function);
    return nccl_refuse((ncclResult_t)status, "%s", oomph_sim_refusal());
}

// ---- what is exported

#pragma GCC visibility push(default)

const char *ncclGetLastError(ncclComm_t comm);
const char *ncclGetLastError(ncclComm_t comm)
{
    if (comm != NULL && comm->error != ncclSuccess)
        return comm->text;
    return last_error[0] != '\0' ? last_error : oomph_sim_refusal();
}

const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const TEXTS[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };

    return (unsigned)result < sizeof TEXTS / sizeof TEXTS[0] ? TEXTS[result]
                                                             : "unknown result code";
}

#pragma GCC visibility pop
