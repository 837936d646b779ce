/* ipc.c - blocks that processes share: naming the pages of ours, mapping those of
 * others; and devices that reach each other's.
 *
 * A page is named by a file descriptor of the process that made it, and fetched from
 * there with pidfd_getfd(): no thread has to answer, but the system must allow the
 * importer to look into the exporter as a debugger does.
 */
#include "core/control/ipc.h"
#include "core/alloc/free.h"
#include "core/device/lookup.h"
#include "core/memory/access.h"
#include "core/memory/owner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DESCRIPTORS_KEPT = 64 }; // that a process needs for other things

// Pages of another process, mapped here.
typedef struct oomph_import {
    struct oomph_import *next;
    oomph_addr_t addr;
    size_t bytes;
    bool dropped; // to be unmapped when it may be waited for the device
} oomph_import_t;

// What the data of a ticket are. A page that is given up may leave its descriptor's
// number to another page; then tickets differ by `generation`.
typedef struct pass {
    char magic[8];
    uint64_t page_bytes;
    uint64_t generation;
    int32_t process;
    uint32_t page_count;
    int32_t descriptor[];
} pass_t;

static const char MAGIC[8] = "oomph-1";

static size_t pass_bytes(size_t page_count)
{
    return sizeof(pass_t) + page_count * sizeof(int32_t);
}

/* ---- Exporting */

static oomph_status_t check_block(const oomph_block_t *block, size_t page_count)
{
    struct rlimit limit;

    if (block->state != OOMPH_BLOCK_USED)
        return oomph_fail(OOMPH_ERR_INVALID, "0x%llx does not lie in a block in use",
                          (unsigned long long)block->addr);
    if (block->segment->kind == OOMPH_SEGMENT_FOREIGN)
        return oomph_fail(OOMPH_ERR_INVALID,
                          "the block has its memory from a MemPool's own allocator, "
                          "which oomph cannot share with other processes");
    if (block->tier == OOMPH_TIER_HOST || block->mixed_tier)
        return oomph_fail(OOMPH_ERR_INVALID,
                          "the block lies on the host and cannot be shared with other "
                          "processes; clone() it when memory is free, or share it on "
                          "the CPU");
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
        page_count + DESCRIPTORS_KEPT > limit.rlim_cur)
        return oomph_fail(OOMPH_ERR_NO_MEMORY,
                          "sharing %s takes %zu file descriptors, and the process may "
                          "have %llu: raise `ulimit -n`, or set larger pages "
                          "(OOMPH_CONF=page:32MiB)",
                          oomph_size_text(block->bytes).text, page_count,
                          (unsigned long long)limit.rlim_cur);
    return OOMPH_OK;
}

static oomph_status_t export_block(oomph_device_t *device, oomph_addr_t addr,
                                   oomph_ticket_t *ticket, size_t *offset)
{
    oomph_segment_t *segment = oomph_device_segment(device, addr);
    if (segment == NULL)
        return oomph_not_ours(addr);

    const oomph_block_t *block = oomph_segment_block(segment, addr);
    size_t first = 0, count = 0;
    if (segment->entries != NULL) {
        first = oomph_segment_page(segment, block->addr);
        count = oomph_block_last_page(block) + 1 - first;
    }
    oomph_status_t status = check_block(block, count);
    if (status != OOMPH_OK)
        return status;
    pass_t *pass = malloc(pass_bytes(count));
    if (pass == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for a ticket");
    status = oomph_segment_export(segment, &device->pages, first, count);
    if (status != OOMPH_OK) {
        free(pass);
        return status;
    }
    *pass = (pass_t){.page_bytes = device->pages.page_bytes,
                     .generation = device->pages.retired_bytes,
                     .process = getpid(),
                     .page_count = (uint32_t)count};
    memcpy(pass->magic, MAGIC, sizeof MAGIC);
    for (size_t i = 0; i < count; i++)
        pass->descriptor[i] = oomph_segment_descriptor(segment, first + i);
    *ticket = (oomph_ticket_t){pass, pass_bytes(count)};
    *offset = addr - oomph_segment_addr(segment, first);
    return OOMPH_OK;
}

oomph_status_t oomph_export(oomph_addr_t addr, oomph_ticket_t *ticket, size_t *offset)
{
    oomph_device_t *device = oomph_enter_open(oomph_owner(addr));

    if (device == NULL)
        return oomph_not_ours(addr);
    oomph_status_t status = export_block(device, addr, ticket, offset);
    oomph_unlock(device);
    return status;
}

/* ---- Fetching descriptors of another process */

static oomph_status_t open_process(int process, int *descriptor)
{
    *descriptor = (int)syscall(SYS_pidfd_open, process, 0);
    if (*descriptor >= 0)
        return OOMPH_OK;
    if (errno == ESRCH)
        return oomph_fail(OOMPH_ERR_DRIVER,
                          "process %d, which shared the block, has ended", process);
    return oomph_fail(OOMPH_ERR_DRIVER, "pidfd_open of process %d failed: %s", process,
                      strerror(errno));
}

static oomph_status_t fetch(int process_descriptor, int process, int descriptor,
                            int *fetched)
{
    *fetched = (int)syscall(SYS_pidfd_getfd, process_descriptor, descriptor, 0);
    if (*fetched >= 0)
        return OOMPH_OK;
    if (errno == EPERM)
        return oomph_fail(
            OOMPH_ERR_DRIVER,
            "the system does not let this process use the memory that process %d "
            "shares (pidfd_getfd: not permitted): it must be allowed to trace that "
            "process (sysctl kernel.yama.ptrace_scope=0, or in a container "
            "--cap-add=SYS_PTRACE)",
            process);
    if (errno == EBADF)
        return oomph_fail(OOMPH_ERR_DRIVER,
                          "process %d, which shared the block, no longer has it",
                          process);
    return oomph_fail(OOMPH_ERR_DRIVER, "pidfd_getfd from process %d failed: %s",
                      process, strerror(errno));
}

/* ---- Importing */

// The page that a descriptor of another process names, mapped; from here on the mapping
// alone keeps it.
static oomph_status_t map_page(const oomph_pages_t *pages, int process_descriptor,
                               const pass_t *pass, size_t i, oomph_addr_t addr)
{
    const oomph_driver_t *driver = pages->driver;
    oomph_handle_t handle;
    int fetched;

    oomph_status_t status =
        fetch(process_descriptor, pass->process, pass->descriptor[i], &fetched);
    if (status != OOMPH_OK)
        return status;
    status = driver->import_page(fetched, &handle);
    close(fetched);
    if (status != OOMPH_OK)
        return status;
    status = driver->map(addr + i * pass->page_bytes, pass->page_bytes, handle);
    driver->release(handle); // if it fails, the page outlives the mapping: no harm
    return status;
}

static oomph_status_t map_pages(const oomph_pages_t *pages, const pass_t *pass,
                                oomph_addr_t addr)
{
    size_t bytes = pass->page_count * pass->page_bytes, done = 0;
    int process;

    oomph_status_t status = open_process(pass->process, &process);
    if (status != OOMPH_OK)
        return status;
    for (; done < pass->page_count && status == OOMPH_OK; done++)
        status = map_page(pages, process, pass, done, addr);
    close(process);
    if (status == OOMPH_OK)
        status = pages->driver->set_access(addr, bytes, pages->devices, false);
    else
        done--;
    if (status != OOMPH_OK && done > 0)
        pages->driver->unmap(addr, done * pass->page_bytes);
    return status;
}

static oomph_status_t check_ticket(const oomph_ticket_t *ticket)
{
    const pass_t *pass = ticket->data;

    if (ticket->bytes < sizeof *pass || memcmp(pass->magic, MAGIC, sizeof MAGIC) != 0 ||
        pass->page_count == 0 || pass->page_bytes == 0 ||
        pass->page_bytes > SIZE_MAX / pass->page_count ||
        ticket->bytes != pass_bytes(pass->page_count))
        return oomph_fail(OOMPH_ERR_INVALID,
                          "the block was not shared by this version of oomph: set "
                          "OOMPH_CONF in the environment, so that both processes use "
                          "it");
    return OOMPH_OK;
}

static oomph_status_t import_block(oomph_device_t *device, const oomph_ticket_t *ticket,
                                   oomph_addr_t *addr)
{
    const oomph_pages_t *pages = &device->pages;
    const pass_t *pass = ticket->data;

    oomph_status_t status = check_ticket(ticket);
    if (status != OOMPH_OK)
        return status;
    oomph_import_t *import = calloc(1, sizeof *import);
    if (import == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for an imported block");
    import->bytes = pass->page_count * pass->page_bytes;
    status = oomph_pages_reserve(pages, import->bytes, pass->page_bytes, &import->addr);
    if (status != OOMPH_OK)
        goto undo_import;
    status = map_pages(pages, pass, import->addr);
    if (status != OOMPH_OK)
        goto undo_address;
    import->next = device->imports;
    device->imports = import;
    *addr = import->addr;
    return OOMPH_OK;

undo_address:
    pages->driver->unreserve(import->addr, import->bytes);
undo_import:
    free(import);
    return status;
}

// Takes out what was dropped by now.
static oomph_import_t *take_dropped(oomph_device_t *device)
{
    oomph_import_t *taken = NULL;

    for (oomph_import_t **link = &device->imports; *link != NULL;) {
        oomph_import_t *import = *link;
        if (!import->dropped) {
            link = &import->next;
            continue;
        }
        *link = import->next;
        import->next = taken;
        taken = import;
    }
    return taken;
}

void oomph_imports_release(oomph_device_t *device)
{
    const oomph_driver_t *driver = device->pages.driver;
    oomph_import_t *taken = take_dropped(device);

    if (taken == NULL)
        return;
    bool drained = oomph_drain(device) == OOMPH_OK;
    while (taken != NULL) {
        oomph_import_t *import = taken;
        taken = import->next;
        if (!drained || driver->unmap(import->addr, import->bytes) != OOMPH_OK) {
            import->next = device->imports; // the next time
            device->imports = import;
            continue;
        }
        driver->unreserve(import->addr, import->bytes); // if it fails, it is lost
        free(import);
    }
}

static oomph_import_t *find_import(const oomph_device_t *device, oomph_addr_t addr)
{
    oomph_import_t *import = device->imports;

    while (import != NULL && (import->addr != addr || import->dropped))
        import = import->next;
    return import;
}

oomph_status_t oomph_import(int ordinal, const oomph_ticket_t *ticket,
                            oomph_addr_t *addr)
{
    oomph_device_t *device;

    oomph_status_t status = oomph_enter_device(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    status = import_block(device, ticket, addr);
    oomph_unlock(device);
    return status;
}

oomph_status_t oomph_unimport(int ordinal, oomph_addr_t addr)
{
    oomph_device_t *device = oomph_enter_open(ordinal);

    if (device == NULL)
        return oomph_not_ours(addr);
    oomph_import_t *import = find_import(device, addr);
    if (import == NULL) {
        oomph_unlock(device);
        return oomph_fail(OOMPH_ERR_INVALID, "0x%llx was not imported",
                          (unsigned long long)addr);
    }
    import->dropped = true;
    oomph_imports_release(device);
    oomph_unlock(device);
    return OOMPH_OK;
}

/* ---- Peers */

// To what other processes' pages are mapped.
static oomph_status_t give_access(const oomph_device_t *device)
{
    const oomph_pages_t *pages = &device->pages;

    for (const oomph_import_t *i = device->imports; i != NULL; i = i->next) {
        oomph_status_t status =
            pages->driver->set_access(i->addr, i->bytes, pages->devices, false);
        if (status != OOMPH_OK)
            return status;
    }
    return OOMPH_OK;
}

oomph_status_t oomph_enable_peer(int ordinal, int peer)
{
    oomph_device_t *device;

    oomph_status_t status = oomph_device_get(ordinal, &device);
    if (status != OOMPH_OK)
        return status;
    if (peer < 0 || peer >= oomph_process.device_count)
        return oomph_fail(OOMPH_ERR_INVALID, "there is no device %d", peer);
    oomph_enter(device);
    uint64_t before = device->pages.devices;
    device->pages.devices |= 1ull << peer;
    for (const oomph_pool_t *p = device->pools; p != NULL && status == OOMPH_OK;
         p = p->next) {
        for (oomph_segment_t *s = p->heap.segments; s != NULL && status == OOMPH_OK;
             s = s->next)
            status = oomph_segment_set_access(s, &device->pages);
        for (oomph_segment_t *s = p->arena.segments; s != NULL && status == OOMPH_OK;
             s = s->next)
            status = oomph_segment_set_access(s, &device->pages);
    }
    if (status == OOMPH_OK)
        status = give_access(device);
    if (status != OOMPH_OK)
        device->pages.devices = before;
    oomph_unlock(device);
    return status;
}
