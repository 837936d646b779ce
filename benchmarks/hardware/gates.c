/* gates.c - whether streams can be held while pages are exchanged (csrc/gate.c).
 *
 *     gates
 *
 * Each stream gets, in one call, a mark and a wait for a flag in host memory. Measured:
 * of how many streams the marks come, since streams share queues of the hardware; and,
 * while they wait, whether a copy on a stream of its own ends and the calls that change
 * a mapping return, alone and beside another thread that waits for the GPU. Work behind
 * the gate must find the new page. One JSON object a line; each measure in a process of
 * its own, since one that fails may break its context. Uses device 0.
 */
#include "measure.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PAGE = 2 * MIB,
    WORDS = PAGE / 4,
    STREAMS_MAX = 128,
    PATIENCE_US = 300000, // then the gate is opened whatever goes on
    HEAD_START_US = 10000,
    OLD = 7,
    NEW = 9,
};

static uint32_t *words; // page-locked: the flag, then the mark of each stream
static CUstream streams[STREAMS_MAX], own;
static CUevent event;
static CUcontext context;

#define TRY(call)                                                                      \
    do {                                                                               \
        CUresult result = (call);                                                      \
        if (result != CUDA_SUCCESS)                                                    \
            return result;                                                             \
    } while (0)

static uint32_t read_word(size_t index)
{
    return __atomic_load_n(&words[index], __ATOMIC_ACQUIRE);
}

static void open_gate(void)
{
    __atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
}

// Opens the gate when its time is over; so what waits for it returns.
static void *watch(void *unused)
{
    for (int us = 0; us < PATIENCE_US && read_word(0) == 0; us += 1000)
        usleep(1000);
    open_gate();
    return unused;
}

static CUresult prepare(size_t stream_count)
{
    void *memory;

    TRY(open_device());
    TRY(cu.context_retain(&context, 0));
    TRY(cu.host_alloc(&memory, (STREAMS_MAX + 2) * sizeof *words, 0));
    words = memory;
    memset(words, 0, (STREAMS_MAX + 2) * sizeof *words);
    for (size_t i = 0; i < stream_count; i++)
        TRY(cu.stream_create(&streams[i], CU_STREAM_NON_BLOCKING));
    TRY(cu.stream_create(&own, CU_STREAM_NON_BLOCKING));
    return cu.event_create(&event, CU_EVENT_DISABLE_TIMING);
}

static CUresult close_gate(CUstream stream, size_t mark)
{
    CUdeviceptr addr = (CUdeviceptr)(uintptr_t)words;
    CUstreamBatchMemOpParams list[2];

    memset(list, 0, sizeof list);
    list[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    list[0].writeValue.address = addr + mark * sizeof *words;
    list[0].writeValue.value = 1;
    list[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    list[1].waitValue.address = addr;
    list[1].waitValue.value = 1;
    list[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    return cu.batch_values(stream, 2, list, 0);
}

// Gates the default stream and the others; gives how many marks came in time.
static CUresult close_all(size_t stream_count, size_t *marks, double *us)
{
    double start = now_us();

    TRY(close_gate(NULL, 1));
    for (size_t i = 0; i < stream_count; i++)
        TRY(close_gate(streams[i], i + 2));
    do {
        *marks = 0;
        for (size_t i = 1; i <= stream_count + 1; i++)
            *marks += read_word(i);
        *us = now_us() - start;
    } while (*marks <= stream_count && read_word(0) == 0);
    return CUDA_SUCCESS;
}

/* ---- How many streams */

static CUresult measure_marks(size_t stream_count)
{
    pthread_t watchdog;
    size_t marks;
    double us;

    TRY(prepare(stream_count));
    pthread_create(&watchdog, NULL, watch, NULL);
    CUresult result = close_all(stream_count, &marks, &us);
    open_gate();
    pthread_join(watchdog, NULL);
    if (result == CUDA_SUCCESS)
        result = cu.context_synchronize();
    printf("{\"measure\": \"marks\", \"streams\": %zu, \"marks\": %zu, \"us\": %.1f, "
           "\"result\": \"%s\"}\n",
           stream_count + 1, marks, us, name_of(result));
    return result;
}

/* ---- A window */

// What another thread does meanwhile: calls that wait for the GPU, or may.
static CUdeviceptr spare;

static CUresult wait_for_context(void)
{
    return cu.context_synchronize();
}

static CUresult wait_for_stream(void)
{
    return cu.stream_synchronize(streams[0]);
}

static CUresult allocate(void)
{
    CUdeviceptr addr;

    return cu.alloc(&addr, PAGE);
}

static CUresult free_block(void)
{
    return cu.free(spare);
}

static CUresult allocate_host(void)
{
    void *memory;

    return cu.host_alloc(&memory, PAGE, 0);
}

static CUresult copy_out(void)
{
    uint32_t word;

    return cu.copy_out(&word, spare, sizeof word);
}

static CUresult fill_queue(void)
{
    for (int i = 0; i < 4096; i++)
        TRY(cu.fill_async(spare, 1, 16, streams[0]));
    return CUDA_SUCCESS;
}

typedef struct other {
    const char *name;
    CUresult (*call)(void);
} other_t;

static const other_t OTHERS[] = {
    {"nothing", NULL},
    {"cuCtxSynchronize", wait_for_context},
    {"cuStreamSynchronize", wait_for_stream},
    {"cuMemAlloc", allocate},
    {"cuMemFree", free_block},
    {"cuMemHostAlloc", allocate_host},
    {"cuMemcpyDtoH", copy_out},
    {"4096 fills of a stream that is held", fill_queue},
};
enum { OTHER_COUNT = sizeof OTHERS / sizeof OTHERS[0] };

static void *run_other(void *argument)
{
    const other_t *other = argument;

    cu.context_set(context);
    return (void *)(uintptr_t)other->call();
}

// What the steps of the exchange work on.
static CUdeviceptr addr, staging;
static CUmemGenericAllocationHandle page;
static const place_t *place;

static CUresult copy_page(void)
{
    TRY(cu.copy_across_async(staging, addr, PAGE, own));
    TRY(cu.event_record(event, own));
    CUresult result = CUDA_ERROR_NOT_READY;
    while (result == CUDA_ERROR_NOT_READY)
        result = cu.event_query(event);
    return result;
}

static CUresult unmap_staging(void)
{
    return cu.unmap(staging, PAGE);
}

static CUresult unmap_page(void)
{
    return cu.unmap(addr, PAGE);
}

static CUresult map_page(void)
{
    return cu.map(addr, PAGE, 0, page, 0);
}

static CUresult allow_page(void)
{
    return set_access(place, addr, PAGE);
}

static const struct {
    const char *name;
    CUresult (*make)(void);
} STEPS[] = {
    {"copy", copy_page}, {"unmap staging", unmap_staging}, {"unmap", unmap_page},
    {"map", map_page},   {"set access", allow_page},
};
enum { STEP_COUNT = sizeof STEPS / sizeof STEPS[0] };

static CUresult make_pages(const place_t *to)
{
    const place_t *device = &PLACES[0];
    CUmemGenericAllocationHandle old;

    place = to;
    TRY(cu.reserve(&addr, PAGE, 0, 0, 0));
    TRY(cu.reserve(&staging, PAGE, 0, 0, 0));
    TRY(create(device, PAGE, &old));
    TRY(cu.map(addr, PAGE, 0, old, 0));
    TRY(set_access(device, addr, PAGE));
    TRY(create(to, PAGE, &page));
    TRY(cu.map(staging, PAGE, 0, page, 0));
    TRY(set_access(to, staging, PAGE));
    TRY(cu.alloc(&spare, PAGE));
    TRY(cu.fill(addr, OLD, WORDS));
    return cu.context_synchronize();
}

// Work behind the gate has written the first half of the page, which was copied.
static bool page_is_right(void)
{
    static uint32_t found[WORDS];
    bool right = cu.copy_out(found, addr, PAGE) == CUDA_SUCCESS;

    for (size_t i = 0; i < WORDS && right; i++)
        right = found[i] == (i < WORDS / 2 ? NEW : OLD);
    return right;
}

static CUresult exchange(double *us, const char **held_up)
{
    for (int i = 0; i < STEP_COUNT; i++) {
        double start = now_us();
        CUresult result = STEPS[i].make();
        us[i] = now_us() - start;
        if (result != CUDA_SUCCESS)
            return result;
        if (*held_up == NULL && read_word(0) != 0)
            *held_up = STEPS[i].name;
    }
    return CUDA_SUCCESS;
}

// Only beside nothing else does work wait for the page: what the watchdog lets go early
// finds it mapped.
static CUresult measure_window(const place_t *to, size_t stream_count,
                               const other_t *other)
{
    pthread_t watchdog, thread;
    double us[STEP_COUNT] = {0}, close_us = 0;
    const char *held_up = NULL;
    size_t marks = 0;

    TRY(prepare(stream_count));
    if (make_pages(to) != CUDA_SUCCESS)
        return CUDA_SUCCESS; // there are no such pages here: the costs say so
    pthread_create(&watchdog, NULL, watch, NULL);
    CUresult result = close_all(stream_count, &marks, &close_us);
    bool closed = marks == stream_count + 1;
    if (result == CUDA_SUCCESS && closed && other->call == NULL)
        result = cu.fill_async(addr, NEW, WORDS / 2, streams[0]);
    if (other->call != NULL) {
        pthread_create(&thread, NULL, run_other, (void *)(uintptr_t)other);
        usleep(HEAD_START_US);
    }
    if (result == CUDA_SUCCESS && closed)
        result = exchange(us, &held_up);
    open_gate();
    pthread_join(watchdog, NULL);
    if (other->call != NULL)
        pthread_join(thread, NULL);
    if (result == CUDA_SUCCESS)
        result = cu.context_synchronize();
    bool wrong =
        result == CUDA_SUCCESS && closed && other->call == NULL && !page_is_right();
    printf("{\"measure\": \"window\", \"streams\": %zu, \"marks\": %zu, "
           "\"place\": \"%s\", \"beside\": \"%s\", \"held_up\": \"%s\", "
           "\"right\": %s, \"result\": \"%s\", \"us\": {\"close\": %.1f",
           stream_count + 1, marks, to->name, other->name, held_up ? held_up : "",
           wrong ? "false" : "true", name_of(result), close_us);
    for (int i = 0; i < STEP_COUNT; i++)
        printf(", \"%s\": %.1f", STEPS[i].name, us[i]);
    printf("}}\n");
    return result;
}

/* ---- The program */

// The n-th measure, or false past the last.
static bool measure(int nth, CUresult *result)
{
    static const size_t counts[] = {1, 3, 7, 15, 31, 63, STREAMS_MAX};
    int count = sizeof counts / sizeof counts[0];

    if (nth < count) {
        *result = measure_marks(counts[nth]);
        return true;
    }
    nth -= count;
    if (nth >= PLACE_COUNT * OTHER_COUNT)
        return false;
    *result = measure_window(&PLACES[nth / OTHER_COUNT], 4, &OTHERS[nth % OTHER_COUNT]);
    return true;
}

// Gives the exit code of the child: 0, 1 if a call failed, 2 past the last measure.
static int measure_in_child(int nth)
{
    CUresult result = CUDA_SUCCESS;
    int status;

    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        const char *missing = cuda_load();
        if (missing != NULL) {
            fprintf(stderr, "%s is missing\n", missing);
            exit(1);
        }
        bool there = measure(nth, &result);
        if (result != CUDA_SUCCESS)
            fprintf(stderr, "measure %d: %s\n", nth, name_of(result));
        exit(!there ? 2 : result != CUDA_SUCCESS);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
}

int main(void)
{
    bool failed = false;
    int code = 0;

    for (int nth = 0; code != 2; nth++) {
        code = measure_in_child(nth);
        failed = failed || code == 1;
    }
    return failed;
}
