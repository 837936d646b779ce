#include "libcuda/objects/mark.h"

#include "libcuda/base/clock.h"
#include "libcuda/base/lock.h"
#include "libcuda/memory/foreign.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// In memory that processes share. Times are of all of them.
typedef struct sim_slot {
    _Alignas(64) atomic_uint_least64_t recorded_count;
    atomic_uint_least64_t done_count;
    atomic_int_least64_t end_ns;       // of the last record that is done
    atomic_int_least64_t recorder;     // the process that recorded it last
    atomic_uint_least64_t asked_count; // questions
    atomic_uint_least64_t answered_count;
    atomic_int_least64_t asked_ns;      // the latest time that was asked for
    atomic_uint_least64_t asked_number; // and the latest record
} slot_t;

// The marks that one process has taken, in a sparse file.
typedef struct sim_board {
    struct sim_board *next;
    dev_t device;
    ino_t inode;
    int file; // whose locks are of this process
    slot_t *slots;
} board_t;

// What cudaIpcEventHandle_t holds.
typedef struct address {
    uint64_t magic;
    uint64_t inode, slot;
    int64_t described_ns;
    int32_t process, file;
} address_t;

static const uint64_t MAGIC = 0x6f6f6d7068657674ull;
static const size_t BOARD_BYTES = 1ull << 30; // sparse; no slot is used twice

static board_t *boards; // the process's own, and those that it has opened
static board_t *own;
static uint64_t taken_count;
static int64_t origin_ns; // the common time when this process's clock started
static bool has_origin;

static int64_t common_ns(uint64_t ns)
{
    return (int64_t)ns + origin_ns;
}

static uint64_t own_ns(int64_t common)
{
    return common > origin_ns ? (uint64_t)(common - origin_ns) : 0;
}

// ---- boards

static board_t *add_board(int file, const struct stat *status)
{
    board_t *board = calloc(1, sizeof *board);
    void *place = mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

    if (board == NULL || place == MAP_FAILED) {
        free(board);
        if (place != MAP_FAILED)
            munmap(place, BOARD_BYTES);
        return NULL;
    }
    *board = (board_t){
        .next = boards,
        .device = status->st_dev,
        .inode = status->st_ino,
        .file = file,
        .slots = place,
    };
    boards = board;
    return board;
}

static board_t *make_own(void)
{
    int file = memfd_create("oomph simulated events", MFD_CLOEXEC);
    struct stat status;

    if (file >= 0 && ftruncate(file, (off_t)BOARD_BYTES) == 0 &&
        fstat(file, &status) == 0)
        own = add_board(file, &status);
    if (own == NULL && file >= 0)
        close(file);
    return own;
}

// The board in a file, which is taken over.
static board_t *open_board(int file, uint64_t inode)
{
    board_t *board = boards;
    struct stat status;

    if (fstat(file, &status) != 0 || status.st_ino != inode ||
        (size_t)status.st_size != BOARD_BYTES) {
        close(file);
        return NULL;
    }
    while (board != NULL &&
           (board->device != status.st_dev || board->inode != status.st_ino))
        board = board->next;
    if (board == NULL)
        board = add_board(file, &status);
    if (board == NULL || board->file != file)
        close(file);
    return board;
}

// ---- marks

CUresult sim_mark_take(sim_mark_t *mark)
{
    if ((own == NULL && make_own() == NULL) ||
        taken_count == BOARD_BYTES / sizeof(slot_t))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *mark = (sim_mark_t){.board = own, .slot = &own->slots[taken_count++]};
    return CUDA_SUCCESS;
}

void sim_mark_describe(const sim_mark_t *mark, char text[SIM_MARK_TEXT])
{
    const address_t address = {
        .magic = MAGIC,
        .inode = mark->board->inode,
        .slot = (uint64_t)(mark->slot - mark->board->slots),
        .described_ns = common_ns(sim_clock_ns()),
        .process = getpid(),
        .file = mark->board->file,
    };

    has_origin = true;
    memset(text, 0, SIM_MARK_TEXT);
    memcpy(text, &address, sizeof address);
}

CUresult sim_mark_open(const char text[SIM_MARK_TEXT], sim_mark_t *mark)
{
    address_t address;

    memcpy(&address, text, sizeof address);
    if (address.magic != MAGIC || address.slot >= BOARD_BYTES / sizeof(slot_t))
        return CUDA_ERROR_INVALID_VALUE;
    if (address.process == getpid())
        return CUDA_ERROR_INVALID_CONTEXT; // as the real one says it
    int file = sim_foreign_reopen(address.process, address.file);
    board_t *board = file >= 0 ? open_board(file, address.inode) : NULL;
    if (board == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!has_origin)
        origin_ns = address.described_ns - (int64_t)sim_clock_ns();
    has_origin = true;
    *mark = (sim_mark_t){.board = board, .slot = &board->slots[address.slot]};
    return CUDA_SUCCESS;
}

sim_mark_t sim_mark_latest(const sim_mark_t *mark)
{
    sim_mark_t latest = *mark;

    latest.number = atomic_load(&mark->slot->recorded_count);
    return latest;
}

// ---- records

static struct flock lock_of(const sim_mark_t *mark, short type)
{
    return (struct flock){
        .l_type = type,
        .l_whence = SEEK_SET,
        .l_start = (char *)mark->slot - (char *)mark->board->slots,
        .l_len = sizeof(slot_t),
    };
}

void sim_mark_begin(sim_mark_t *mark)
{
    struct flock lock = lock_of(mark, F_RDLCK);

    fcntl(mark->board->file, F_OFD_SETLK, &lock);
    atomic_store(&mark->slot->recorder, getpid());
    mark->number = atomic_fetch_add(&mark->slot->recorded_count, 1) + 1;
}

void sim_mark_end(const sim_mark_t *mark, bool is_last)
{
    struct flock lock = lock_of(mark, F_UNLCK);
    slot_t *slot = mark->slot;

    atomic_store(&slot->end_ns, common_ns(sim_clock_ns()));
    if (atomic_load(&slot->done_count) < mark->number)
        atomic_store(&slot->done_count, mark->number);
    if (is_last)
        fcntl(mark->board->file, F_OFD_SETLK, &lock);
}

// Whether the process lives that has recorded the mark and has not done it yet.
static bool is_pending(const sim_mark_t *mark)
{
    struct flock lock = lock_of(mark, F_WRLCK);

    return atomic_load(&mark->slot->recorder) == getpid() ||
           (fcntl(mark->board->file, F_OFD_GETLK, &lock) == 0 &&
            lock.l_type != F_UNLCK);
}

bool sim_mark_is_done(const sim_mark_t *mark)
{
    return atomic_load(&mark->slot->done_count) >= mark->number || !is_pending(mark);
}

uint64_t sim_mark_end_ns(const sim_mark_t *mark)
{
    return own_ns(atomic_load(&mark->slot->end_ns));
}

// ---- questions

static int64_t sent_ns(uint64_t until_ns)
{
    return until_ns < SIM_MARK_FREELY
               ? common_ns(until_ns)
               : INT64_MAX - (int64_t)(SIM_MARK_FOR_EVER - until_ns);
}

static uint64_t heard_ns(int64_t until_ns)
{
    return until_ns < sent_ns(SIM_MARK_FREELY)
               ? own_ns(until_ns)
               : SIM_MARK_FOR_EVER - (uint64_t)(INT64_MAX - until_ns);
}

static void ask_for(slot_t *slot, uint64_t number, int64_t until_ns)
{
    int_least64_t asked_ns = atomic_load(&slot->asked_ns);
    uint_least64_t asked_number = atomic_load(&slot->asked_number);

    while (asked_ns < until_ns &&
           !atomic_compare_exchange_weak(&slot->asked_ns, &asked_ns, until_ns))
        ;
    while (asked_number < number &&
           !atomic_compare_exchange_weak(&slot->asked_number, &asked_number, number))
        ;
}

uint64_t sim_mark_call_for(const sim_mark_t *mark, uint64_t until_ns)
{
    if (sim_mark_is_done(mark))
        return 0;
    ask_for(mark->slot, mark->number, sent_ns(until_ns));
    return atomic_fetch_add(&mark->slot->asked_count, 1) + 1;
}

void sim_mark_ask(sim_mark_t mark, uint64_t until_ns)
{
    uint64_t question = sim_mark_call_for(&mark, until_ns);

    while (atomic_load(&mark.slot->answered_count) < question &&
           !sim_mark_is_done(&mark))
        sim_wait(1);
}

bool sim_mark_question(const sim_mark_t *mark, sim_question_t *question)
{
    slot_t *slot = mark->slot;

    question->number = atomic_load(&slot->asked_count);
    if (question->number == atomic_load(&slot->answered_count) ||
        atomic_load(&slot->asked_number) < mark->number)
        return false;
    question->until_ns = heard_ns(atomic_exchange(&slot->asked_ns, 0));
    return true;
}

void sim_mark_answer(const sim_mark_t *mark, const sim_question_t *question)
{
    atomic_store(&mark->slot->answered_count, question->number);
}

void sim_mark_reset(void)
{
    while (boards != NULL) {
        board_t *board = boards;
        boards = board->next;
        munmap(board->slots, BOARD_BYTES);
        close(board->file);
        free(board);
    }
    own = NULL;
    taken_count = 0;
    origin_ns = 0;
    has_origin = false;
}
