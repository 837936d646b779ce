/* garbage.c - the rung of the ladder on which the program's garbage is collected.
 *
 * A block that nothing can reach any more is in use all the same as long as only the
 * embedder's collector knows: tensors in reference cycles. It is asked before a block
 * falls back to the host, and before an error. Collecting takes long: where it freed
 * nothing the next time is put off, except before an error that the program will see:
 * not one of an attempt (oomph/memory.h).
 */
#include "core/alloc/garbage.h"
#include "core/alloc/free.h"

enum {
    TIMES_MAX = 32, // that one request asks, as others may take what was freed
    PAUSE = 50,     // until it is asked again, in times of what it took
};

static _Thread_local bool attempts;

bool oomph_set_attempt(bool on)
{
    bool before = attempts;

    attempts = on;
    return before;
}

bool oomph_is_attempt(void)
{
    return attempts;
}

// How many blocks were taken and given back.
static int64_t traffic(const oomph_device_t *device)
{
    const oomph_counter_t *counter = &device->counters.allocation;

    return 2 * oomph_counter_allocated(counter) - oomph_counter_current(counter);
}

static bool is_in_vain(const oomph_request_context_t *ctx, bool last)
{
    if (ctx->collections == TIMES_MAX)
        return true;
    if (ctx->collections > 0)
        return !ctx->collected && !(last && traffic(ctx->device) != ctx->traffic);
    return !last && oomph_now_ns() < atomic_load(&oomph_process.garbage_again_ns);
}

oomph_rung_result_t oomph_rung_garbage(oomph_request_context_t *ctx, bool last)
{
    oomph_device_t *device = ctx->device;
    bool (*collect)(bool, size_t *) = oomph_process.hooks.collect_garbage;
    int64_t before = traffic(device);
    size_t bytes = 0;

    last = last && !attempts;
    if (collect == NULL || is_in_vain(ctx, last))
        return OOMPH_NEXT;
    ctx->uncollected =
        "; Python's garbage collector does not run while a CUDA graph is captured";
    if (oomph_streams_capture(&device->streams))
        return OOMPH_NEXT; // destructors may do what invalidates the capture
    device->stats.rungs[OOMPH_RUNG_GARBAGE]++;
    oomph_unlock(device);
    int64_t start = oomph_now_ns();
    bool done = collect(last, &bytes);
    int64_t end = oomph_now_ns();
    oomph_enter(device);
    atomic_store(&oomph_process.garbage_again_ns, end + (end - start) * PAUSE);
    ctx->uncollected = done ? "" : "; Python's garbage collector could not run in time";
    ctx->collections += done;
    ctx->collected = bytes > 0;
    ctx->asked_others = ctx->asked_others && bytes == 0; // they may have more idle now
    ctx->traffic = before; // what others took since may have come too late for it
    device->stats.garbage_bytes += (int64_t)bytes;
    // Others may have given back meanwhile what they collected.
    return bytes > 0 || traffic(device) != before ? OOMPH_RETRY : OOMPH_NEXT;
}

void oomph_garbage_helped(const oomph_request_context_t *ctx)
{
    if (ctx->collected && !ctx->fell_back_to_host)
        atomic_store(&oomph_process.garbage_again_ns, 0);
}
