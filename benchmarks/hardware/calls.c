/* calls.c - what the driver's calls cost, and which of them wait for running work.
 *
 *     calls costs      every call at 2, 20, 32 and 512 MiB
 *     calls waiting    beside a kernel that runs, and behind a stream that waits
 *
 * One JSON object a line. Uses device 0, at most 1 GiB of it.
 */
#include "measure.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

enum { TIMES = 21 };

/* ---- Costs */

typedef struct timing {
    const char *call;
    double us[TIMES];
    int count;
} timing_t;

static double timed_from;
static CUresult first_error;

static void begin_time(void)
{
    timed_from = now_us();
}

// Keeps the time of one call; the first error that any call gives is told at the end.
static void end_time(timing_t *timing, CUresult result)
{
    double us = now_us() - timed_from;

    if (result != CUDA_SUCCESS && first_error == CUDA_SUCCESS)
        first_error = result;
    if (timing->count < TIMES)
        timing->us[timing->count++] = us;
}

#define TIME(timing, call)                                                             \
    do {                                                                               \
        begin_time();                                                                  \
        end_time(&(timing), (call));                                                   \
    } while (0)

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void print_cost(timing_t *timing, const char *place, size_t bytes)
{
    qsort(timing->us, (size_t)timing->count, sizeof timing->us[0], by_value);
    printf("{\"measure\": \"cost\", \"call\": \"%s\", \"place\": \"%s\", "
           "\"bytes\": %zu, \"us\": %.2f, \"us_min\": %.2f, \"times\": %d, "
           "\"result\": \"%s\"}\n",
           timing->call, place, bytes, timing->us[timing->count / 2], timing->us[0],
           timing->count, name_of(first_error));
    fflush(stdout);
}

// The life of a page of this size, and then that of one which only changes its address.
static void cost_of_pages(const place_t *place, size_t bytes)
{
    timing_t calls[] = {{"cuMemAddressReserve", {0}, 0},
                        {"cuMemCreate", {0}, 0},
                        {"cuMemMap", {0}, 0},
                        {"cuMemSetAccess", {0}, 0},
                        {"cuMemUnmap", {0}, 0},
                        {"cuMemMap again", {0}, 0},
                        {"cuMemSetAccess again", {0}, 0},
                        {"cuMemRelease", {0}, 0},
                        {"cuMemAddressFree", {0}, 0}};
    int times = bytes > 64 * MIB ? 7 : TIMES;

    first_error = CUDA_SUCCESS;
    for (int i = 0; i < times && first_error == CUDA_SUCCESS; i++) {
        CUmemGenericAllocationHandle handle = 0;
        CUdeviceptr addr = 0;

        TIME(calls[0], cu.reserve(&addr, 2 * bytes, 0, 0, 0));
        TIME(calls[1], create(place, bytes, &handle));
        if (first_error != CUDA_SUCCESS) {
            if (addr != 0)
                cu.unreserve(addr, 2 * bytes);
            break;
        }
        TIME(calls[2], cu.map(addr, bytes, 0, handle, 0));
        TIME(calls[3], set_access(place, addr, bytes));
        TIME(calls[4], cu.unmap(addr, bytes));
        TIME(calls[5], cu.map(addr + bytes, bytes, 0, handle, 0));
        TIME(calls[6], set_access(place, addr + bytes, bytes));
        cu.unmap(addr + bytes, bytes);
        TIME(calls[7], cu.release(handle));
        TIME(calls[8], cu.unreserve(addr, 2 * bytes));
    }
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (calls[i].count > 0)
            print_cost(&calls[i], place->name, bytes);
}

// Access to as many pages at once: one call for the range, against one a page.
static void cost_of_a_range(const place_t *place, size_t bytes)
{
    enum { PAGE = 2 * MIB, PAGES_MAX = 256 };
    CUmemGenericAllocationHandle handles[PAGES_MAX];
    timing_t together = {"cuMemSetAccess of all pages at once", {0}, 0};
    timing_t singly = {"cuMemSetAccess page by page", {0}, 0};
    CUdeviceptr addr = 0;
    size_t count = bytes / PAGE, made = 0;

    first_error = cu.reserve(&addr, bytes, 0, 0, 0);
    if (first_error != CUDA_SUCCESS)
        return;
    while (made < count && first_error == CUDA_SUCCESS) {
        first_error = create(place, PAGE, &handles[made]);
        if (first_error == CUDA_SUCCESS)
            made++;
    }
    for (int turn = 0; turn < 8 && made == count; turn++) {
        for (size_t i = 0; i < count; i++)
            cu.map(addr + i * PAGE, PAGE, 0, handles[i], 0);
        if (turn % 2 == 0) {
            TIME(together, set_access(place, addr, bytes));
        } else {
            begin_time();
            CUresult result = CUDA_SUCCESS;
            for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
                result = set_access(place, addr + i * PAGE, PAGE);
            end_time(&singly, result);
        }
        for (size_t i = 0; i < count; i++)
            cu.unmap(addr + i * PAGE, PAGE);
    }
    for (size_t i = 0; i < made; i++)
        cu.release(handles[i]);
    cu.unreserve(addr, bytes);
    if (made == count) {
        print_cost(&together, place->name, bytes);
        print_cost(&singly, place->name, bytes);
    }
}

static void cost_of_blocks(size_t bytes)
{
    timing_t calls[] = {{"cuMemAlloc", {0}, 0},
                        {"cuMemFree", {0}, 0},
                        {"cuMemHostAlloc", {0}, 0},
                        {"cuMemFreeHost", {0}, 0}};
    int times = bytes > 64 * MIB ? 5 : TIMES;

    first_error = CUDA_SUCCESS;
    for (int i = 0; i < times && first_error == CUDA_SUCCESS; i++) {
        CUdeviceptr addr = 0;
        void *host = NULL;

        TIME(calls[0], cu.alloc(&addr, bytes));
        TIME(calls[1], cu.free(addr));
        TIME(calls[2], cu.host_alloc(&host, bytes, 0));
        TIME(calls[3], cu.host_free(host));
    }
    for (int i = 0; i < 4; i++)
        print_cost(&calls[i], i < 2 ? "device" : "pinned", bytes);
}

static void cost_of_streams(void)
{
    timing_t calls[] = {{"cuEventCreate", {0}, 0},      {"cuEventRecord", {0}, 0},
                        {"cuEventQuery", {0}, 0},       {"cuEventDestroy", {0}, 0},
                        {"cuStreamGetId", {0}, 0},      {"cuStreamIsCapturing", {0}, 0},
                        {"cuCtxSynchronize", {0}, 0},   {"cuMemGetInfo", {0}, 0},
                        {"cuStreamSynchronize", {0}, 0}};
    CUstream stream;

    first_error = cu.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < TIMES && first_error == CUDA_SUCCESS; i++) {
        CUstreamCaptureStatus status;
        unsigned long long id;
        size_t free_bytes, total_bytes;
        CUevent event;

        TIME(calls[0], cu.event_create(&event, CU_EVENT_DISABLE_TIMING));
        TIME(calls[1], cu.event_record(event, stream));
        cu.event_synchronize(event);
        TIME(calls[2], cu.event_query(event));
        TIME(calls[3], cu.event_destroy(event));
        TIME(calls[4], cu.stream_id(stream, &id));
        TIME(calls[5], cu.capture_status(stream, &status));
        TIME(calls[6], cu.context_synchronize());
        TIME(calls[7], cu.memory_info(&free_bytes, &total_bytes));
        TIME(calls[8], cu.stream_synchronize(stream));
    }
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (calls[i].count > 0)
            print_cost(&calls[i], "stream", 0);
    cu.stream_destroy(stream);
}

static void costs(void)
{
    const size_t sizes[] = {2 * MIB, 20 * MIB, 32 * MIB, 512 * MIB};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int k = 0; k < PLACE_COUNT; k++) {
            cost_of_pages(&PLACES[k], sizes[i]);
            cost_of_a_range(&PLACES[k], sizes[i]);
        }
        cost_of_blocks(sizes[i]);
    }
    cost_of_streams();
}

/* ---- Waiting */

enum { HELD_US = 300000, SETTLE_US = 20000 };

static volatile unsigned *gate; // pinned; work goes on once it is 1
static CUstream held;           // the stream whose work the gate holds
static CUfunction spin;         // a kernel that reads the gate until it is open

// The oldest target that the driver still compiles for is the one that fits most GPUs.
static const char *const SPIN[] = {
    ".version 6.0\n.target sm_60\n.address_size 64\n"
    ".visible .entry spin(.param .u64 gate)\n{\n"
    ".reg .u64 %a;\n.reg .u32 %v;\n.reg .pred %p;\n"
    "ld.param.u64 %a, [gate];\n"
    "again:\nld.volatile.global.u32 %v, [%a];\n"
    "setp.eq.u32 %p, %v, 0;\n@%p bra again;\nret;\n}\n",
    ".version 6.3\n.target sm_75\n.address_size 64\n"
    ".visible .entry spin(.param .u64 gate)\n{\n"
    ".reg .u64 %a;\n.reg .u32 %v;\n.reg .pred %p;\n"
    "ld.param.u64 %a, [gate];\n"
    "again:\nld.volatile.global.u32 %v, [%a];\n"
    "setp.eq.u32 %p, %v, 0;\n@%p bra again;\nret;\n}\n",
};

static void open_gate(void)
{
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
}

static bool gate_is_open(void)
{
    return __atomic_load_n(gate, __ATOMIC_ACQUIRE) != 0;
}

// Opens the gate when its time is over, so that a call which waits for it returns.
static void *watch(void *unused)
{
    (void)unused;
    for (int us = 0; us < HELD_US && !gate_is_open(); us += 1000)
        usleep(1000);
    open_gate();
    return NULL;
}

static CUresult hold_by_kernel(void)
{
    CUdeviceptr addr = (CUdeviceptr)(uintptr_t)gate;
    void *arguments[] = {&addr};

    return cu.launch(spin, 1, 1, 1, 1, 1, 1, 0, held, arguments, NULL);
}

static CUresult hold_by_value(void)
{
    return cu.wait_value(held, (CUdeviceptr)(uintptr_t)gate, 1,
                         CU_STREAM_WAIT_VALUE_EQ);
}

// What the calls work on: nothing that the held work uses.
static struct {
    const place_t *place;
    size_t page;
    CUdeviceptr addr, block;
    CUmemGenericAllocationHandle handle;
    void *pinned;
    CUstream stream;
    CUevent event;
} own;

static CUresult do_create(void)
{
    return create(own.place, own.page, &own.handle);
}

static CUresult do_map(void)
{
    return cu.map(own.addr, own.page, 0, own.handle, 0);
}

static CUresult do_set_access(void)
{
    return set_access(own.place, own.addr, own.page);
}

static CUresult do_set_access_again(void)
{
    return set_access(own.place, own.addr, own.page);
}

static CUresult do_fill(void)
{
    CUresult result = cu.fill_async(own.addr, 1, own.page / 4, own.stream);

    return result == CUDA_SUCCESS ? cu.stream_synchronize(own.stream) : result;
}

static CUresult do_unmap(void)
{
    return cu.unmap(own.addr, own.page);
}

static CUresult do_release(void)
{
    return cu.release(own.handle);
}

static CUresult do_memory_info(void)
{
    size_t free_bytes, total_bytes;

    return cu.memory_info(&free_bytes, &total_bytes);
}

static CUresult do_alloc(void)
{
    return cu.alloc(&own.block, own.page);
}

static CUresult do_free(void)
{
    return cu.free(own.block);
}

static CUresult do_host_alloc(void)
{
    return cu.host_alloc(&own.pinned, own.page, 0);
}

static CUresult do_host_free(void)
{
    return cu.host_free(own.pinned);
}

static CUresult do_event_create(void)
{
    return cu.event_create(&own.event, CU_EVENT_DISABLE_TIMING);
}

static CUresult do_event_record(void)
{
    return cu.event_record(own.event, own.stream);
}

static CUresult do_event_query(void)
{
    CUresult result = cu.event_query(own.event);

    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
}

static CUresult do_event_destroy(void)
{
    return cu.event_destroy(own.event);
}

typedef struct call {
    const char *name;
    CUresult (*make)(void);
} call_t;

// In the order of a page's life; the rest need no page.
static const call_t PAGE_CALLS[] = {
    {"cuMemCreate", do_create},
    {"cuMemMap", do_map},
    {"cuMemSetAccess", do_set_access},
    {"cuMemSetAccess again", do_set_access_again},
    {"a fill of the new page on another stream", do_fill},
    {"cuMemUnmap", do_unmap},
    {"cuMemRelease", do_release},
};
static const call_t OTHER_CALLS[] = {
    {"cuMemGetInfo", do_memory_info},
    {"cuMemAlloc", do_alloc},
    {"cuMemFree", do_free},
    {"cuMemHostAlloc", do_host_alloc},
    {"cuMemFreeHost", do_host_free},
    {"cuEventCreate", do_event_create},
    {"cuEventRecord", do_event_record},
    {"cuEventQuery", do_event_query},
    {"cuEventDestroy", do_event_destroy},
};

// Makes the call while work is held, and says whether it came back before the end.
static void beside(const char *what, const call_t *call, const char *place,
                   CUresult (*hold)(void))
{
    pthread_t watchdog;

    __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    CUresult result = hold();
    usleep(SETTLE_US); // until the work has begun
    bool runs = result == CUDA_SUCCESS && cu.stream_query(held) == CUDA_ERROR_NOT_READY;
    pthread_create(&watchdog, NULL, watch, NULL);
    double start = now_us();
    if (result == CUDA_SUCCESS)
        result = call->make();
    double us = now_us() - start;
    bool waited = gate_is_open();
    open_gate();
    pthread_join(watchdog, NULL);
    cu.stream_synchronize(held);
    printf("{\"measure\": \"waiting\", \"beside\": \"%s\", \"call\": \"%s\", "
           "\"place\": \"%s\", \"work_was_held\": %s, \"waited\": %s, \"us\": %.1f, "
           "\"result\": \"%s\"}\n",
           what, call->name, place, runs ? "true" : "false", waited ? "true" : "false",
           us, name_of(result));
    fflush(stdout);
}

static void beside_all(const char *what, CUresult (*hold)(void))
{
    for (int k = 0; k < PLACE_COUNT; k++) {
        CUmemGenericAllocationHandle trial;

        own.place = &PLACES[k];
        if (create(own.place, own.page, &trial) != CUDA_SUCCESS)
            continue; // the costs say so
        cu.release(trial);
        for (size_t i = 0; i < sizeof PAGE_CALLS / sizeof PAGE_CALLS[0]; i++)
            beside(what, &PAGE_CALLS[i], PLACES[k].name, hold);
    }
    for (size_t i = 0; i < sizeof OTHER_CALLS / sizeof OTHER_CALLS[0]; i++)
        beside(what, &OTHER_CALLS[i], "", hold);
}

static bool load_spin(void)
{
    CUmodule module;

    for (size_t i = 0; i < sizeof SPIN / sizeof SPIN[0]; i++)
        if (cu.module_load(&module, SPIN[i]) == CUDA_SUCCESS)
            return cu.module_function(&spin, module, "spin") == CUDA_SUCCESS;
    return false;
}

static CUresult waiting(void)
{
    void *flag;

    own.page = (size_t)2 * MIB;
    CUresult result = cu.host_alloc(&flag, 64, 0);
    if (result == CUDA_SUCCESS)
        result = cu.stream_create(&held, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = cu.stream_create(&own.stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = cu.reserve(&own.addr, own.page, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    gate = flag;
    if (load_spin())
        beside_all("a running kernel", hold_by_kernel);
    else
        printf("{\"measure\": \"waiting\", \"beside\": \"a running kernel\", "
               "\"result\": \"the kernel could not be compiled\"}\n");
    beside_all("a stream that waits for a value", hold_by_value);
    return cu.context_synchronize();
}

/* ---- The program */

int main(int argc, char **argv)
{
    const char *missing = cuda_load();

    if (missing != NULL || argc != 2) {
        fprintf(stderr, missing ? "%s is missing\n" : "usage: %s costs|waiting\n",
                missing ? missing : argv[0]);
        return 2;
    }
    CUresult result = open_device();
    if (result == CUDA_SUCCESS && strcmp(argv[1], "costs") == 0)
        costs();
    else if (result == CUDA_SUCCESS)
        result = waiting();
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "%s\n", name_of(result));
    return result != CUDA_SUCCESS;
}
