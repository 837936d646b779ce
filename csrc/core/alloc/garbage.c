/* garbage.c - the rung of the ladder on which the program's garbage is collected.
 *
 * A block that nothing can reach any more is in use all the same as long as only the
 * embedder's collector can tell: tensors in reference cycles. It is asked before a
 * block is born on host, and before an error. That takes long; where it was in vain,
 * the next time is put off, but for an error.
 */
#include "core/alloc/garbage.h"
#include "core/alloc/free.h"

enum {
    TIMES_MAX = 8, // that one request asks, as others may take what was freed
    PAUSE = 50,    // until it is asked again, in times of what it took
};

// How many blocks were taken and given back.
static int64_t traffic(const oomph_device_t *device)
{
    const oomph_counter_t *counter = &device->counters.allocation;

    return 2 * oomph_counter_allocated(counter) - oomph_counter_current(counter);
}

static bool is_in_vain(const oomph_claim_t *claim, bool last)
{
    if (claim->collections == TIMES_MAX)
        return true;
    if (claim->collections > 0)
        return !claim->collected && !(last && traffic(claim->device) != claim->traffic);
    return !last && oomph_now_ns() < atomic_load(&oomph_process.garbage_again_ns);
}

oomph_gain_t oomph_rung_garbage(oomph_claim_t *claim, bool last)
{
    oomph_device_t *device = claim->device;
    bool (*collect)(bool, size_t *) = oomph_process.hooks.collect_garbage;
    int64_t before = traffic(device);
    size_t bytes = 0;

    if (collect == NULL || is_in_vain(claim, last))
        return OOMPH_NOTHING;
    claim->uncollected = "; garbage is not collected while a stream captures";
    if (oomph_streams_capture(&device->streams))
        return OOMPH_NOTHING; // destructors may do what invalidates the capture
    device->stats.rungs[OOMPH_RUNG_GARBAGE]++;
    oomph_unlock(device);
    int64_t start = oomph_now_ns();
    bool done = collect(last, &bytes);
    int64_t end = oomph_now_ns();
    oomph_enter(device);
    atomic_store(&oomph_process.garbage_again_ns, end + (end - start) * PAUSE);
    claim->uncollected = done ? "" : "; garbage could not be collected at that moment";
    claim->collections += done;
    claim->collected = bytes > 0;
    claim->traffic = before; // what others took since may have come too late for it
    device->stats.garbage_bytes += (int64_t)bytes;
    // Others may have given back meanwhile what they collected.
    return bytes > 0 || traffic(device) != before ? OOMPH_GAINED : OOMPH_NOTHING;
}

void oomph_garbage_helped(const oomph_claim_t *claim)
{
    if (claim->collected && !claim->born_on_host)
        atomic_store(&oomph_process.garbage_again_ns, 0);
}
