/* devices.h - the checks of conformance.c about several devices: contexts, copies from
 * one to the other, access to each other's memory.
 */
#pragma once
#include "report.h"

// One of two devices.
typedef struct side {
    CUcontext context;
    CUdeviceptr addr; // a page
    CUstream stream;
} side_t;

static CUresult open_side(int device, side_t *side)
{
    CUresult result = cu.context_retain(&side->context, device);

    if (result == CUDA_SUCCESS)
        result = cu.context_set(side->context);
    if (result == CUDA_SUCCESS)
        result = cu.alloc(&side->addr, page);
    if (result == CUDA_SUCCESS)
        result = cu.stream_create(&side->stream, CU_STREAM_NON_BLOCKING);
    return result;
}

static void close_side(int device, const side_t *side)
{
    cu.context_set(side->context);
    cu.stream_destroy(side->stream);
    cu.free(side->addr);
    cu.context_release(device);
}

static unsigned word_at(const side_t *side, size_t offset)
{
    unsigned value = 0;

    cu.context_set(side->context);
    cu.copy_out(&value, side->addr + offset, sizeof value);
    return value;
}

static void check_peer_copies(const side_t *first, const side_t *second)
{
    CUevent filled;

    cu.context_set(first->context);
    cu.fill(first->addr, 7, page / 4);
    expect(
        "peer_copy",
        cu.copy_peer(second->addr, second->context, first->addr, first->context, page),
        CUDA_SUCCESS);
    cu.context_synchronize();
    check("a_peer_copy_brings_all_bytes",
          word_at(second, 0) == 7 && word_at(second, page - 4) == 7);

    cu.context_set(first->context);
    cu.event_create(&filled, CU_EVENT_DISABLE_TIMING);
    make_busy(first->stream);
    cu.fill_async(first->addr, 8, page / 4, first->stream);
    cu.event_record(filled, first->stream);
    cu.context_set(second->context);
    expect("a_stream_waits_for_an_event_of_another_device",
           cu.stream_wait(second->stream, filled, 0), CUDA_SUCCESS);
    expect("peer_copy_async",
           cu.copy_peer_async(second->addr, second->context, first->addr,
                              first->context, page, second->stream),
           CUDA_SUCCESS);
    expect("a_stream_waits_for_work_of_another_device", cu.stream_query(second->stream),
           CUDA_ERROR_NOT_READY);
    open_gate();
    cu.stream_synchronize(second->stream);
    check("a_peer_copy_comes_after_what_it_waits_for",
          word_at(second, 0) == 8 && word_at(second, page - 4) == 8);
    cu.context_set(second->context);
    expect("record_on_a_stream_of_another_device",
           cu.event_record(filled, second->stream), CUDA_ERROR_INVALID_HANDLE);
    cu.event_destroy(filled);
}

static void check_peer_access(const side_t *first, const side_t *second)
{
    int can = 0;

    cu.can_access_peer(&can, 1, 0);
    cu.context_set(second->context);
    expect("peer_access_to_oneself", cu.enable_peer(second->context, 0),
           CUDA_ERROR_INVALID_CONTEXT);
    if (!can) {
        report("waived", "peer_access", "device 1 has no access to device 0");
        return;
    }
    expect("disable_peer_before_enable", cu.disable_peer(first->context),
           CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    expect("enable_peer", cu.enable_peer(first->context, 0), CUDA_SUCCESS);
    expect("enable_peer_twice", cu.enable_peer(first->context, 0),
           CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    expect("fill_of_a_peers_memory", cu.fill_async(first->addr, 9, 1, second->stream),
           CUDA_SUCCESS);
    cu.stream_synchronize(second->stream);
    check("the_peer_sees_it", word_at(first, 0) == 9);
    cu.context_set(second->context);
    expect("disable_peer", cu.disable_peer(first->context), CUDA_SUCCESS);
}

// A page of device 0 that device 1 is given access to, as oomph maps it for peers.
static void check_peer_pages(const side_t *first, const side_t *second)
{
    CUmemGenericAllocationHandle handle;
    unsigned long long flags = 99;
    CUmemAccessDesc peer =
        access_by(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    int can = 0;

    cu.can_access_peer(&can, 1, 0);
    if (!can)
        return;
    peer.location.id = 1;
    cu.context_set(first->context);
    side_t mapped = {first->context, pages("peer_pages", 1, 1, &handle), NULL};
    if (mapped.addr == 0)
        return;
    cu.get_access(&flags, &peer.location, mapped.addr);
    check("a_peer_has_no_access_to_a_page_at_first",
          flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    expect("set_access_of_a_peer", cu.set_access(mapped.addr, page, &peer, 1),
           CUDA_SUCCESS);
    cu.context_set(second->context);
    expect("fill_of_a_peers_page", cu.fill_async(mapped.addr, 10, 1, second->stream),
           CUDA_SUCCESS);
    cu.stream_synchronize(second->stream);
    check("the_peer_sees_its_page_filled", word_at(&mapped, 0) == 10);
    drop_pages(mapped.addr, 1, 1, &handle);
}

static void check_memory_of_each(const side_t *first, const side_t *second)
{
    size_t free_bytes[3] = {0}, total = 0;
    CUdeviceptr addr;

    cu.context_set(second->context);
    cu.memory_info(&free_bytes[0], &total);
    cu.context_set(first->context);
    cu.alloc(&addr, 32 * page);
    cu.context_set(second->context);
    cu.memory_info(&free_bytes[1], &total);
    check("memory_of_one_device_is_not_taken_from_another",
          free_bytes[0] == free_bytes[1]);
    expect("free_with_another_devices_context", cu.free(addr), CUDA_SUCCESS);
}

static void check_devices(CUcontext context)
{
    side_t first, second;
    int count = 0;

    cu.device_count(&count);
    expect("context_of_a_device_that_is_not_there",
           cu.context_retain(&first.context, count), CUDA_ERROR_INVALID_DEVICE);
    if (count < 2) {
        report("waived", "several_devices", "the machine has one");
        return;
    }
    CUresult result = open_side(0, &first);
    if (result == CUDA_SUCCESS)
        result = open_side(1, &second);
    if (expect("two_devices", result, CUDA_SUCCESS)) {
        check_memory_of_each(&first, &second);
        check_peer_copies(&first, &second);
        check_peer_access(&first, &second);
        check_peer_pages(&first, &second);
        close_side(0, &first);
        close_side(1, &second);
    }
    cu.context_set(context);
}
