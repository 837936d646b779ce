/* pages.h - the checks of conformance.c about virtual memory: address space, pages of
 * the device and of the host, access to them.
 */
#pragma once
#include "report.h"

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

// The same page at two addresses: what one operation of a stream writes through one is
// what a later one reads and overwrites through the other.
static void check_aliases(void)
{
    CUmemGenericAllocationHandle handle;
    CUstream stream;
    unsigned seen[2] = {0, 0};
    CUdeviceptr addr = pages("aliases", 2, 1, &handle);

    if (addr == 0)
        return;
    CUdeviceptr alias = addr + page;
    expect("map_at_a_second_address", cu.map(alias, page, 0, handle, 0), CUDA_SUCCESS);
    expect("set_access_at_a_second_address", open_to_device(alias, page), CUDA_SUCCESS);
    cu.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    for (unsigned round = 1; round <= 16; round++) {
        cu.fill_async(addr, 2 * round, page / sizeof(unsigned), stream);
        cu.copy_out_async(&seen[0], alias + page / 2, sizeof seen[0], stream);
        cu.fill_async(alias, 2 * round + 1, page / sizeof(unsigned), stream);
        cu.copy_out_async(&seen[1], addr + page / 2, sizeof seen[1], stream);
        cu.stream_synchronize(stream);
        if (seen[0] != 2 * round || seen[1] != 2 * round + 1)
            break;
    }
    check("aliases_agree_in_the_order_of_a_stream", seen[0] == 32 && seen[1] == 33);
    cu.stream_destroy(stream);
    expect("unmap_the_first_address", cu.unmap(addr, page), CUDA_SUCCESS);
    cu.copy_out(&seen[0], alias, sizeof seen[0]);
    check("bytes_stay_at_the_second_address", seen[0] == 33);
    cu.unmap(alias, page);
    cu.release(handle);
    cu.unreserve(addr, 2 * page);
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

// A device page and a host page behind it, as a block has them that is split: copies go
// across the border, whatever the other side is, and so does what fills memory.
static void check_split_pages(CUmemLocationType type, const char *kind)
{
    char name[64];
    CUmemGenericAllocationHandle handles[2], host;
    CUmemAccessDesc both[2] = {
        access_by(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
        access_by(type, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)};
    unsigned *sent = malloc(page), *found = calloc(1, page), memory_type = 0;
    size_t count = page / sizeof(unsigned);

    snprintf(name, sizeof name, "%s_split_pages", kind);
    CUresult result = create_on(type, page, &host);
    if (result != CUDA_SUCCESS) {
        report("waived", name, name_of(result));
        goto free_both;
    }
    CUdeviceptr addr = pages(name, 4, 2, handles); // the second is another side
    if (addr == 0)
        goto free_both;
    CUdeviceptr other = addr + page, across = addr + 3 * page / 2;
    cu.map(addr + 2 * page, page, 0, host, 0);
    cu.set_access(addr + 2 * page, page, both, 2);
    for (size_t i = 0; i < count; i++)
        sent[i] = (unsigned)(7 * i + 1);

    snprintf(name, sizeof name, "%s_copy_in_across_the_border", kind);
    expect(name, cu.copy_in(across, sent, page), CUDA_SUCCESS);
    snprintf(name, sizeof name, "%s_copy_out_across_the_border", kind);
    expect(name, cu.copy_out(found, across, page), CUDA_SUCCESS);
    snprintf(name, sizeof name, "%s_bytes_are_kept_across_the_border", kind);
    check(name, memcmp(sent, found, page) == 0);
    snprintf(name, sizeof name, "%s_copy_from_across_the_border", kind);
    expect(name, cu.copy_across(addr, across, page), CUDA_SUCCESS);
    cu.fill(across, 5, count);
    snprintf(name, sizeof name, "%s_copy_to_across_the_border", kind);
    expect(name, cu.copy_across(across, addr, page), CUDA_SUCCESS);
    memset(found, 0, page);
    cu.copy_out(found, across, page);
    snprintf(name, sizeof name, "%s_bytes_came_back_across_the_border", kind);
    check(name, memcmp(sent, found, page) == 0);
    snprintf(name, sizeof name, "%s_fill_across_the_border", kind);
    expect(name, cu.fill(across, 5, count), CUDA_SUCCESS);
    cu.copy_out(found, across, page);
    snprintf(name, sizeof name, "%s_all_is_filled_across_the_border", kind);
    check(name, found[0] == 5 && found[count - 1] == 5);
    cu.pointer_attribute(&memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, other);
    snprintf(name, sizeof name, "%s_memory_type_before_the_border", kind);
    check(name, memory_type == CU_MEMORYTYPE_DEVICE);
    cu.unmap(addr + 2 * page, page);
    drop_pages(addr, 4, 2, handles);
    cu.release(host);
free_both:
    free(sent);
    free(found);
}
