/* cuda_pages.h - memory, in the driver table (driver.h): what pages a device may have,
 * these and the address space that they are mapped into, and page-locked blocks.
 */
#pragma once
#include "driver/cuda.h"

// Finds out what pages a device may have, once per device, and gives the size that
// suits device and host pages; 0: none.
size_t oomph_cuda_page_bytes(int device, CUdevice handle);

// Members of the driver table, see driver.h.
oomph_status_t oomph_cuda_reserve(size_t bytes, size_t alignment, oomph_addr_t *addr);
oomph_status_t oomph_cuda_unreserve(oomph_addr_t addr, size_t bytes);
oomph_status_t oomph_cuda_create(int device, oomph_tier_t tier, oomph_host_kind_t kind,
                                 size_t bytes, oomph_handle_t *handle);
oomph_status_t oomph_cuda_release(oomph_handle_t handle);
oomph_status_t oomph_cuda_map(oomph_addr_t addr, size_t bytes, oomph_handle_t handle);
oomph_status_t oomph_cuda_unmap(oomph_addr_t addr, size_t bytes);
oomph_status_t oomph_cuda_set_access(oomph_addr_t addr, size_t bytes, uint64_t devices,
                                     bool cpu);
oomph_status_t oomph_cuda_export_page(int device, oomph_handle_t handle,
                                      int *descriptor);
oomph_status_t oomph_cuda_import_page(int descriptor, oomph_handle_t *handle);
oomph_status_t oomph_cuda_pinned_alloc(int device, size_t bytes, oomph_addr_t *addr);
oomph_status_t oomph_cuda_pinned_free(int device, oomph_addr_t addr);
