#include "python/stats.h"

#include "python/types.h"

#include <stddef.h>

// PyTorch's counters, under PyTorch's names.
static const struct {
    const char *name;
    size_t offset;
} by_kind[] = {
    {"allocation", offsetof(oomph_stats_t, allocation)},
    {"segment", offsetof(oomph_stats_t, segment)},
    {"active", offsetof(oomph_stats_t, active)},
    {"inactive_split", offsetof(oomph_stats_t, inactive_split)},
    {"allocated_bytes", offsetof(oomph_stats_t, allocated_bytes)},
    {"reserved_bytes", offsetof(oomph_stats_t, reserved_bytes)},
    {"active_bytes", offsetof(oomph_stats_t, active_bytes)},
    {"inactive_split_bytes", offsetof(oomph_stats_t, inactive_split_bytes)},
    {"requested_bytes", offsetof(oomph_stats_t, requested_bytes)},
};

// Our own: python/oomph/memory/metrics.py says what each means.
static const struct {
    const char *name;
    size_t offset;
} counters[] = {
    {"num_alloc_retries", offsetof(oomph_stats_t, retry_count)},
    {"num_ooms", offsetof(oomph_stats_t, oom_count)},
    {"oom_missing_bytes", offsetof(oomph_stats_t, oom_missing_bytes)},
    {"garbage_bytes", offsetof(oomph_stats_t, garbage_bytes)},
    {"num_device_alloc", offsetof(oomph_stats_t, device_alloc_count)},
    {"num_device_free", offsetof(oomph_stats_t, device_free_count)},
    {"num_sync_all_streams", offsetof(oomph_stats_t, sync_count)},
    {"device_bytes", offsetof(oomph_stats_t, tier_bytes[OOMPH_TIER_DEVICE])},
    {"device_bytes_peak", offsetof(oomph_stats_t, tier_peak_bytes[OOMPH_TIER_DEVICE])},
    {"host_bytes", offsetof(oomph_stats_t, tier_bytes[OOMPH_TIER_HOST])},
    {"host_bytes_peak", offsetof(oomph_stats_t, tier_peak_bytes[OOMPH_TIER_HOST])},
    {"host_limit_bytes", offsetof(oomph_stats_t, host_limit_bytes)},
    {"device_limit_bytes", offsetof(oomph_stats_t, device_limit_bytes)},
    {"rescues", offsetof(oomph_stats_t, rescues)},
    {"rescued_bytes", offsetof(oomph_stats_t, rescued_bytes)},
    {"host_block_bytes", offsetof(oomph_stats_t, host_block_bytes)},
    {"host_used_bytes", offsetof(oomph_stats_t, host_used_bytes)},
    {"host_predicted", offsetof(oomph_stats_t, predicted_count)},
    {"host_predicted_bytes", offsetof(oomph_stats_t, predicted_bytes)},
    {"foreseen", offsetof(oomph_stats_t, predicted_count)}, // old names
    {"foreseen_bytes", offsetof(oomph_stats_t, predicted_bytes)},
    {"buffer_bytes", offsetof(oomph_stats_t, buffer_bytes)},
    {"promoted_bytes", offsetof(oomph_stats_t, promoted_bytes)},
    {"evicted_bytes", offsetof(oomph_stats_t, evicted_bytes)},
    {"swap_drains", offsetof(oomph_stats_t, swap_drains)},
    {"swap_ns", offsetof(oomph_stats_t, swap_ns)},
    {"swap_failures", offsetof(oomph_stats_t, swap_failures)},
    {"driver_ns", offsetof(oomph_stats_t, driver_ns)},
    {"rung_deferred", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_DEFERRED])},
    {"rung_grow", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_GROW])},
    {"rung_steal", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_STEAL])},
    {"rung_wait", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_WAIT])},
    {"rung_callbacks", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_CALLBACKS])},
    {"rung_garbage", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_GARBAGE])},
    {"rung_room", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_ROOM])},
    {"rung_host", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_HOST])},
    {"rung_error", offsetof(oomph_stats_t, rungs[OOMPH_RUNG_ERROR])},
    {"pages_remapped", offsetof(oomph_stats_t, pages_remapped)},
    {"pages_stolen", offsetof(oomph_stats_t, pages_stolen)},
    {"page_bytes", offsetof(oomph_stats_t, page_bytes)},
    {"steps", offsetof(oomph_stats_t, step_count)},
    {"step_remapped_bytes", offsetof(oomph_stats_t, step_remapped_bytes)},
    {"step_host_used_bytes", offsetof(oomph_stats_t, step_host_used_bytes)},
    {"step_active_bytes_peak", offsetof(oomph_stats_t, step_active_bytes_peak)},
    {"step_rescues", offsetof(oomph_stats_t, step_rescues)},
    {"planned_hits", offsetof(oomph_stats_t, layout_hits)},
    {"planned_misses", offsetof(oomph_stats_t, layout_misses)},
    {"plan_bytes", offsetof(oomph_stats_t, layout_bytes)},
    {"link_to_host_bytes_per_s", offsetof(oomph_stats_t, link_to_host_bytes_per_s)},
    {"link_to_device_bytes_per_s", offsetof(oomph_stats_t, link_to_device_bytes_per_s)},
    {"guard_blocks", offsetof(oomph_stats_t, guard_blocks)},
    {"guard_rounding_bytes", offsetof(oomph_stats_t, guard_rounding_bytes)},
    {"guard_space_bytes", offsetof(oomph_stats_t, guard_space_bytes)},
    {"guard_reused_bytes", offsetof(oomph_stats_t, guard_reused_bytes)},
    {"foreign_bytes", offsetof(oomph_stats_t, foreign_bytes)},
    {"record_bytes", offsetof(oomph_stats_t, record_bytes)},
};

// Takes over the reference to `value`, which may be NULL after an error.
static bool add_owned(PyObject *dict, const char *name, PyObject *value)
{
    bool added = value != NULL && PyDict_SetItemString(dict, name, value) == 0;

    Py_XDECREF(value);
    return added;
}

// counter.kind.metric, as in torch.cuda.memory_stats().
static bool add_by_kind(PyObject *dict, const char *name, const oomph_stat_t *stats)
{
    static const char *const kinds[] = {"all", "small_pool", "large_pool"};
    char key[64];

    for (int kind = 0; kind < OOMPH_STAT_KINDS; kind++) {
        const struct {
            const char *metric;
            int64_t value;
        } metrics[] = {
            {"current", stats[kind].current},
            {"peak", stats[kind].peak},
            {"allocated", stats[kind].allocated},
            {"freed", stats[kind].freed},
        };
        for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++) {
            PyOS_snprintf(key, sizeof key, "%s.%s.%s", name, kinds[kind],
                          metrics[i].metric);
            if (!add_owned(dict, key, PyLong_FromLongLong(metrics[i].value)))
                return false;
        }
    }
    return true;
}

// The rescues of the last steps, newest last.
static PyObject *last_rescues(const oomph_stats_t *stats)
{
    int64_t count =
        stats->step_count < OOMPH_STEPS_KEPT ? stats->step_count : OOMPH_STEPS_KEPT;
    PyObject *list = PyList_New((Py_ssize_t)count);

    for (int64_t i = 0; i < count && list != NULL; i++) {
        int64_t step = stats->step_count - count + i;
        PyObject *rescues =
            PyLong_FromLongLong(stats->rescues_of[step % OOMPH_STEPS_KEPT]);
        if (rescues != NULL)
            PyList_SetItem(list, (Py_ssize_t)i, rescues);
        else
            Py_CLEAR(list);
    }
    return list;
}

static bool fill_stats(PyObject *dict, const oomph_stats_t *stats)
{
    const char *base = (const char *)stats;
    oomph_stats_by_kind_t stat;
    int64_t value;

    for (size_t i = 0; i < sizeof by_kind / sizeof by_kind[0]; i++) {
        memcpy(stat, base + by_kind[i].offset, sizeof stat);
        if (!add_by_kind(dict, by_kind[i].name, stat))
            return false;
    }
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        memcpy(&value, base + counters[i].offset, sizeof value);
        if (!add_owned(dict, counters[i].name, PyLong_FromLongLong(value)))
            return false;
    }
    return add_owned(dict, "rescues_last_steps", last_rescues(stats)) &&
           add_owned(dict, "host_kind",
                     PyUnicode_FromString(oomph_host_kind_name(stats->host_kind)));
}

PyObject *oomph_stats_dict(const oomph_stats_t *stats)
{
    PyObject *dict = PyDict_New();

    if (dict != NULL && !fill_stats(dict, stats))
        Py_CLEAR(dict);
    return dict;
}

static PyObject *stats(PyObject *Py_UNUSED(module), PyObject *arg)
{
    oomph_stats_t values;
    int device;

    if (!oomph_parse_device(arg, &device))
        return NULL;
    oomph_status_t status = oomph_get_stats(device, &values);
    if (status != OOMPH_OK)
        return oomph_raise(status);
    return oomph_stats_dict(&values);
}

static PyObject *allocated(PyObject *Py_UNUSED(module), PyObject *arg)
{
    oomph_stats_t values;
    int device;

    if (!oomph_parse_device(arg, &device))
        return NULL;
    oomph_status_t status = oomph_get_stats(device, &values);
    return status == OOMPH_OK
               ? Py_BuildValue(
                     "LL", (long long)values.allocation[OOMPH_STAT_ALL].current,
                     (long long)values.allocated_bytes[OOMPH_STAT_ALL].current)
               : oomph_raise(status);
}

PyMethodDef oomph_stats_methods[] = {
    {"stats", stats, METH_O, "The counters of a device, as a dict."},
    {"allocated", allocated, METH_O,
     "Blocks and bytes that are allocated on a device: two of its counters, for those "
     "who ask often."},
    {NULL, NULL, 0, NULL},
};
