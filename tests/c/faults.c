#include "faults.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned calls, failing_call;
static bool failing_on; // after that call, too
static oomph_status_t failing_status;
static const char *failing_member, *last_failed;
static const oomph_driver_t *real;

static void fail_calls(unsigned nth, bool on, oomph_status_t status)
{
    pthread_mutex_lock(&lock);
    failing_call = nth == 0 ? 0 : calls + nth;
    failing_on = on;
    failing_status = status;
    pthread_mutex_unlock(&lock);
}

void fail_call(unsigned nth, oomph_status_t status)
{
    fail_calls(nth, false, status);
}

void fail_from_call(unsigned nth, oomph_status_t status)
{
    fail_calls(nth, true, status);
}

void fail_always(const char *member, oomph_status_t status)
{
    pthread_mutex_lock(&lock);
    failing_member = member;
    failing_status = status;
    pthread_mutex_unlock(&lock);
}

const char *failed_member(void)
{
    return last_failed;
}

unsigned call_count(void)
{
    pthread_mutex_lock(&lock);
    unsigned count = calls;
    pthread_mutex_unlock(&lock);
    return count;
}

// Whether this call fails.
static bool fails(const char *member, oomph_status_t *status)
{
    pthread_mutex_lock(&lock);
    calls++;
    bool now = calls == failing_call ||
               (failing_on && failing_call != 0 && calls > failing_call) ||
               (failing_member != NULL && strcmp(failing_member, member) == 0);
    *status = failing_status;
    if (now)
        last_failed = member;
    pthread_mutex_unlock(&lock);
    if (now)
        oomph_fail(*status, "%s was made to fail", member);
    return now;
}

#define WRAP(member, parameters, arguments)                                            \
    static oomph_status_t faulty_##member parameters                                   \
    {                                                                                  \
        oomph_status_t status;                                                         \
        return fails(#member, &status) ? status : real->member arguments;              \
    }

WRAP(find, (void), ())
WRAP(start, (int *count), (count))
WRAP(open, (int device, oomph_device_info_t *info), (device, info))
WRAP(memory_info, (int device, size_t *free_bytes, size_t *total_bytes),
     (device, free_bytes, total_bytes))
WRAP(shares_memory, (int device, bool *shares), (device, shares))
WRAP(reserve, (size_t bytes, size_t alignment, oomph_addr_t *addr),
     (bytes, alignment, addr))
WRAP(unreserve, (oomph_addr_t addr, size_t bytes), (addr, bytes))
WRAP(create,
     (int device, oomph_tier_t tier, oomph_host_kind_t kind, size_t bytes,
      oomph_handle_t *handle),
     (device, tier, kind, bytes, handle))
WRAP(release, (oomph_handle_t handle), (handle))
WRAP(map, (oomph_addr_t addr, size_t bytes, oomph_handle_t handle),
     (addr, bytes, handle))
WRAP(unmap, (oomph_addr_t addr, size_t bytes), (addr, bytes))
WRAP(set_access, (oomph_addr_t addr, size_t bytes, uint64_t devices, bool cpu),
     (addr, bytes, devices, cpu))
WRAP(export_page, (int device, oomph_handle_t handle, int *descriptor),
     (device, handle, descriptor))
WRAP(import_page, (int descriptor, oomph_handle_t *handle), (descriptor, handle))
WRAP(pinned_alloc, (int device, size_t bytes, oomph_addr_t *addr),
     (device, bytes, addr))
WRAP(pinned_free, (int device, oomph_addr_t addr), (device, addr))
WRAP(stream_id, (int device, oomph_stream_t stream, uint64_t *id), (device, stream, id))
WRAP(stream_captures, (int device, oomph_stream_t stream, bool *captures),
     (device, stream, captures))
WRAP(stream_create, (int device, oomph_stream_t *stream), (device, stream))
WRAP(event_create, (int device, oomph_event_t *event), (device, event))
WRAP(event_destroy, (int device, oomph_event_t event), (device, event))
WRAP(event_record, (int device, oomph_event_t event, oomph_stream_t stream),
     (device, event, stream))
WRAP(event_record_all, (int device, oomph_event_t event), (device, event))
WRAP(stream_wait, (int device, oomph_stream_t stream, oomph_event_t event),
     (device, stream, event))
WRAP(event_passed, (int device, oomph_event_t event, bool *passed),
     (device, event, passed))
WRAP(event_wait, (int device, oomph_event_t event), (device, event))
WRAP(drain, (int device), (device))
WRAP(copy,
     (int device, oomph_addr_t to, oomph_addr_t from, size_t bytes,
      oomph_stream_t stream),
     (device, to, from, bytes, stream))
WRAP(fill, (int device, oomph_addr_t addr, size_t bytes, oomph_stream_t stream),
     (device, addr, bytes, stream))
WRAP(copy_all, (int device, const oomph_copy_t *copies, size_t count),
     (device, copies, count))
WRAP(time_copy,
     (int device, oomph_addr_t to, oomph_addr_t from, size_t bytes, int count,
      int64_t *ns),
     (device, to, from, bytes, count, ns))
WRAP(trim, (int device), (device))

static bool records_all(void)
{
    return real->records_all();
}

const oomph_driver_t *faulty_driver(void)
{
    static const oomph_driver_t driver = {
        .find = faulty_find,
        .records_all = records_all,
        .start = faulty_start,
        .open = faulty_open,
        .memory_info = faulty_memory_info,
        .shares_memory = faulty_shares_memory,
        .reserve = faulty_reserve,
        .unreserve = faulty_unreserve,
        .create = faulty_create,
        .release = faulty_release,
        .map = faulty_map,
        .unmap = faulty_unmap,
        .set_access = faulty_set_access,
        .export_page = faulty_export_page,
        .import_page = faulty_import_page,
        .pinned_alloc = faulty_pinned_alloc,
        .pinned_free = faulty_pinned_free,
        .stream_id = faulty_stream_id,
        .stream_captures = faulty_stream_captures,
        .stream_create = faulty_stream_create,
        .event_create = faulty_event_create,
        .event_destroy = faulty_event_destroy,
        .event_record = faulty_event_record,
        .event_record_all = faulty_event_record_all,
        .stream_wait = faulty_stream_wait,
        .event_passed = faulty_event_passed,
        .event_wait = faulty_event_wait,
        .drain = faulty_drain,
        .copy = faulty_copy,
        .fill = faulty_fill,
        .copy_all = faulty_copy_all,
        .time_copy = faulty_time_copy,
        .trim = faulty_trim,
    };

    real = oomph_driver_cuda();
    return &driver;
}
