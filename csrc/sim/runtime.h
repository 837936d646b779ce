/* runtime.h - what the simulated runtime, mathematics and management libraries ask of
 * the simulated driver beyond <cuda.h>. Private to the four libraries.
 */
#pragma once
#include <stdint.h>

#pragma GCC visibility push(default)

struct CUstream_st;

// What an address is to the program. `device` is where it lies or was allocated.
typedef enum oomph_sim_pointer {
    OOMPH_SIM_POINTER_UNKNOWN,
    OOMPH_SIM_POINTER_HOST,   // pinned, or a mapped host-located page
    OOMPH_SIM_POINTER_DEVICE, // a mapped device page
} oomph_sim_pointer_t;
oomph_sim_pointer_t oomph_sim_pointer_kind(uint64_t addr, int *device);

// The device of the context that is current to this thread; -1 if none is.
int oomph_sim_current_device(void);

// The devices of the machine, whether the program sees them or not (visible_devices.h).
int oomph_sim_device_total(void);
// The device in the machine with a bus id "domain:bus:slot.function", in hexadecimal;
// -1 if it is no such text.
int oomph_sim_device_of_bus_id(const char *id);
void oomph_sim_uuid(int device, unsigned char bytes[16]);

// Launches the kernel `name` into nothing on `stream`. Returns a CUresult.
int oomph_sim_launch_kernel(const char *name, uint64_t blocks, unsigned block_threads,
                            struct CUstream_st *stream);

// Records that `function` was called and is not supported.
void oomph_sim_note_unsupported(const char *function);

// Whether a library's function that would launch kernels must fail: with values only
// PyTorch's operators compute, so it would silently do nothing. Records it if so.
int oomph_sim_refuses(const char *function);

// Names this thread's last call that was not supported, and says why; "" if that is
// unknown.
const char *oomph_sim_refusal(void);

#pragma GCC visibility pop
