/* board.h - what the ranks of a communicator share: a file in memory that each of them
 * has mapped, wherever its process is on this machine.
 *
 * The file has no name: whoever makes it gives its number in its process, and others
 * open it by that. So nothing is left when processes end, however they end. Each rank
 * writes to what is its own, all read; who still lives is known by locks, which the
 * system gives up with the process.
 *
 * Behind what is mapped, far apart, the file has places for the results of reductions
 * and for messages.
 */
#pragma once
#include "libnccl/base/abi.h"
#include "runtime.h"

#include <stdatomic.h>
#include <stdbool.h>

enum {
    NCCL_RANKS_MAX = 256,   // on one machine
    NCCL_SMALL = 256 << 10, // bytes that are sent where memory is not real
    NCCL_PIECES_MAX = 4096,
    NCCL_LINE = 160,
    NCCL_CALL_TEXT = 240,
};

typedef enum nccl_kind {
    NCCL_ALL_REDUCE,
    NCCL_ALL_GATHER,
    NCCL_REDUCE_SCATTER,
    NCCL_BROADCAST,
    NCCL_REDUCE,
    NCCL_ALL_TO_ALL,
    NCCL_GATHER,
    NCCL_SCATTER,
    NCCL_SEND,
    NCCL_RECV,
} nccl_kind_t;

// What a rank calls.
typedef struct nccl_call {
    nccl_kind_t kind;
    ncclDataType_t type;
    int op;       // one that a communicator has made is ncclNumOps for all
    int root;     // or the other rank, of a message
    size_t count; // as the caller gives it
    char line[NCCL_LINE];
} nccl_call_t;

// What a rank gives.
typedef struct nccl_input {
    size_t piece_count; // where memory is real
    oomph_sim_piece_t pieces[NCCL_PIECES_MAX];
    int is_known; // elsewhere, if it is small
    unsigned char small[NCCL_SMALL];
} nccl_input_t;

// The file of a communicator, as others find it.
typedef struct nccl_address {
    uint64_t magic, inode, token;
    int process, file;
} nccl_address_t;
_Static_assert(sizeof(nccl_address_t) <= sizeof(ncclUniqueId), "fits into an id");

typedef enum nccl_left {
    NCCL_STAYS, // also if its process is killed: the lock shows it
    NCCL_LEFT,  // it gave its membership back
    NCCL_ENDS,  // its process ends in good order
} nccl_left_t;

typedef struct nccl_member {
    // Meetings of its stream that it has come to; when, of the last two.
    _Alignas(64) atomic_uint_least64_t came_count;
    atomic_uint_least64_t came_ns[2];
    atomic_uint_least64_t wanted;     // the meeting that it waits for
    atomic_uint_least64_t host_count; // the same of calls that block the host
    atomic_uint_least64_t shrink_count;
    atomic_int left; // nccl_left_t
    // Of ranks that stand still (watch.h): when another asked last, of the clock that
    // all processes share, and what this one says.
    atomic_uint_least64_t asked_ms;
    atomic_int stands_still;
    char place[NCCL_CALL_TEXT];     // what it stands at
    char last_call[NCCL_CALL_TEXT]; // of its program, in any communicator
    int process, bytes_file;
    int world_rank;  // of the program's, as its launcher says; -1: unknown
    uint64_t now_ns; // its clock when it came
    int color, key;  // of a split
    nccl_address_t child;
    nccl_call_t call; // the one of this communicator that it came to last
    nccl_input_t input;
} nccl_member_t;

// Messages from one rank to another.
typedef struct nccl_pair {
    _Alignas(64) atomic_uint_least64_t sent_count, taken_count;
    atomic_uint_least64_t sent_ns, taken_ns; // the last one
    // Which the receiver has come to take, and of which the sender to see the receipt.
    atomic_uint_least64_t expected_count, receipt_count;
    atomic_uint_least64_t wanted, wanted_back; // the message, and its receipt
    nccl_call_t call;                          // the last one's
} nccl_pair_t;

typedef struct nccl_board {
    int size, file;
    bool is_alone; // the other ranks do not exist
    size_t mapped_bytes;
    nccl_member_t *members;
    nccl_pair_t *pairs;
} nccl_board_t;

// A new file for a communicator, which this process keeps until all have opened it, and
// says so. False when the system refuses.
bool nccl_board_make(nccl_address_t *address);
void nccl_board_forget(const nccl_address_t *address); // maybe of another process

// Opens it as a rank of so many, which lives from now on. Errors: INVALID_ARGUMENT (no
// such file, or made for another size), SYSTEM_ERROR.
ncclResult_t nccl_board_open(const nccl_address_t *address, int size, int rank,
                             nccl_board_t *board);

// For a rank whose others do not exist: they seem to have done what it does.
ncclResult_t nccl_board_open_alone(int size, nccl_board_t *board);

// The rank does not live any more, for others; the second also gives the memory back.
void nccl_board_leave(nccl_board_t *board, int rank);
void nccl_board_close(nccl_board_t *board);

// A file that a process has open, opened once more by `flags`; -1 if the system
// refuses.
int nccl_reopen(int process, int file, int flags);

// Of a rank that is not the board's own.
bool nccl_board_lives(const nccl_board_t *board, int rank);

static inline nccl_member_t *nccl_member(const nccl_board_t *board, int rank)
{
    return &board->members[board->is_alone ? 0 : rank];
}

// Whether it, or its program, said that it goes.
static inline bool nccl_has_left(const nccl_board_t *board, int rank)
{
    return atomic_load(&nccl_member(board, rank)->left) != NCCL_STAYS;
}

static inline nccl_pair_t *nccl_pair(const nccl_board_t *board, int from, int to)
{
    return &board->pairs[board->is_alone ? 0 : from * board->size + to];
}

// Whether something was sent that has not been received.
static inline bool nccl_is_under_way(const nccl_pair_t *pair)
{
    return atomic_load(&pair->sent_count) > atomic_load(&pair->taken_count);
}

// Where the file has room for the result of a rank, and for messages of a pair: of
// NCCL_ROOM bytes each.
static const uint64_t NCCL_ROOM = 1ull << 40;
uint64_t nccl_result_place(int rank);
uint64_t nccl_mail_place(const nccl_board_t *board, int from, int to);
