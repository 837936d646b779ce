/* driver.h - everything the core asks of CUDA, as one table.
 *
 * The core never includes <cuda.h>. driver.c fills this table with what cuda.c,
 * cuda_pages.c and cuda_work.c make of libcuda, NVIDIA's or the simulated one; tests
 * wrap it to make any call fail.
 *
 * Of every call: addresses and sizes are multiples of the page size, sizes are greater
 * than 0, and a call that does not return OOMPH_OK has changed nothing and has set the
 * error text. Errors: OOMPH_ERR_DRIVER, or OOMPH_ERR_NO_MEMORY where CUDA answers
 * CUDA_ERROR_OUT_OF_MEMORY; any others are named below. Calls are thread-safe, leave
 * the calling thread's current context and capture mode as they were, and are allowed
 * while a stream captures, except where said otherwise.
 */
#pragma once
#include "core/base/util.h"

typedef uint64_t oomph_handle_t; // one physical page; 0 is none

typedef struct oomph_device_info {
    size_t total_bytes;
    size_t page_bytes; // the granularity that suits device and host pages
} oomph_device_info_t;

typedef struct oomph_copy {
    oomph_addr_t to, from;
    size_t bytes;
} oomph_copy_t;

typedef struct oomph_driver {
    // Looks for a driver that is new enough, and initialises nothing. Errors:
    // OOMPH_ERR_DRIVER.
    oomph_status_t (*find)(void);
    // Whether it has event_record_all(); once it has been found.
    bool (*records_all)(void);
    // Finds the driver and initialises it. Errors: OOMPH_ERR_DRIVER,
    // OOMPH_ERR_NO_MEMORY.
    oomph_status_t (*start)(int *device_count);
    // Retains the primary context, once per device. Errors: OOMPH_ERR_DRIVER (also
    // without virtual memory management, or a page size), OOMPH_ERR_NO_MEMORY.
    oomph_status_t (*open)(int device, oomph_device_info_t *info);
    // Bytes that the device has free, and has at all. Errors: OOMPH_ERR_DRIVER.
    oomph_status_t (*memory_info)(int device, size_t *free_bytes, size_t *total_bytes);
    // Whether the device has no memory of its own: it uses that of the host. Errors:
    // OOMPH_ERR_DRIVER.
    oomph_status_t (*shares_memory)(int device, bool *shares);

    // Address space. Errors: OOMPH_ERR_NO_MEMORY (none left), OOMPH_ERR_DRIVER.
    oomph_status_t (*reserve)(size_t bytes, size_t alignment, oomph_addr_t *addr);
    oomph_status_t (*unreserve)(oomph_addr_t addr, size_t bytes);

    // Physical pages: on the device, or of a kind of host memory (NUMA or PLAIN).
    // Errors: OOMPH_ERR_NO_MEMORY (none left), OOMPH_ERR_DRIVER (also for a NUMA node
    // that is not there).
    oomph_status_t (*create)(int device, oomph_tier_t tier, oomph_host_kind_t kind,
                             size_t bytes, oomph_handle_t *handle);
    oomph_status_t (*release)(oomph_handle_t handle);

    // A mapped page is accessible once access is set, for a range of whole pages.
    // Unmapping does not wait for running work.
    oomph_status_t (*map)(oomph_addr_t addr, size_t bytes, oomph_handle_t handle);
    oomph_status_t (*unmap)(oomph_addr_t addr, size_t bytes);
    // Readable and writable by the devices in the mask and, if `cpu` is set, which host
    // pages alone allow and which takes a mapping of the process for each, by the CPU.
    // What had access before keeps it.
    oomph_status_t (*set_access)(oomph_addr_t addr, size_t bytes, uint64_t devices,
                                 bool cpu);

    // A file descriptor, the caller's to close, that names a device page in any
    // process, and the page that one names, to be released like one of ours. Errors:
    // OOMPH_ERR_DRIVER (also where pages of the device have no such names).
    oomph_status_t (*export_page)(int device, oomph_handle_t handle, int *descriptor);
    oomph_status_t (*import_page)(int descriptor, oomph_handle_t *handle);

    // Page-locked host memory that every device may use at the address given, of any
    // size.
    oomph_status_t (*pinned_alloc)(int device, size_t bytes, oomph_addr_t *addr);
    oomph_status_t (*pinned_free)(int device, oomph_addr_t addr);

    // What names a stream for ever: handles are reused, 0 and 1 are one stream, 2 is
    // another in each thread. Fails if the stream is gone.
    oomph_status_t (*stream_id)(int device, oomph_stream_t stream, uint64_t *id);
    oomph_status_t (*stream_captures)(int device, oomph_stream_t stream,
                                      bool *captures);
    // A stream that does not wait for the default stream, nor that for it.
    oomph_status_t (*stream_create)(int device, oomph_stream_t *stream);

    // Events. Recording on a stream that captures is not allowed.
    oomph_status_t (*event_create)(int device, oomph_event_t *event);
    oomph_status_t (*event_destroy)(int device, oomph_event_t event);
    oomph_status_t (*event_record)(int device, oomph_event_t event,
                                   oomph_stream_t stream);
    // Records all work that any stream of the device was given so far. Where a stream
    // captures that fails, and ends the capture. Errors also: OOMPH_ERR_STATE if the
    // driver has no such call (before CUDA 12.5).
    oomph_status_t (*event_record_all)(int device, oomph_event_t event);
    // Has the stream wait for what the event stands for now.
    oomph_status_t (*stream_wait)(int device, oomph_stream_t stream,
                                  oomph_event_t event);
    oomph_status_t (*event_passed)(int device, oomph_event_t event, bool *passed);
    // These two wait for the GPU. Not allowed for a stream that captures.
    oomph_status_t (*event_wait)(int device, oomph_event_t event);
    oomph_status_t (*drain)(int device);

    // Queues a copy between ranges that the device may access.
    oomph_status_t (*copy)(int device, oomph_addr_t to, oomph_addr_t from, size_t bytes,
                           oomph_stream_t stream);
    // Queues setting all bits of a range: a NaN in every floating-point type. `bytes`
    // is a multiple of 4.
    oomph_status_t (*fill)(int device, oomph_addr_t addr, size_t bytes,
                           oomph_stream_t stream);
    // Copies between mapped ranges, one after the other, and waits for the last.
    oomph_status_t (*copy_all)(int device, const oomph_copy_t *copies, size_t count);
    // Copies between two mapped ranges `count` times, waits, and gives the time on the
    // device. OOMPH_ERR_DRIVER also when the clock stood still.
    oomph_status_t (*time_copy)(int device, oomph_addr_t to, oomph_addr_t from,
                                size_t bytes, int count, int64_t *ns);
    // Returns what the driver's own default pool caches.
    oomph_status_t (*trim)(int device);
} oomph_driver_t;

// The driver of this machine, or the one set by a test.
const oomph_driver_t *oomph_driver_cuda(void);
