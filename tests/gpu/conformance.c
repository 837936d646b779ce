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
#include "devices.h"
#include "graphs.h"
#include "misuse.h"
#include "order.h"
#include "pools.h"
#include "sharing.h"

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
    check_aliases();
    check_access();
    check_pointers();
    check_host_pages(CU_MEM_LOCATION_TYPE_HOST_NUMA, "host_numa");
    check_host_pages(CU_MEM_LOCATION_TYPE_HOST, "host");
    check_split_pages(CU_MEM_LOCATION_TYPE_HOST_NUMA, "host_numa");
    check_split_pages(CU_MEM_LOCATION_TYPE_HOST, "host");
    check_memory();
    check_stream_ids(context);
    check_order();
    check_host_functions();
    check_values();
    check_captures();
    check_graphs();
    check_sharing();
    check_pools();
    check_devices(context);
    check_misuse();
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
