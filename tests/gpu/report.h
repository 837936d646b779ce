/* report.h - what a check of conformance.c found, in a line each, and what all of the
 * checks use.
 */
#pragma once
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda.h"

static FILE *json;
static int result_count, differ_count;

static void report(const char *kind, const char *name, const char *text)
{
    printf("%s %s%s%s\n", kind, name, text[0] ? " " : "", text);
    fflush(stdout);
    if (json != NULL) {
        fprintf(json, "{\"result\": \"%s\", \"name\": \"%s\", \"detail\": \"%s\"}\n",
                kind, name, text);
        fflush(json);
    }
    result_count++;
    if (strcmp(kind, "differs") == 0)
        differ_count++;
}

static void note(const char *name, const char *format, ...)
{
    char text[200];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    report("note", name, text);
}

static void check(const char *name, bool good)
{
    report(good ? "ok" : "differs", name, "");
}

static const char *name_of(CUresult result)
{
    const char *name = NULL;

    cu.error_name(result, &name);
    return name ? name : "unknown";
}

// The documented result of a call.
static bool expect(const char *name, CUresult result, CUresult expected)
{
    char text[100] = "";

    if (result != expected)
        snprintf(text, sizeof text, "%s instead of %s", name_of(result),
                 name_of(expected));
    report(result == expected ? "ok" : "differs", name, text);
    return result == expected;
}

// A call that must fail, with an error that is not documented.
static void expect_failure(const char *name, CUresult result)
{
    report(result != CUDA_SUCCESS ? "ok" : "differs", name,
           result != CUDA_SUCCESS ? name_of(result) : "succeeded");
}

static void note_result(const char *name, CUresult result)
{
    note(name, "%s", name_of(result));
}

// ---- for the checks

static size_t page; // the granularity of device memory, in bytes

static CUmemAllocationProp located(CUmemLocationType type, int id)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = type, .id = id},
    };
}

static CUmemAccessDesc access_by(CUmemLocationType type, CUmemAccess_flags flags)
{
    return (CUmemAccessDesc){.location = {.type = type, .id = 0}, .flags = flags};
}

static CUresult open_to_device(CUdeviceptr addr, size_t bytes)
{
    CUmemAccessDesc access =
        access_by(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

    return cu.set_access(addr, bytes, &access, 1);
}

static CUresult create_on(CUmemLocationType type, size_t bytes,
                          CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp prop = located(type, 0);

    return cu.create(handle, bytes, &prop, 0);
}

// Reserves room for `count` pages and maps a handle of its own to each of the first
// `mapped`, open to the device. 0 if that fails, which is a difference.
static CUdeviceptr pages(const char *name, size_t count, size_t mapped,
                         CUmemGenericAllocationHandle *handles)
{
    CUdeviceptr addr = 0;
    CUresult result = cu.reserve(&addr, count * page, 0, 0, 0);

    for (size_t i = 0; i < mapped && result == CUDA_SUCCESS; i++) {
        result = create_on(CU_MEM_LOCATION_TYPE_DEVICE, page, &handles[i]);
        if (result == CUDA_SUCCESS)
            result = cu.map(addr + i * page, page, 0, handles[i], 0);
        if (result == CUDA_SUCCESS)
            result = open_to_device(addr + i * page, page);
    }
    if (result == CUDA_SUCCESS)
        return addr;
    report("differs", name, name_of(result));
    return 0;
}

static void drop_pages(CUdeviceptr addr, size_t count, size_t mapped,
                       const CUmemGenericAllocationHandle *handles)
{
    for (size_t i = 0; i < mapped; i++) {
        cu.unmap(addr + i * page, page);
        cu.release(handles[i]);
    }
    cu.unreserve(addr, count * page);
}

// A host function that keeps its stream busy until the gate is opened.
static volatile int gate_is_open;

static void wait_at_gate(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&gate_is_open, __ATOMIC_ACQUIRE))
        usleep(100);
}

static CUresult make_busy(CUstream stream)
{
    __atomic_store_n(&gate_is_open, 0, __ATOMIC_RELEASE);
    return cu.launch_host(stream, wait_at_gate, NULL);
}

static void open_gate(void)
{
    __atomic_store_n(&gate_is_open, 1, __ATOMIC_RELEASE);
}

static void *open_gate_later(void *unused)
{
    (void)unused;
    usleep(500000);
    open_gate();
    return NULL;
}
