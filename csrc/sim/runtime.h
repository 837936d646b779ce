/* runtime.h - what the simulated runtime, mathematics and management libraries ask of
 * the simulated driver beyond <cuda.h>. Private to the simulated libraries.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

struct CUstream_st;

// What an address is to the program. `device` is where it lies or was allocated.
typedef enum oomph_sim_pointer {
    OOMPH_SIM_POINTER_UNKNOWN,
    OOMPH_SIM_POINTER_HOST,   // pinned, or a mapped host-located page
    OOMPH_SIM_POINTER_DEVICE, // a mapped device page
    OOMPH_SIM_POINTER_MANAGED,
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

// ---- memory, for a computation of this process. Called by what it consists of alone
// (oomph_sim_compute()), where the driver's lock is held; `run` of one that makes calls
// does not hold it.

// A part of some memory, in the file that holds the bytes of the process's devices.
typedef struct oomph_sim_piece {
    uint64_t offset, bytes;
} oomph_sim_piece_t;

// Where the bytes of memory lie, in their order. Gives the count of pieces, at most
// `max_count`; 0: not all of it lies in that file, or in more pieces.
size_t oomph_sim_pieces(uint64_t addr, uint64_t bytes, oomph_sim_piece_t *pieces,
                        size_t max_count);

// Reports a misuse by the program, of which sim.h speaks.
void oomph_sim_report(const char *text);

// ---- of the card; by anybody

// Whether memory is real, and the descriptor of the file of its bytes; -1: there is
// none.
int oomph_sim_has_bytes(void);
int oomph_sim_bytes_file(void);

// Bytes a second between devices, in one direction (fabric=).
double oomph_sim_fabric_bytes_per_s(void);
// Whether that is NVLink, and the major compute capability.
int oomph_sim_has_nvlink(void);
int oomph_sim_cc_major(void);

// ---- lines of the program

// Has `function` say which line of the program this thread executes, in at most `bytes`
// with the 0 at the end; NULL takes that back.
void oomph_sim_know_lines(void (*function)(char *text, size_t bytes));
// That line; "": unknown.
void oomph_sim_line(char *text, size_t bytes);

// The same of the thread in which the program began, called by any other: whether it is
// in PyTorch at the moment, and how many ranks PyTorch's world has; 0: unknown. Takes
// Python's lock: the caller has no lock of its own.
typedef int (*oomph_sim_place_t)(char *text, size_t bytes, int *world_size);
void oomph_sim_know_place(oomph_sim_place_t function);
int oomph_sim_place(char *text, size_t bytes, int *world_size);

// Whether the device can do nothing more, as long as the program and other processes do
// nothing.
int oomph_sim_is_at_rest(void);

// Records that `function` was called and is not supported.
void oomph_sim_note_unsupported(const char *function);

// Whether a library's function that would launch kernels must fail: with values only
// PyTorch's operators compute, so it would silently do nothing. Records it if so.
int oomph_sim_refuses(const char *function);

// Names this thread's last call that was not supported, and says why; "" if that is
// unknown.
const char *oomph_sim_refusal(void);

#pragma GCC visibility pop
