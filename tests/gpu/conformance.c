/* conformance.c - what the CUDA driver documents, checked on whatever libcuda.so.1 is
 * found: NVIDIA's on a real GPU, or the simulated one. The same program, the same
 * results: what differs is a bug in the simulation.
 *
 *     cc -std=c17 -I CUDA/include conformance.c -ldl -lpthread -o conformance
 *     ./conformance [--json FILE]
 *
 * One line per check: "ok NAME", "differs NAME what was seen", "waived NAME why" where
 * the device cannot do it. What is not documented is measured: "note NAME value". Takes
 * at most 256 MiB of the device. Checks that break a context run in child processes.
 * Exits 0 if nothing differs.
 */
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

// ---- results

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

// ---- helpers

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

// ---- the checks

static void check_entry_points(void)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *function = &status;
    int version = 0;

    cu.driver_version(&version);
    note("driver_version", "%d", version);
    expect("entry_above_the_drivers_version_is_refused",
           cu.proc_address("cuMemMap", &function, version + 10, 0, NULL),
           CUDA_ERROR_INVALID_VALUE);
    CUresult result = cu.proc_address("cuNoSuchCall", &function, 12000, 0, &status);
    check("unknown_entry_is_null_and_not_found",
          result != CUDA_SUCCESS ||
              (function == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
    note_result("unknown_entry", result);
    cu.proc_address("cuMemMap", &function, 10000, 0, &status);
    check("entry_newer_than_the_version_is_not_sufficient",
          status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

static void check_contexts(CUcontext context)
{
    CUdeviceptr addr;
    unsigned flags;
    int active = 0;

    cu.context_set(NULL);
    expect("alloc_needs_a_context", cu.alloc(&addr, page), CUDA_ERROR_INVALID_CONTEXT);
    expect("synchronize_needs_a_context", cu.context_synchronize(),
           CUDA_ERROR_INVALID_CONTEXT);
    CUmemGenericAllocationHandle handle;
    if (expect("create_needs_no_context",
               create_on(CU_MEM_LOCATION_TYPE_DEVICE, page, &handle), CUDA_SUCCESS))
        cu.release(handle);
    cu.context_set(context);
    cu.context_state(0, &flags, &active);
    check("a_retained_context_is_active", active == 1);
}

static void check_creation(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = located(CU_MEM_LOCATION_TYPE_DEVICE, 0);

    expect("create_of_a_part_of_a_page", cu.create(&handle, page / 2, &prop, 0),
           CUDA_ERROR_INVALID_VALUE);
    expect("create_with_flags", cu.create(&handle, page, &prop, 1),
           CUDA_ERROR_INVALID_VALUE);
    prop = located(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0);
    expect("create_on_host_numa_current", cu.create(&handle, page, &prop, 0),
           CUDA_ERROR_INVALID_VALUE);
    prop = located(CU_MEM_LOCATION_TYPE_DEVICE, 99);
    note_result("create_on_device_99", cu.create(&handle, page, &prop, 0));
    prop = located(CU_MEM_LOCATION_TYPE_HOST_NUMA, -1);
    note_result("create_on_host_numa_minus_1", cu.create(&handle, page, &prop, 0));
    prop = located(CU_MEM_LOCATION_TYPE_HOST, 0);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    expect_failure("create_on_host_for_export", cu.create(&handle, page, &prop, 0));
}

static void check_reservations(void)
{
    CUdeviceptr addr = 0;
    CUmemGenericAllocationHandle handle;

    expect("reserve_aligned", cu.reserve(&addr, page, 64 * page, 0, 0), CUDA_SUCCESS);
    check("reserve_honours_the_alignment", addr % (64 * page) == 0);
    expect("unreserve_half", cu.unreserve(addr, page / 2), CUDA_ERROR_INVALID_VALUE);
    expect("unreserve", cu.unreserve(addr, page), CUDA_SUCCESS);
    note_result("reserve_4096_bytes", cu.reserve(&addr, 4096, 0, 0, 0));
    addr = pages("unreserve_while_mapped", 2, 1, &handle);
    if (addr == 0)
        return;
    expect_failure("unreserve_while_mapped", cu.unreserve(addr, 2 * page));
    drop_pages(addr, 2, 1, &handle);
}

static void check_mapping(void)
{
    CUmemGenericAllocationHandle handles[2], large, same = 0;
    CUmemAllocationProp prop;
    unsigned value = 0;
    CUdeviceptr addr = pages("mapping", 8, 2, handles);

    if (addr == 0)
        return;
    expect_failure("map_where_something_is_mapped",
                   cu.map(addr, page, 0, handles[1], 0));
    create_on(CU_MEM_LOCATION_TYPE_DEVICE, 2 * page, &large);
    expect_failure("map_with_an_offset", cu.map(addr + 4 * page, page, page, large, 0));
    expect("map_unaligned", cu.map(addr + 4 * page + 4096, page, 0, large, 0),
           CUDA_ERROR_INVALID_VALUE);
    expect("map_a_large_handle", cu.map(addr + 4 * page, 2 * page, 0, large, 0),
           CUDA_SUCCESS);
    expect_failure("unmap_a_part_of_a_mapping", cu.unmap(addr + 4 * page, page));
    note_result("set_access_on_a_part_of_a_mapping",
                open_to_device(addr + 4 * page, page));
    expect("release_while_mapped", cu.release(large), CUDA_SUCCESS);
    expect("set_access_after_release", open_to_device(addr + 4 * page, 2 * page),
           CUDA_SUCCESS);
    cu.fill(addr + 4 * page, 7, 1);
    cu.copy_out(&value, addr + 4 * page, sizeof value);
    check("a_released_handle_lives_while_mapped", value == 7);
    cu.unmap(addr + 4 * page, 2 * page);

    expect_failure("set_access_over_a_hole", open_to_device(addr, 3 * page));
    expect("set_access_over_two_mappings", open_to_device(addr, 2 * page),
           CUDA_SUCCESS);
    expect("retain_by_address", cu.retain(&same, (void *)(uintptr_t)(addr + 100)),
           CUDA_SUCCESS);
    check("retaining_gives_the_same_handle", same == handles[0]);
    cu.release(same);
    expect("properties", cu.properties(&prop, handles[0]), CUDA_SUCCESS);
    check("properties_tell_the_location",
          prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE);

    cu.fill(addr, 9, 1);
    cu.unmap(addr, page);
    cu.map(addr + 2 * page, page, 0, handles[0], 0);
    open_to_device(addr + 2 * page, page);
    cu.copy_out(&value, addr + 2 * page, sizeof value);
    check("bytes_survive_an_unmap", value == 9);
    expect("unmap_two_mappings_at_once", cu.unmap(addr + page, 2 * page), CUDA_SUCCESS);
    cu.release(handles[0]);
    cu.release(handles[1]);
    expect("unreserve_at_the_end", cu.unreserve(addr, 8 * page), CUDA_SUCCESS);
}

static void check_access(void)
{
    CUmemGenericAllocationHandle handle;
    unsigned long long flags = 99;
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemAccessDesc by_host =
        access_by(CU_MEM_LOCATION_TYPE_HOST_NUMA, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUdeviceptr addr = pages("access", 1, 1, &handle);

    if (addr == 0)
        return;
    expect("get_access", cu.get_access(&flags, &device, addr), CUDA_SUCCESS);
    check("access_is_as_set", flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    expect_failure("host_access_to_device_memory",
                   cu.set_access(addr, page, &by_host, 1));
    cu.unmap(addr, page);
    cu.map(addr, page, 0, handle, 0);
    cu.get_access(&flags, &device, addr);
    check("a_new_mapping_has_no_access", flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    drop_pages(addr, 1, 1, &handle);
}

static void check_pointers(void)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base = 0;
    size_t bytes = 0;
    unsigned type = 0;
    bool mapped = false;
    CUdeviceptr addr = pages("pointers", 4, 1, &handle);

    if (addr == 0)
        return;
    expect("memory_type",
           cu.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr + 5),
           CUDA_SUCCESS);
    check("device_pages_are_device_memory", type == CU_MEMORYTYPE_DEVICE);
    cu.pointer_attribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, addr);
    check("a_mapped_address_is_mapped", mapped);
    cu.pointer_attribute(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, addr + 5);
    cu.pointer_attribute(&bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, addr + 5);
    check("an_address_knows_its_mapping", base == addr && bytes == page);
    cu.pointer_attribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, addr + 5);
    cu.pointer_attribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, addr + 5);
    note("range_of_4_reserved_pages", "%zu pages from page %lld", bytes / page,
         ((long long)base - (long long)addr) / (long long)page);
    note_result(
        "memory_type_of_a_reserved_page",
        cu.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr + page));
    expect("memory_type_of_the_stack",
           cu.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                (CUdeviceptr)(uintptr_t)&type),
           CUDA_ERROR_INVALID_VALUE);
    drop_pages(addr, 4, 1, &handle);
}

// A page goes to the host and back at one address. `type` is the kind of host page.
static void check_host_pages(CUmemLocationType type, const char *kind)
{
    char name[64];
    CUmemGenericAllocationHandle device, host;
    uint64_t before = 0, after = 0;
    unsigned value = 0, memory_type = 0;
    CUmemAccessDesc both[2] = {
        access_by(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
        access_by(type, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)};

    snprintf(name, sizeof name, "%s_pages", kind);
    CUresult result = create_on(type, page, &host);
    if (result != CUDA_SUCCESS) {
        report("waived", name, name_of(result));
        return;
    }
    CUdeviceptr addr = pages(name, 2, 1, &device);
    if (addr == 0)
        return;
    cu.fill(addr, 1234, 1);
    cu.map(addr + page, page, 0, host, 0);
    open_to_device(addr + page, page);
    cu.copy_across(addr + page, addr, page);
    cu.context_synchronize();
    cu.pointer_attribute(&before, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, addr);
    cu.unmap(addr, page);
    cu.unmap(addr + page, page);
    cu.map(addr, page, 0, host, 0);
    snprintf(name, sizeof name, "%s_access_for_device_and_host", kind);
    if (!expect(name, cu.set_access(addr, page, both, 2), CUDA_SUCCESS))
        return;
    snprintf(name, sizeof name, "%s_bytes_moved_with_the_page", kind);
    check(name, *(volatile unsigned *)(uintptr_t)addr == 1234);
    *(volatile unsigned *)(uintptr_t)addr = 4321;
    cu.copy_out(&value, addr, sizeof value);
    snprintf(name, sizeof name, "%s_device_sees_what_the_host_wrote", kind);
    check(name, value == 4321);
    cu.pointer_attribute(&after, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, addr);
    snprintf(name, sizeof name, "%s_block_id_changes", kind);
    note(name, "%s", before != after ? "yes" : "no");
    cu.pointer_attribute(&memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr);
    snprintf(name, sizeof name, "%s_memory_type", kind);
    note(name, "%u", memory_type);
    cu.unmap(addr, page);
    cu.map(addr, page, 0, device, 0);
    open_to_device(addr, page);
    cu.copy_out(&value, addr, sizeof value);
    snprintf(name, sizeof name, "%s_device_page_kept_its_bytes", kind);
    check(name, value == 1234);
    drop_pages(addr, 2, 1, &device);
    cu.release(host);
}

static void check_memory(void)
{
    static char buffer[8192];
    size_t before = 0, created = 0, mapped = 0, total = 0;
    CUdeviceptr addr;
    CUmemGenericAllocationHandle handle;

    expect("register", cu.host_register(buffer, sizeof buffer, 0), CUDA_SUCCESS);
    expect("register_twice", cu.host_register(buffer, sizeof buffer, 0),
           CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    expect("unregister", cu.host_unregister(buffer), CUDA_SUCCESS);
    expect("unregister_twice", cu.host_unregister(buffer),
           CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    expect("alloc_of_nothing", cu.alloc(&addr, 0), CUDA_ERROR_INVALID_VALUE);
    expect("free_of_null", cu.free(0), CUDA_SUCCESS);
    expect("alloc", cu.alloc(&addr, page), CUDA_SUCCESS);
    expect("free_inside", cu.free(addr + 512), CUDA_ERROR_INVALID_VALUE);
    expect("free", cu.free(addr), CUDA_SUCCESS);
    expect("alloc_async", cu.alloc_async(&addr, page, NULL), CUDA_SUCCESS);
    expect("free_async", cu.free_async(addr, NULL), CUDA_SUCCESS);
    cu.context_synchronize();
    cu.reserve(&addr, 32 * page, 0, 0, 0);
    cu.memory_info(&before, &total);
    create_on(CU_MEM_LOCATION_TYPE_DEVICE, 32 * page, &handle);
    cu.memory_info(&created, &total);
    cu.map(addr, 32 * page, 0, handle, 0);
    cu.memory_info(&mapped, &total);
    check("free_memory_is_below_the_total", before < total);
    note("free_memory_lost_by_create_of_32_pages", "%.1f pages",
         ((double)before - (double)created) / (double)page);
    note("free_memory_lost_by_map_of_32_pages", "%.1f pages",
         ((double)created - (double)mapped) / (double)page);
    drop_pages(addr, 32, 0, NULL);
    cu.unmap(addr, 32 * page);
    cu.release(handle);
    cu.unreserve(addr, 32 * page);
}

static unsigned long long id_of(CUstream stream)
{
    unsigned long long id = 0;

    cu.stream_id(stream, &id);
    return id;
}

static void *id_in_thread(void *context)
{
    static unsigned long long id;

    cu.context_set(context);
    id = id_of(CU_STREAM_PER_THREAD);
    return &id;
}

static void check_stream_ids(CUcontext context)
{
    CUstream first, second;
    pthread_t thread;
    void *other_id;

    cu.stream_create(&first, CU_STREAM_NON_BLOCKING);
    cu.stream_create(&second, CU_STREAM_NON_BLOCKING);
    check("stream_ids_differ", id_of(first) != id_of(second));
    check("stream_0_is_stream_legacy", id_of(NULL) == id_of(CU_STREAM_LEGACY));
    check("stream_per_thread_is_not_legacy",
          id_of(NULL) != id_of(CU_STREAM_PER_THREAD));
    pthread_create(&thread, NULL, id_in_thread, context);
    pthread_join(thread, &other_id);
    note("stream_per_thread_ids_differ_between_threads", "%s",
         *(unsigned long long *)other_id != id_of(CU_STREAM_PER_THREAD) ? "yes" : "no");
    unsigned long long id = id_of(second);
    CUstream stale = second;
    cu.stream_destroy(second);
    cu.stream_create(&second, CU_STREAM_NON_BLOCKING);
    note("a_destroyed_handle_is_reused", "%s", second == stale ? "yes" : "no");
    check("a_new_stream_has_a_new_id", id_of(second) != id);
    cu.stream_destroy(first);
    cu.stream_destroy(second);
}

static void check_order(void)
{
    CUstream busy, other, blocking;
    CUevent event, before;
    float ms;

    cu.stream_create(&busy, CU_STREAM_NON_BLOCKING);
    cu.stream_create(&other, CU_STREAM_NON_BLOCKING);
    cu.stream_create(&blocking, CU_STREAM_DEFAULT);
    cu.event_create(&event, CU_EVENT_DISABLE_TIMING);
    cu.event_create(&before, CU_EVENT_DEFAULT);
    expect("query_of_an_event_never_recorded", cu.event_query(event), CUDA_SUCCESS);
    expect("elapsed_of_events_never_recorded", cu.elapsed(&ms, before, before),
           CUDA_ERROR_INVALID_HANDLE);
    make_busy(busy);
    cu.event_record(event, busy);
    expect("query_of_a_busy_stream", cu.stream_query(busy), CUDA_ERROR_NOT_READY);
    expect("query_of_a_pending_event", cu.event_query(event), CUDA_ERROR_NOT_READY);
    expect("another_stream_goes_on", cu.stream_synchronize(other), CUDA_SUCCESS);
    cu.stream_wait(other, event, 0);
    expect("a_stream_waits_for_an_event", cu.stream_query(other), CUDA_ERROR_NOT_READY);
    expect("the_default_stream_does_not_wait_for_a_non_blocking_one",
           cu.stream_query(NULL), CUDA_SUCCESS);
    open_gate();
    expect("synchronize_of_the_waiting_stream", cu.stream_synchronize(other),
           CUDA_SUCCESS);
    expect("the_event_is_done", cu.event_query(event), CUDA_SUCCESS);
    make_busy(blocking);
    cu.event_record(event, NULL);
    expect("the_default_stream_waits_for_a_blocking_one", cu.event_query(event),
           CUDA_ERROR_NOT_READY);
    open_gate();
    expect("event_synchronize", cu.event_synchronize(event), CUDA_SUCCESS);
    cu.event_record(before, NULL);
    cu.event_synchronize(before);
    expect("elapsed_of_an_untimed_event", cu.elapsed(&ms, before, event),
           CUDA_ERROR_INVALID_HANDLE);
    cu.event_destroy(event);
    cu.event_destroy(before);
    cu.stream_destroy(busy);
    cu.stream_destroy(other);
    cu.stream_destroy(blocking);
}

// ---- values in memory, and what they gate

static void check_values(void)
{
    CUstream gated, opener;
    void *flag;

    cu.stream_create(&gated, CU_STREAM_NON_BLOCKING);
    cu.stream_create(&opener, CU_STREAM_NON_BLOCKING);
    cu.host_alloc(&flag, 64, 0);
    memset(flag, 0, 64);
    CUdeviceptr addr = (CUdeviceptr)(uintptr_t)flag;
    CUresult result = cu.wait_value(gated, addr, 5, CU_STREAM_WAIT_VALUE_GEQ);
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        report("waived", "values_in_memory", name_of(result));
        return;
    }
    expect("wait_value", result, CUDA_SUCCESS);
    expect("a_stream_waits_for_a_value", cu.stream_query(gated), CUDA_ERROR_NOT_READY);
    expect("write_value", cu.write_value(opener, addr, 6, 0), CUDA_SUCCESS);
    expect("a_written_value_lets_it_go_on", cu.stream_synchronize(gated), CUDA_SUCCESS);
    cu.host_free(flag);
    cu.stream_destroy(gated);
    cu.stream_destroy(opener);
}

// ---- capture

static void begin(CUstream stream)
{
    cu.capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static void ends_with(const char *name, CUstream stream, CUresult expected)
{
    CUgraph graph = NULL;

    expect(name, cu.capture_end(stream, &graph), expected);
    if (graph != NULL)
        cu.graph_destroy(graph);
}

static void check_capture(CUstream stream, CUdeviceptr addr)
{
    CUgraph graph;
    CUgraphExec exec;
    CUstreamCaptureStatus status;
    unsigned value = 0;

    cu.fill(addr, 1, 1);
    expect("capture_begin", cu.capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
           CUDA_SUCCESS);
    cu.fill_async(addr, 2, 1, stream);
    cu.capture_status(stream, &status);
    check("a_capture_is_active", status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    expect("capture_end", cu.capture_end(stream, &graph), CUDA_SUCCESS);
    expect("instantiate", cu.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
    cu.copy_out(&value, addr, sizeof value);
    check("captured_work_does_not_run", value == 1);
    expect("graph_launch", cu.graph_launch(exec, stream), CUDA_SUCCESS);
    cu.stream_synchronize(stream);
    cu.copy_out(&value, addr, sizeof value);
    check("a_launched_graph_runs", value == 2);
    cu.exec_destroy(exec);
    cu.graph_destroy(graph);
    expect("capture_of_the_default_stream",
           cu.capture_begin(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

static void check_what_capture_forbids(CUstream stream, CUdeviceptr addr)
{
    CUevent event, outside;
    CUstream other;
    CUdeviceptr more;
    CUstreamCaptureStatus status;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    cu.event_create(&event, CU_EVENT_DISABLE_TIMING);
    cu.event_create(&outside, CU_EVENT_DISABLE_TIMING);
    cu.event_record(outside, NULL);
    begin(stream);
    expect("synchronize_of_a_capturing_stream", cu.stream_synchronize(stream),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ends_with("that_invalidates_the_capture", stream,
              CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(stream);
    cu.event_record(event, stream);
    expect("query_of_a_captured_event", cu.event_query(event),
           CUDA_ERROR_CAPTURED_EVENT);
    cu.capture_status(stream, &status);
    note("status_after_query_of_a_captured_event", "%d", (int)status);
    cu.capture_end(stream, &(CUgraph){NULL});
    begin(stream);
    expect("wait_for_an_event_outside", cu.stream_wait(stream, outside, 0),
           CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    cu.capture_end(stream, &(CUgraph){NULL});
    begin(stream);
    expect("alloc_while_capturing", cu.alloc(&more, page),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cu.capture_end(stream, &(CUgraph){NULL});
    begin(stream);
    cu.capture_mode(&mode);
    expect("alloc_while_capturing_relaxed", cu.alloc(&more, page), CUDA_SUCCESS);
    cu.capture_mode(&mode);
    ends_with("that_keeps_the_capture", stream, CUDA_SUCCESS);
    cu.free(more);
    cu.stream_create(&other, CU_STREAM_NON_BLOCKING);
    begin(stream);
    cu.fill_async(addr, 1, 1, stream);
    cu.event_record(event, stream);
    cu.stream_wait(other, event, 0);
    cu.fill_async(addr, 2, 1, other);
    ends_with("a_stream_that_did_not_join", stream, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    cu.stream_destroy(other);
    cu.stream_create(&other, CU_STREAM_DEFAULT);
    begin(other);
    expect("default_stream_while_a_blocking_one_captures",
           cu.capture_status(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    cu.capture_end(other, &(CUgraph){NULL});
    cu.stream_destroy(other);
    cu.event_destroy(event);
    cu.event_destroy(outside);
}

// Whether the calls of virtual memory management spoil a capture is not documented.
static void note_in_capture(const char *name, CUstream stream, CUresult result)
{
    CUgraph graph = NULL;

    CUresult end = cu.capture_end(stream, &graph);
    note(name, "%s, then the capture ends with %s", name_of(result), name_of(end));
    if (graph != NULL)
        cu.graph_destroy(graph);
}

static void note_what_capture_allows(CUstream stream)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr addr;
    CUevent event;

    cu.event_create(&event, CU_EVENT_DISABLE_TIMING);
    cu.event_record(event, NULL);
    cu.reserve(&addr, page, 0, 0, 0);
    begin(stream);
    note_in_capture("event_query_in_capture", stream, cu.event_query(event));
    begin(stream);
    note_in_capture("create_in_capture", stream,
                    create_on(CU_MEM_LOCATION_TYPE_DEVICE, page, &handle));
    begin(stream);
    note_in_capture("map_in_capture", stream, cu.map(addr, page, 0, handle, 0));
    begin(stream);
    note_in_capture("set_access_in_capture", stream, open_to_device(addr, page));
    begin(stream);
    note_in_capture("unmap_in_capture", stream, cu.unmap(addr, page));
    begin(stream);
    note_in_capture("release_in_capture", stream, cu.release(handle));
    cu.unmap(addr, page); // in case that was refused
    cu.release(handle);
    cu.unreserve(addr, page);
    cu.event_destroy(event);
}

static void check_captures(void)
{
    CUstream stream;
    CUdeviceptr addr;

    cu.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    cu.alloc(&addr, page);
    check_capture(stream, addr);
    check_what_capture_forbids(stream, addr);
    note_what_capture_allows(stream);
    cu.free(addr);
    cu.stream_destroy(stream);
}

// ---- costs

// ---- what breaks a context, in a child process

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

#include "sharing.h"

// ---- the program

static void check_everything(void)
{
    char name[100] = "";

    note_of_child("unmap_under_pending_work", unmap_in_use);
    note_of_child("copy_to_a_page_without_access", copy_without_access);
    expect_of_child("share_an_allocation", share_allocation, CUDA_SUCCESS);
    expect_of_child("share_a_page", share_page, CUDA_SUCCESS);
    expect_of_child("share_an_event", share_event, CUDA_SUCCESS);
    CUcontext context = start();
    if (context == NULL) {
        report("waived", "everything", "no device");
        return;
    }
    note_of_child("a_call_in_a_forked_child", use_after_fork);
    cu.device_name(name, sizeof name, 0);
    note("device", "%s", name);
    note("granularity", "%zu bytes", page);
    check_entry_points();
    check_contexts(context);
    check_creation();
    check_reservations();
    check_mapping();
    check_access();
    check_pointers();
    check_host_pages(CU_MEM_LOCATION_TYPE_HOST_NUMA, "host_numa");
    check_host_pages(CU_MEM_LOCATION_TYPE_HOST, "host");
    check_memory();
    check_stream_ids(context);
    check_order();
    check_values();
    check_captures();
    check_graphs();
    check_sharing();
    expect("no_error_is_left", cu.context_synchronize(), CUDA_SUCCESS);
    cu.context_release(0);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--json") == 0) {
        json = fopen(argv[2], "w");
        if (json == NULL) {
            perror(argv[2]);
            return 2;
        }
    }
    const char *missing = cuda_load();
    if (missing == NULL)
        check_everything();
    else
        report("waived", missing, "is not there");
    if (json != NULL)
        fclose(json);
    printf("%d results, %d differ\n", result_count, differ_count);
    return differ_count > 0;
}
