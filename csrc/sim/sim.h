/* sim.h - the control interface of the simulated GPU, exported by its libcuda.so.1.
 *
 * The library is a CUDA driver: a program links or loads it as libcuda.so.1 and uses
 * <cuda.h>. What is declared here is what no real driver has: the card to simulate,
 * a clock that tests move by hand, calls that fail on demand, and what was counted.
 *
 * The card is described by a string, for example "12GiB,devices=2,link=25GB/s":
 *
 *   12GiB            memory of each device, or the name of a GPU; comes first
 *   gpu=rtx4090      a well-known card: its name, compute capability, link, and how
 *                    fast it is, so that kernels of PyTorch take the time that its
 *                    arithmetic, its memory or its link needs for them (engine.h); the
 *                    keys below overrule it, wherever they stand. Names: gpu.c
 *   devices=1        number of devices, 1 to 16
 *   host=128GiB      host memory for host-located pages and pinned buffers;
 *                    unlimited when not given
 *   link=25GB/s      speed of copies over the link, each way: to, from and between
 *                    devices
 *   fabric=450GB/s   speed between devices for NCCL, each way, over NVLink; without it
 *                    NCCL uses the link
 *   cc=9.0           compute capability
 *   context=512MiB   what a device's primary context takes while it is active; less or
 *                    more with gpu= (see libcuda/session/gpu.c)
 *   name=TEXT        the device's name
 *   driver=13000     the driver version reported, 11000 to 13000
 *   memory=none      "none": bookkeeping alone, copies to the host give zeros, or what
 *                    the host wrote there if no kernel has changed it since: with gpu=
 *                    one that wrote to it, else any;
 *                    "real": bytes are kept, addresses are really mapped;
 *                    "values": so, and PyTorch's operators are to compute,
 *                    dry (oomph_sim_dry()); other kernels fail by name
 *   matches=0.5      with memory=none, how many elements count as those that meet what
 *                    nobody knows, as of masks: this share, rounded up
 *   tick=1us         how far each driver call moves the clock; 0 stops it
 *   kernels=ignore   "ignore": they take 5 us and do nothing; "error": launches fail
 *   host-pages=numa  what cuMemCreate makes on the host:
 *                    "numa" (HOST_NUMA and HOST), "host" (HOST only) or "none"
 *   rdma=yes         whether network cards may use device memory (GPUDirect RDMA);
 *                    "refused": it can be made for them but not used, as on WSL 2
 *   share=yes        whether file descriptors can name memory of cuMemCreate;
 *                    "refused": they cannot, though the device says so
 *   vmm=yes          whether there is virtual memory management: cuMemCreate and such
 *   integrated=no    whether all devices use one memory, that of the host: host pages
 *                    and pinned buffers take of it, too
 *   sms=132          multiprocessors
 *
 * and only with gpu=:
 *
 *   bandwidth=1008GB/s  of device memory, at its best
 *   fp32=82.6TFLOPS  arithmetic at its best; so tf32, fp16, bf16 and fp8, of
 *                    multiplications of matrices
 *   l2=72MiB         the cache between device memory and multiprocessors
 *   flops-share=0.7  what kernels reach of the arithmetic
 *   bandwidth-share=0.9  and of the bandwidth
 *   l2-share=0.6     and of the cache
 *   sm-bytes=24      that a multiprocessor loads or stores in a cycle at most
 *   sm-accesses=3.4  loads and stores of single numbers, likewise
 *   launch=3.8us     what each kernel takes on top
 *   dispatch=14us    what the host takes for each operator of PyTorch
 *
 * Sizes are bytes or carry KiB, MiB, GiB, TiB (1024) or KB, MB, GB, TB (1000), in any
 * case. The card is read at first use: what oomph_sim_configure() was given, else the
 * environment variable OOMPH_SIMULATE, else 96GiB with memory=real and tick=0, which
 * suits tests in C. OOMPH_SIM_LOG=PATH (or -) in the environment traces calls, as
 * oomph_sim_log() does.
 *
 * Each process simulates cards of its own. It can share memory and events with other
 * processes all the same: memory counts on the card of the process that made it, and a
 * wait for a shared event ends when, by both clocks, the work before it is done
 * (mark.h).
 *
 * Time is virtual. It moves by `tick` at each driver call, to the end of the work
 * waited for in a blocking call, and by oomph_sim_advance(). All functions are
 * thread-safe.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; // a CUstream is a pointer to it

// Describes the card. Call it before anything else uses the driver. Returns 0, or 1
// when the description is wrong or the driver is in use; oomph_sim_error() then says
// why.
int oomph_sim_configure(const char *card);

// Whether the system lets this process have the file in which the memory of the card
// that was described lies, if it is real: 0, else the errno.
int oomph_sim_try_memory(void);

// Has `function` called once, before a device is first used: before the first call but
// those that count devices, by the thread that makes it. There it may fork, and
// describe the card anew: of the card nothing is known yet but how many devices it has,
// and the driver's version. NULL takes that back.
void oomph_sim_before_use(void (*function)(void));

// A device is about to be used, though the driver does not see it yet.
void oomph_sim_begin_use(void);

typedef struct oomph_sim_card {
    uint64_t memory_bytes; // of each device
    uint64_t host_bytes;   // UINT64_MAX: no limit
    int device_count;
    int has_values; // memory=values
    int has_rates;  // gpu=
} oomph_sim_card_t;

// Parses the description of a card without using it: says what it means to a program,
// or whether it is right. Returns as oomph_sim_configure().
int oomph_sim_describe(const char *card, oomph_sim_card_t *found);

// Why oomph_sim_configure(), oomph_sim_describe() or cuInit() failed; "" if none did.
// Valid until the next failure.
const char *oomph_sim_error(void);

// Forgets everything: frees what was leaked, clears counters, failures and the clock,
// and lets the card be configured anew. No other thread may be inside the driver, and
// the simulated runtime (libcudart) must not be in use. Handles from before are
// invalid.
void oomph_sim_reset(void);

// Puts the driver in the state of process exit: every call returns
// CUDA_ERROR_DEINITIALIZED, until oomph_sim_reset().
void oomph_sim_deinit(void);

// ---- failures

// The `nth` call of `function` from now (1 is the next; 0 is every call) returns
// `error`, a CUresult, and does nothing else. Names carry no version: "cuMemAlloc".
// Returns 0, or 1 if too many failures (64) are set.
int oomph_sim_fail(const char *function, uint64_t nth, int error);

// The `nth` driver call of any name from now returns `error`. Calls that cannot
// sensibly fail (error names, entry points, versions, capture queries) do not count.
void oomph_sim_fail_nth_call(uint64_t nth, int error);

// Takes back all failures that have not happened yet.
void oomph_sim_clear_failures(void);

// Delays each call of `function` from now on by `us` microseconds of real time, while
// other threads go on; 0 ends that. One function at a time.
void oomph_sim_slow(const char *function, uint64_t us);

// How often `function` was called so far, failures included; NULL: all fallible calls.
uint64_t oomph_sim_call_count(const char *function);

// ---- time

// The virtual time, in nanoseconds since the start.
uint64_t oomph_sim_now_ns(void);

// Moves the clock; work that ends by then is done on return, its callbacks included.
void oomph_sim_advance(uint64_t ns);

// A held stream makes no progress, not even with the operation that it is in, until it
// is released; other streams go on. A blocking wait for a held stream releases it and
// counts it in `held_waits`, so that a test with one thread does not hang. The stream
// must exist; 0 and CU_STREAM_LEGACY are the current device's default stream.
void oomph_sim_hold(struct CUstream_st *stream);
void oomph_sim_release(struct CUstream_st *stream);

// A stand-in for a kernel: when it completes, `cost_ns` after its start, it touches the
// `bytes` at `addr` as the stream's device would: a fault if they are not mapped and
// accessible. With `write`, it fills them with 0xAB where memory is real. Returns a
// CUresult.
int oomph_sim_launch(struct CUstream_st *stream, uint64_t addr, size_t bytes, int write,
                     uint64_t cost_ns);

// A stand-in for a kernel that waits until `ns` after its start: its stream is busy,
// while the device has room for the kernels of others. Returns a CUresult.
int oomph_sim_sleep(struct CUstream_st *stream, uint64_t ns);

// ---- what kernels take

// What numbers a multiplication of matrices takes.
typedef enum oomph_sim_precision {
    OOMPH_SIM_FP32,
    OOMPH_SIM_TF32,
    OOMPH_SIM_FP16,
    OOMPH_SIM_BF16,
    OOMPH_SIM_FP8,
    OOMPH_SIM_PRECISIONS,
} oomph_sim_precision_t;

// Memory that an operator works on.
typedef struct oomph_sim_use {
    uint64_t addr, bytes;               // where it lies
    uint64_t read_bytes, written_bytes; // how much of it is moved; evenly spread
    // Read once more if the cache has lost it: by a later kernel, which has to find all
    // of it, and by the threads that have just read it, which find what is in work.
    uint64_t again_bytes, reread_bytes;
} oomph_sim_use_t;

// The kernels of an operator.
typedef struct oomph_sim_launched {
    unsigned kernel_count;
    uint64_t threads; // of the kernel that has most
    unsigned block_threads;
    unsigned library_call_count; // of mathematics libraries, in place of kernels
} oomph_sim_launched_t;

typedef struct oomph_sim_cost {
    const char *name; // static text
    double flops;
    oomph_sim_precision_t precision; // of these
    double accesses; // loads and stores of single numbers, where vectors do not fit
    oomph_sim_launched_t launched;
    const oomph_sim_use_t *uses; // copied
    size_t use_count;
    int is_followed; // by a computation, which says what is known of what they wrote
} oomph_sim_cost_t;

// Adds `change` to a counter of this thread. While that is above 0, the kernels that
// the thread launches are parts of an operator: each takes its launch time alone, since
// oomph_sim_cost() accounts for all of them. Returns what the operator until now has
// launched; the one from now on has launched `before`. When the outermost one ends, the
// host has taken its time for it.
oomph_sim_launched_t oomph_sim_operator(int change, oomph_sim_launched_t before);

// Gives the stream the work of an operator. With the rates of a card (gpu=) it takes as
// long as the slowest of its arithmetic, its accesses, its device memory and its share
// of the link: what lies on the host when it starts is moved over the link. Returns a
// CUresult.
int oomph_sim_cost(const oomph_sim_cost_t *what, struct CUstream_st *stream);

// What a device has done since the start. Work counts in full when it starts.
typedef struct oomph_sim_usage {
    uint64_t now_ns;          // the virtual time
    uint64_t compute_busy_ns; // of kernels, with their waits for the link
    uint64_t h2d_busy_ns;     // of the link, to the device
    uint64_t d2h_busy_ns;     // and from it
    uint64_t h2d_bytes;       // by copies, and by kernels that work on host memory
    uint64_t d2h_bytes;
    uint64_t operator_count; // as oomph_sim_cost() reported them
    double flops;
    double device_bytes; // of device memory, read or written
} oomph_sim_usage_t;

// Fills `usage`. Returns 0, or 1 if there is no such device.
int oomph_sim_usage(int device, oomph_sim_usage_t *usage);

// ---- values

// With memory=none: from now on, copies to the host that this thread asks for read
// `value` and then zeros; a copy of one byte reads whether `value` is not 0. So a
// program that counts on the device gets a count. At first the value is 0. Returns the
// value until now.
uint64_t oomph_sim_fake_readback(uint64_t value);

// How many of so many elements meet a condition that nobody knows: `matches` of them,
// rounded up.
uint64_t oomph_sim_matches(uint64_t elements);

// How often oomph_sim_matches() was asked.
uint64_t oomph_sim_guess_count(void);

// With memory=none, for computations alone: what is known to lie at `addr`, as the host
// or a computation wrote it; zeros where that is not known. Returns how many bytes are.
uint64_t oomph_sim_peek(uint64_t addr, void *out, uint64_t bytes);

// A tensor: items of so many bytes, along dimensions.
typedef struct oomph_sim_view {
    uint64_t addr, item_bytes;
    size_t dimensions;              // at least 1
    const int64_t *sizes, *strides; // none is negative; strides in items
} oomph_sim_view_t;

// Copies the items of a tensor one after another, those of the last dimension first.
// Gives whether all are known. The first is for computations alone.
int oomph_sim_peek_view(const oomph_sim_view_t *view, void *out);
int oomph_sim_look_view(const oomph_sim_view_t *view, void *out);
// What lies there from now on, if that is at most 64 MiB; NULL: it is not known.
void oomph_sim_poke(uint64_t addr, const void *source, uint64_t bytes);
// The same, of zeros.
void oomph_sim_poke_zeros(uint64_t addr, uint64_t bytes);

typedef struct oomph_sim_range {
    uint64_t addr, bytes;
    int writes;
} oomph_sim_range_t;

// What a computation needs of other processes, or of other streams of this one: it
// begins when all have come to it. The functions are called with the argument of the
// computation, under the driver's lock: they return at once and call no driver.
typedef struct oomph_sim_meeting {
    // The stream has come to it, at a time of the clock.
    void (*come)(void *argument, uint64_t now_ns);
    // Whether all have come; if so, when the last one did.
    int (*is_met)(void *argument, uint64_t *met_ns);
    // A thread of this process waits for it: to be sent to the others.
    void (*call)(void *argument);
    // Whether others wait for this process to come to it.
    int (*is_called)(void *argument);
} oomph_sim_meeting_t;

// A computation on the host that stands for a kernel. Needs memory=real, unless it uses
// no memory but by oomph_sim_peek() and oomph_sim_poke().
typedef struct oomph_sim_compute {
    const char *name;                // static text, for what is reported
    const oomph_sim_range_t *ranges; // all memory of devices that it uses; copied
    size_t range_count;
    // Called with `argument` when the stream comes to it, by any thread, while no
    // driver call can be made (but see makes_calls). Not 0: it failed, which breaks the
    // context as an assertion of a kernel does. A graph that captured it calls it at
    // each replay.
    int (*run)(void *argument);
    // Called once, when it will never be run again.
    void (*release)(void *argument);
    void *argument;
    int makes_calls;   // it is run by a thread of its own and may call the driver
    int is_waited_for; // the launch of a graph with it returns when the graph is done
    const oomph_sim_meeting_t *meeting; // NULL: needs nobody; lives as long as it
    uint64_t cost_ns;                   // of one with a meeting; the device has room
} oomph_sim_compute_t;

// Gives it to the stream. Reported as misuse: work on another stream that uses the same
// memory and that this does not wait for; when it is run, memory that is not mapped.
// `release` is called also on failure. Returns a CUresult.
int oomph_sim_compute(const oomph_sim_compute_t *what, struct CUstream_st *stream);

// Adds `change` to a counter of this thread. While that is above 0, copies and fills of
// bytes that the thread asks for take their time but move nothing, and the host reads
// zeros: a kernel's host code can run beside the computation that stands for it. Fills
// with wider values, which PyTorch's host code never asks for, are made. Returns how
// many copies to the host this thread has asked for in that state.
uint64_t oomph_sim_dry(int change);

// ---- what was counted

typedef struct oomph_sim_stats {
    // of one device
    uint64_t capacity_bytes;
    uint64_t used_bytes; // device memory in use, without the context's
    uint64_t peak_used_bytes;
    uint64_t context_bytes; // taken by the primary context; 0: it is not active
    // of all devices together
    uint64_t host_bytes; // host-located pages
    uint64_t peak_host_bytes;
    uint64_t pinned_bytes; // cuMemHostAlloc and cuMemHostRegister
    uint64_t peak_pinned_bytes;
    uint64_t handle_count; // physical allocations, those of cuMemAlloc included
    uint64_t mapping_count;
    uint64_t reservation_count;
    uint64_t pending_count;  // operations that have not completed
    uint64_t executed_count; // operations that have
    uint64_t h2d_bytes;      // copied so far, by where the memory lies
    uint64_t d2h_bytes;
    uint64_t d2d_bytes;
    uint64_t misuse_count;
    uint64_t held_waits; // blocking waits that had to release a held stream
} oomph_sim_stats_t;

// Fills `stats`. Returns 0, or 1 if there is no such device.
int oomph_sim_stats(int device, oomph_sim_stats_t *stats);

// A misuse is a call that no correct program makes: it names the call and what was
// wrong. `ago` 0 is the latest, the last 16 are kept; NULL if there is none. The text
// may change with the next misuse.
const char *oomph_sim_misuse(size_t ago);

// The names of calls that the simulation does not support, for example a stub of the
// runtime, as they were made: `ago` 0 is the latest, the last 16 are kept; NULL if
// none.
const char *oomph_sim_unsupported(size_t ago);

// How many such calls there were so far.
uint64_t oomph_sim_unsupported_count(void);

// Traces every call that can fail (see oomph_sim_fail_nth_call) to the file `path`; "-"
// is standard error, NULL stops. Returns 0, or 1 if the file cannot be opened.
int oomph_sim_log(const char *path);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
