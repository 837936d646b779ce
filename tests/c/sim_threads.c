/* Many threads in the driver at once. What goes wrong here shows best under a
 * sanitizer. */
#include "sim_check.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 300 };

static CUcontext context;
static bool threads_fail;

// Stands before the system's, for the driver too.
__attribute__((visibility("default"))) int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
               void *(*body)(void *), void *argument)
{
    int (*create_thread)(pthread_t *, const pthread_attr_t *, void *(*)(void *),
                         void *);

    if (threads_fail)
        return EAGAIN;
    *(void **)&create_thread = dlsym(RTLD_NEXT, "pthread_create");
    return create_thread(thread, attributes, body, argument);
}

static void in_threads(void *(*body)(void *))
{
    pthread_t threads[THREADS];

    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, body, (void *)i) == 0);
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static void *churn_pages(void *number)
{
    int value = (int)(size_t)number, out = 0;

    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr addr = reserve(PAGE);
        CUmemGenericAllocationHandle handle = create(on_device(0), PAGE);
        map_open(addr, PAGE, handle);
        OK(cuMemcpyHtoD(addr, &value, sizeof value));
        OK(cuMemcpyDtoH(&out, addr, sizeof out));
        CHECK(out == value);
        OK(cuMemUnmap(addr, PAGE));
        OK(cuMemRelease(handle));
        OK(cuMemAddressFree(addr, PAGE));
    }
    return NULL;
}

static void test_threads_do_not_disturb_each_others_pages(void)
{
    start(NULL);
    OK(cuCtxGetCurrent(&context));
    in_threads(churn_pages);
    oomph_sim_stats_t now = stats();
    CHECK(now.used_bytes == 0 && now.reservation_count == 0 && now.misuse_count == 0);
}

static void *churn_streams(void *unused)
{
    (void)unused;
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < ROUNDS; i++) {
        CUstream stream;
        CUevent event;
        CUstreamCaptureStatus status;
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        CHECK(oomph_sim_launch(stream, 0, 0, 0, 3000) == CUDA_SUCCESS);
        OK(cuEventRecord(event, stream));
        OK(cuStreamWaitEvent(CU_STREAM_PER_THREAD, event, 0));
        CHECK(oomph_sim_launch(CU_STREAM_PER_THREAD, 0, 0, 0, 3000) == CUDA_SUCCESS);
        OK(cuStreamIsCapturing(stream, &status));
        OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        OK(cuEventQuery(event));
        OK(cuEventDestroy(event));
        OK(cuStreamDestroy(stream));
    }
    return NULL;
}

static void test_threads_make_and_destroy_streams_and_events(void)
{
    start("1GiB");
    OK(cuCtxGetCurrent(&context));
    in_threads(churn_streams);
    OK(cuCtxSynchronize());
    CHECK(stats().misuse_count == 0 && stats().pending_count == 0);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int calls;

static void take_lock(void *unused)
{
    (void)unused;
    CHECK(pthread_mutex_lock(&lock) == 0);
    calls++;
    CHECK(pthread_mutex_unlock(&lock) == 0);
}

static void *call_functions(void *unused)
{
    (void)unused;
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(pthread_mutex_lock(&lock) == 0); // held around a call, as programs do
        OK(cuLaunchHostFunc(CU_STREAM_PER_THREAD, take_lock, NULL));
        CHECK(pthread_mutex_unlock(&lock) == 0);
        if (i % 50 == 0)
            OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    }
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    return NULL;
}

static void test_host_functions_may_take_the_locks_of_callers(void)
{
    start("1GiB");
    OK(cuCtxGetCurrent(&context));
    calls = 0;
    in_threads(call_functions);
    CHECK(calls == THREADS * ROUNDS);
}

static CUdeviceptr flag;

static void *open_gate(void *unused)
{
    (void)unused;
    usleep(20000);
    OK(cuCtxSetCurrent(context));
    OK(cuStreamWriteValue32(CU_STREAM_PER_THREAD, flag, 1, 0));
    return NULL;
}

static void test_another_thread_opens_the_gate_that_one_waits_at(void)
{
    pthread_t opener;

    start("1GiB");
    OK(cuCtxGetCurrent(&context));
    OK(cuMemAlloc(&flag, PAGE));
    CUstream gated = make_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamWaitValue32(gated, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(pthread_create(&opener, NULL, open_gate, NULL) == 0);
    OK(cuStreamSynchronize(gated));
    CHECK(pthread_join(opener, NULL) == 0);
    CHECK(stats().misuse_count == 0);
}

static void call_driver(void *result)
{
    *(CUresult *)result = cuCtxSynchronize();
}

static int compute_with_driver(void *result)
{
    CUdeviceptr addr;

    *(CUresult *)result = cuMemAlloc(&addr, PAGE);
    return 0;
}

static void release_nothing(void *nothing)
{
    (void)nothing;
}

static void test_without_a_thread_the_caller_runs_what_streams_call(void)
{
    CUresult of_function, of_computation;
    const oomph_sim_compute_t computation = {
        .name = "computation",
        .run = compute_with_driver,
        .release = release_nothing,
        .argument = &of_computation,
        .makes_calls = 1,
    };

    start("1GiB,memory=real");
    threads_fail = true;
    OK(cuLaunchHostFunc(NULL, call_driver, &of_function));
    CHECK(oomph_sim_compute(&computation, NULL) == 0);
    OK(cuCtxSynchronize());
    threads_fail = false;
    OK(cuStreamQuery(NULL)); // the caller may call the driver again
    CHECK(of_function == CUDA_ERROR_NOT_PERMITTED);
    CHECK(of_computation == CUDA_SUCCESS);
}

int main(void)
{
    run(test_threads_do_not_disturb_each_others_pages);
    run(test_threads_make_and_destroy_streams_and_events);
    run(test_host_functions_may_take_the_locks_of_callers);
    run(test_another_thread_opens_the_gate_that_one_waits_at);
    run(test_without_a_thread_the_caller_runs_what_streams_call);
    return finish();
}
