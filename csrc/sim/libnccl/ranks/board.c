#include "libnccl/ranks/board.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t MAGIC = 0x6f6f6d706e63636cull;
static const uint64_t LOCKS = 1ull << 61; // in the file: a byte for each rank
static const uint64_t ROOMS = 1ull << 56; // results, then messages

// Files that others may still open.
typedef struct made {
    struct made *next;
    uint64_t token;
    int file;
} made_t;

static made_t *made;
static uint64_t made_count;
static pthread_mutex_t made_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t members_bytes(int size)
{
    return (size_t)size * sizeof(nccl_member_t);
}

static size_t mapped_bytes(int size)
{
    return members_bytes(size) + (size_t)size * (size_t)size * sizeof(nccl_pair_t);
}

bool nccl_board_make(nccl_address_t *address)
{
    made_t *added = calloc(1, sizeof *added);
    int file = memfd_create("oomph simulated NCCL", MFD_CLOEXEC);
    struct stat status;

    if (added == NULL || file < 0 || fstat(file, &status) != 0) {
        free(added);
        if (file >= 0)
            close(file);
        return false;
    }
    pthread_mutex_lock(&made_lock);
    *added = (made_t){.next = made, .token = ++made_count, .file = file};
    made = added;
    pthread_mutex_unlock(&made_lock);
    *address = (nccl_address_t){
        .magic = MAGIC,
        .inode = status.st_ino,
        .token = added->token,
        .process = getpid(),
        .file = file,
    };
    return true;
}

void nccl_board_forget(const nccl_address_t *address)
{
    made_t **link = &made;

    if (address->process != getpid())
        return;
    pthread_mutex_lock(&made_lock);
    while (*link != NULL && (*link)->token != address->token)
        link = &(*link)->next;
    made_t *forgotten = *link;
    if (forgotten != NULL) {
        *link = forgotten->next;
        close(forgotten->file);
        free(forgotten);
    }
    pthread_mutex_unlock(&made_lock);
}

int nccl_reopen(int process, int file, int flags)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, file);
    return open(path, flags | O_CLOEXEC);
}

// The file that an address names, open on its own; -1 if there is none.
static int open_file(const nccl_address_t *address)
{
    struct stat status;
    int file = address->magic == MAGIC
                   ? nccl_reopen(address->process, address->file, O_RDWR)
                   : -1;

    if (file >= 0 && (fstat(file, &status) != 0 || status.st_ino != address->inode)) {
        close(file);
        return -1;
    }
    return file;
}

static struct flock lock_of(int rank, short type)
{
    return (struct flock){
        .l_type = type,
        .l_whence = SEEK_SET,
        .l_start = (off_t)(LOCKS + (uint64_t)rank),
        .l_len = 1,
    };
}

static bool map(nccl_board_t *board)
{
    void *place = mmap(NULL, board->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                       board->file, 0);

    if (place == MAP_FAILED)
        return false;
    board->members = place;
    board->pairs = (nccl_pair_t *)((char *)place +
                                   members_bytes(board->is_alone ? 1 : board->size));
    return true;
}

// As long as all ranks say; a file that is longer was made for another communicator.
static bool is_of_size(const nccl_board_t *board)
{
    const off_t wanted = (off_t)board->mapped_bytes;
    struct stat status;

    return fstat(board->file, &status) == 0 &&
           (status.st_size == wanted || status.st_size == 0) &&
           ftruncate(board->file, wanted) == 0;
}

ncclResult_t nccl_board_open(const nccl_address_t *address, int size, int rank,
                             nccl_board_t *board)
{
    struct flock lock = lock_of(rank, F_WRLCK);

    *board = (nccl_board_t){
        .size = size, .file = open_file(address), .mapped_bytes = mapped_bytes(size)};
    if (board->file < 0 || !is_of_size(board)) {
        if (board->file >= 0)
            close(board->file);
        return ncclInvalidArgument;
    }
    if (fcntl(board->file, F_OFD_SETLK, &lock) != 0 || !map(board)) {
        close(board->file);
        return ncclSystemError;
    }
    return ncclSuccess;
}

ncclResult_t nccl_board_open_alone(int size, nccl_board_t *board)
{
    *board = (nccl_board_t){.size = size,
                            .file = memfd_create("oomph simulated NCCL", MFD_CLOEXEC),
                            .is_alone = true,
                            .mapped_bytes = mapped_bytes(1)};
    if (board->file < 0 || !is_of_size(board) || !map(board)) {
        if (board->file >= 0)
            close(board->file);
        return ncclSystemError;
    }
    return ncclSuccess;
}

void nccl_board_leave(nccl_board_t *board, int rank)
{
    struct flock lock = lock_of(rank, F_UNLCK);

    atomic_store(&nccl_member(board, rank)->left, NCCL_LEFT);
    fcntl(board->file, F_OFD_SETLK, &lock);
}

void nccl_board_close(nccl_board_t *board)
{
    munmap(board->members, board->mapped_bytes);
    close(board->file);
}

bool nccl_board_lives(const nccl_board_t *board, int rank)
{
    struct flock lock = lock_of(rank, F_WRLCK);

    if (board->is_alone)
        return true;
    // A lock lives on in the children that the process has forked.
    return fcntl(board->file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK &&
           (kill(nccl_member(board, rank)->process, 0) == 0 || errno != ESRCH);
}

uint64_t nccl_result_place(int rank)
{
    return ROOMS + (uint64_t)rank * NCCL_ROOM;
}

uint64_t nccl_mail_place(const nccl_board_t *board, int from, int to)
{
    return ROOMS + (uint64_t)(board->size + from * board->size + to) * NCCL_ROOM;
}
