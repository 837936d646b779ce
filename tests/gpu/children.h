/* children.h - the checks of conformance.c that break a context: they run in child
 * processes.
 */
#pragma once
#include "pages.h"

static CUcontext start(void)
{
    CUcontext context = NULL;
    CUmemAllocationProp prop = located(CU_MEM_LOCATION_TYPE_DEVICE, 0);

    if (cu.init(0) == CUDA_SUCCESS && cu.context_retain(&context, 0) == CUDA_SUCCESS)
        cu.context_set(context);
    cu.granularity(&page, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return context;
}

// Unmaps a page that a stream is about to write: the result of waiting for the stream.
static CUresult unmap_in_use(void)
{
    CUmemGenericAllocationHandle handle;
    CUstream stream;
    pthread_t thread;

    if (start() == NULL)
        return CUDA_ERROR_NO_DEVICE;
    CUdeviceptr addr = pages("unmap_in_use", 1, 1, &handle);
    cu.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    make_busy(stream);
    cu.fill_async(addr, 1, 1, stream);
    pthread_create(&thread, NULL, open_gate_later,
                   NULL); // unmap may wait for the stream
    CUresult result = cu.unmap(addr, page);
    pthread_join(thread, NULL);
    return result == CUDA_SUCCESS ? cu.stream_synchronize(stream) : result;
}

// What a copy to a mapped page without access gives.
static CUresult copy_without_access(void)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr addr;
    int value = 0;

    if (start() == NULL)
        return CUDA_ERROR_NO_DEVICE;
    cu.reserve(&addr, page, 0, 0, 0);
    create_on(CU_MEM_LOCATION_TYPE_DEVICE, page, &handle);
    cu.map(addr, page, 0, handle, 0);
    return cu.copy_in(addr, &value, sizeof value);
}

// What a forked child gets once its parent uses CUDA.
static CUresult use_after_fork(void)
{
    return cu.context_synchronize();
}

// What a body gives that runs in a child process; false if that died.
static bool in_child(CUresult (*body)(void), CUresult *result)
{
    CUresult given = CUDA_ERROR_UNKNOWN;
    int ends[2], status = 0;

    if (pipe(ends) != 0)
        return false;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        given = body();
        _exit(write(ends[1], &given, sizeof given) == sizeof given ? 0 : 1);
    }
    close(ends[1]);
    bool lived = read(ends[0], result, sizeof *result) == sizeof *result;
    close(ends[0]);
    waitpid(child, &status, 0);
    return lived;
}

static void note_of_child(const char *name, CUresult (*body)(void))
{
    CUresult result;

    if (in_child(body, &result))
        note_result(name, result);
    else
        note(name, "the process died");
}

// The documented result of a body that runs in a child process.
static void expect_of_child(const char *name, CUresult (*body)(void), CUresult expected)
{
    CUresult result;

    if (in_child(body, &result))
        expect(name, result, expected);
    else
        report("differs", name, "the process died");
}
