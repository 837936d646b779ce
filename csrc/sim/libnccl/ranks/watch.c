#include "libnccl/ranks/watch.h"

#include "libnccl/ranks/error.h"
#include "libnccl/ranks/waits.h"

#include <ctype.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    TICK_MS = 100,
    PATIENCE = 10,  // ticks that a rank waits before it asks others
    SAMPLES = 20,   // of a process, one a tick, until it is known to stand still
    SHARE_MAX = 20, // percent of that time in which its threads ran
    DISK_MAX = 8,   // of the last 32, at which one waited for a disk
    ASKED_MS = 500, // for so long a question is new
    CERTAIN = 3,    // ticks in which no rank goes on until that is believed
};

typedef struct nccl_watch {
    struct nccl_watch *next;
    struct ncclComm *comm;
    nccl_wait_t wait; // the last that was seen
    int other;        // for whom
    uint64_t came_count;
    unsigned ticks; // since it was seen first
} watch_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static watch_t *watches;
static bool thread_is_running, end_is_watched;
static struct ncclComm *joining; // that a thread waits in, on the host
static unsigned joining_ticks;

// ---- what this process does

static uint64_t read_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// For how long the CPU has worked for the other threads, on a machine that may have
// none to spare for a thread that would like to run.
static uint64_t others_ns(void)
{
    return read_ns(CLOCK_PROCESS_CPUTIME_ID) - read_ns(CLOCK_THREAD_CPUTIME_ID);
}

// Whether a thread waits for a disk: "12 (python) D 1 ..." of /proc.
static bool waits_for_disk(const char *task)
{
    char path[64], text[256];

    snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", task);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false; // it has ended
    const size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end != NULL && name_end[2] == 'D';
}

static bool one_waits_for_disk(void)
{
    DIR *tasks = opendir("/proc/self/task");
    bool found = false;

    if (tasks == NULL)
        return true; // unknown
    for (const struct dirent *task; !found && (task = readdir(tasks)) != NULL;)
        found = isdigit((unsigned char)*task->d_name) && waits_for_disk(task->d_name);
    closedir(tasks);
    return found;
}

// What this process did at the last ticks.
typedef struct samples {
    uint64_t others_ns[SAMPLES], now_ns[SAMPLES];
    uint32_t disk_bits; // those at which a thread waited for a disk
    unsigned count;
} samples_t;

// Takes one more; whether the process was quiet in the last ones.
static bool is_quiet(samples_t *samples)
{
    const unsigned place = samples->count++ % SAMPLES;
    const uint64_t used = others_ns(), now = read_ns(CLOCK_MONOTONIC);
    const uint64_t used_ns = used - samples->others_ns[place];
    const uint64_t passed_ns = now - samples->now_ns[place];

    samples->others_ns[place] = used;
    samples->now_ns[place] = now;
    samples->disk_bits = samples->disk_bits << 1 | one_waits_for_disk();
    return samples->count > SAMPLES && used_ns * 100 < passed_ns * SHARE_MAX &&
           __builtin_popcount(samples->disk_bits) <= DISK_MAX;
}

// ---- what ranks ask each other, all with the lock

static void ask(const nccl_board_t *board, uint64_t now)
{
    for (int rank = 0; rank < board->size; rank++)
        atomic_store(&nccl_member(board, rank)->asked_ms, now);
}

// Whether the rank waits where it did, and has come to no other call.
static bool look(watch_t *watch)
{
    nccl_wait_t wait;
    const int other = nccl_waits_for(watch->comm, &wait);
    const uint64_t came_count = atomic_load(&nccl_own(watch->comm)->came_count);
    const bool is_same = other == watch->other && wait.reason == watch->wait.reason &&
                         wait.number == watch->wait.number &&
                         came_count == watch->came_count;

    watch->ticks = is_same && other >= 0 ? watch->ticks + 1 : 0;
    watch->other = other;
    watch->wait = wait;
    watch->came_count = came_count;
    return is_same;
}

// Whether others ask this process, and nothing has gone on since the last tick. Gives
// the call that its program waits in; or "".
static bool look_at_all(char *text, size_t bytes)
{
    const uint64_t now = read_ns(CLOCK_MONOTONIC) / 1000000;
    bool is_asked = false, is_same = true, asks;

    text[0] = '\0';
    pthread_mutex_lock(&lock);
    joining_ticks = joining != NULL ? joining_ticks + 1 : 0;
    asks = joining_ticks > PATIENCE;
    for (watch_t *watch = watches; watch != NULL; watch = watch->next) {
        struct ncclComm *comm = watch->comm;
        if (comm->is_stopped || comm->error != ncclSuccess)
            continue;
        nccl_look_after(comm);
        is_same &= look(watch);
        asks |= watch->ticks > PATIENCE || nccl_others_have_left(comm, false);
        is_asked |= now - atomic_load(&nccl_own(comm)->asked_ms) < ASKED_MS;
        if (watch->other >= 0 && nccl_holds_program(comm, watch->other, watch->wait))
            nccl_describe(&comm->board, comm->rank, &nccl_own(comm)->call, text, bytes);
    }
    for (watch_t *watch = watches; asks && watch != NULL; watch = watch->next)
        ask(&watch->comm->board, now);
    pthread_mutex_unlock(&lock);
    return is_same && (is_asked || asks);
}

static void publish(bool stands_still, const char *place)
{
    pthread_mutex_lock(&lock);
    for (watch_t *watch = watches; watch != NULL; watch = watch->next) {
        nccl_member_t *own = nccl_own(watch->comm);
        if (atomic_load(&own->stands_still) == stands_still)
            continue;
        snprintf(own->place, sizeof own->place, "%s", place);
        atomic_store(&own->stands_still, stands_still);
    }
    pthread_mutex_unlock(&lock);
}

// Whether the rank has neither left nor ended.
static bool lives(const struct ncclComm *comm, int rank)
{
    return rank == comm->rank || nccl_board_lives(&comm->board, rank);
}

static bool all_stand_still(const struct ncclComm *comm)
{
    for (int rank = 0; rank < comm->board.size; rank++)
        if (!atomic_load(&nccl_member(&comm->board, rank)->stands_still) &&
            lives(comm, rank))
            return false;
    return true;
}

// The first communicator of all ranks, if none of them goes on; or NULL.
static struct ncclComm *find_world_that_stands_still(int world_size)
{
    struct ncclComm *world = NULL;

    for (const watch_t *watch = watches; watch != NULL; watch = watch->next)
        if (watch->comm->board.size == world_size)
            world = watch->comm;
    return world != NULL && all_stand_still(world) ? world : NULL;
}

// Where a rank stands, or what it called last before it left or ended.
static void describe_place(const struct ncclComm *world, int rank, char *text,
                           size_t bytes)
{
    const nccl_member_t *member = nccl_member(&world->board, rank);
    const int name = nccl_name(&world->board, rank);

    if (lives(world, rank))
        snprintf(text, bytes, "rank %d: %s", name, member->place);
    else
        snprintf(text, bytes, "rank %d %s after %s", name,
                 atomic_load(&member->left) == NCCL_LEFT ? "left" : "ended",
                 *member->last_call ? member->last_call : "no call");
}

static bool stands_where(const struct ncclComm *world, int rank, int other)
{
    return lives(world, rank) && lives(world, other) &&
           strcmp(nccl_member(&world->board, rank)->place,
                  nccl_member(&world->board, other)->place) == 0;
}

// Each place, with the first rank that stands there.
static void describe_all(const struct ncclComm *world, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int rank = 0; rank < world->board.size; rank++) {
        char place[NCCL_CALL_TEXT + 32];
        int first = 0;
        while (first < rank && !stands_where(world, first, rank))
            first++;
        describe_place(world, rank, place, sizeof place);
        if (first < rank || used + strlen(place) + 3 > bytes)
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s%s",
                                 used > 0 ? "; " : "", place);
    }
}

static void fail(struct ncclComm *comm, const struct ncclComm *world)
{
    char text[sizeof comm->text - 64];

    describe_all(world, text, sizeof text);
    nccl_fail(comm, ncclInvalidUsage, "ranks wait for each other, and none goes on: %s",
              text);
}

// What others say is a tick old, and this rank may just have gone on: all have to stand
// still for some ticks, of which `tick_count` is the count.
static void fail_if_none_goes_on(int world_size, unsigned *tick_count)
{
    pthread_mutex_lock(&lock);
    struct ncclComm *world = find_world_that_stands_still(world_size);
    *tick_count = world != NULL ? *tick_count + 1 : 0;
    if (*tick_count < CERTAIN)
        world = NULL;
    for (const watch_t *watch = watches; world != NULL && watch != NULL;
         watch = watch->next)
        if (watch->ticks > PATIENCE)
            fail(watch->comm, world);
    if (world != NULL && joining_ticks > PATIENCE)
        fail(joining, world);
    if (world != NULL && nccl_others_have_left(world, true))
        fail(world, world); // it waits in PyTorch
    pthread_mutex_unlock(&lock);
}

// ---- the thread

static bool is_needed(void)
{
    pthread_mutex_lock(&lock);
    const bool is_any = watches != NULL;
    thread_is_running = is_any;
    pthread_mutex_unlock(&lock);
    return is_any;
}

// Where the program stands: at the `call`, or if that is "", at a line. False: not in
// PyTorch, so it may go on by itself.
static bool find_place(const char *call, char *place, size_t bytes, int *world_size)
{
    char line[NCCL_LINE];
    const bool is_in_torch = oomph_sim_place(line, sizeof line, world_size) != 0;

    if (*call != '\0')
        snprintf(place, bytes, "%s", strchr(call, ':') + 2);
    else
        snprintf(place, bytes, "at %s", line);
    return is_in_torch;
}

static void *run(void *nothing)
{
    const struct timespec tick = {.tv_nsec = TICK_MS * 1000000L};
    char call[NCCL_CALL_TEXT], place[NCCL_CALL_TEXT] = "";
    bool stands_still = false;
    samples_t samples = {0};
    unsigned tick_count = 0; // in which no rank went on
    int world_size = 0;

    (void)nothing;
    while (is_needed()) {
        nanosleep(&tick, NULL);
        const bool is_questionable = look_at_all(call, sizeof call);
        if (!is_questionable)
            samples = (samples_t){0};
        if (!is_questionable || !is_quiet(&samples) || !oomph_sim_is_at_rest())
            stands_still = false;
        else
            stands_still = find_place(call, place, sizeof place, &world_size);
        publish(stands_still, place);
        if (stands_still)
            fail_if_none_goes_on(world_size, &tick_count);
        else
            tick_count = 0;
    }
    return NULL;
}

static bool start_thread(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, run, NULL) != 0)
        return false;
    pthread_detach(thread);
    return true;
}

// Who waits for a rank whose program has come to its end gets an error, no one else.
static void end_all(void)
{
    pthread_mutex_lock(&lock);
    for (const watch_t *watch = watches; watch != NULL; watch = watch->next)
        if (nccl_own(watch->comm)->process == getpid()) // else a child of it ends
            atomic_store(&nccl_own(watch->comm)->left, NCCL_ENDS);
    pthread_mutex_unlock(&lock);
}

void nccl_watch(struct ncclComm *comm)
{
    watch_t *watch = calloc(1, sizeof *watch);

    if (watch == NULL)
        return;
    *watch = (watch_t){.comm = comm, .other = -1};
    pthread_mutex_lock(&lock);
    watch->next = watches;
    watches = comm->watch = watch;
    if (!thread_is_running)
        thread_is_running = start_thread();
    if (!end_is_watched)
        end_is_watched = atexit(end_all) == 0;
    pthread_mutex_unlock(&lock);
}

void nccl_unwatch(struct ncclComm *comm)
{
    watch_t **link = &watches;

    pthread_mutex_lock(&lock);
    while (*link != NULL && *link != comm->watch)
        link = &(*link)->next;
    if (*link != NULL)
        *link = comm->watch->next;
    pthread_mutex_unlock(&lock);
    free(comm->watch);
}

void nccl_watch_call(struct ncclComm *comm, const nccl_call_t *call)
{
    char text[NCCL_CALL_TEXT];

    nccl_describe(&comm->board, comm->rank, call, text, sizeof text);
    pthread_mutex_lock(&lock);
    for (watch_t *watch = watches; watch != NULL; watch = watch->next) {
        nccl_member_t *own = nccl_own(watch->comm);
        if (watch->comm->device == comm->device)
            snprintf(own->last_call, sizeof own->last_call, "%s",
                     strchr(text, ':') + 2);
    }
    pthread_mutex_unlock(&lock);
}

void nccl_watch_host(struct ncclComm *comm, bool waits)
{
    pthread_mutex_lock(&lock);
    joining = waits ? comm : NULL;
    joining_ticks = 0;
    pthread_mutex_unlock(&lock);
}
