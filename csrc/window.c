/* window.c - where streams may be held while pages are exchanged.
 *
 * Nobody can list the streams of a process, so a window rests on what is known:
 *
 * - All streams are of this device, in one context. Another device could use its
 *   memory, on streams of its own; under MPS, other processes share what runs it.
 * - No kernel waits for another process: that one may wait for us, in turn.
 * - Nobody keeps the addresses of pages in tables of their own, as network cards do;
 *   who watches what is mapped may be such a one.
 */
#include "device.h"

oomph_status_t oomph_know_stream(int ordinal, oomph_stream_t stream, bool lives)
{
    oomph_device_t *device;
    oomph_stream_state_t *known;
    oomph_status_t status = oomph_device_get(ordinal, &device);
    if (status != OOMPH_OK)
        return status;

    oomph_lock(device);
    status = oomph_stream_get(&device->streams, ordinal, stream, lives, &known);
    oomph_unlock(device);
    return status;
}

void oomph_note_communicator(bool there)
{
    atomic_store(&oomph_process.communicates, there);
}

static bool is_alone(const oomph_device_t *device)
{
    for (int i = 0; i < OOMPH_DEVICE_MAX; i++)
        if (i != device->ordinal && oomph_device_peek(i) != NULL)
            return false;
    return device->pages.devices == 1ull << device->ordinal;
}

oomph_status_t oomph_window_allowed(oomph_device_t *device)
{
    const char *why = NULL;

    if (device->shared)
        why = "other processes share the device, by MPS";
    else if (!is_alone(device))
        why = "the program uses several devices";
    else if (atomic_load(&oomph_process.communicates))
        why = "kernels of the program may wait for other processes";
    else if (atomic_load(&oomph_process.watched))
        why = "somebody watches what is mapped: a communicator, or a memory history";
    if (why != NULL)
        return oomph_fail(OOMPH_ERR_STATE, "no window: %s", why);
    return oomph_gate_prepare(&device->gate);
}
