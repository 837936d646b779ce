/* api.c - the public functions as a table (oomph/table.h), for another extension
 * module.
 */
#include "oomph.h"

const oomph_api_t *oomph_api(void)
{
    static const oomph_api_t api = {
        .abi = OOMPH_ABI,
        .bytes = sizeof(oomph_api_t),
        .error_detail = oomph_error_detail,
        .set_hooks = oomph_set_hooks,
        .watch = oomph_watch,
        .start = oomph_start,
        .malloc = oomph_malloc,
        .free = oomph_free,
        .record_stream = oomph_record_stream,
        .lookup = oomph_lookup,
        .empty_cache = oomph_empty_cache,
        .enable_peer = oomph_enable_peer,
        .export_block = oomph_export,
        .import_block = oomph_import,
        .unimport_block = oomph_unimport,
        .pool_retain = oomph_pool_retain,
        .pool_begin = oomph_pool_begin,
        .pool_end = oomph_pool_end,
        .pool_release = oomph_pool_release,
        .pool_use_count = oomph_pool_use_count,
        .pool_set_flag = oomph_pool_set_flag,
        .pool_set_source = oomph_pool_set_source,
        .revive = oomph_revive,
        .get_stats = oomph_get_stats,
        .get_pool_stats = oomph_get_pool_stats,
        .reset_peak_stats = oomph_reset_peak_stats,
        .reset_accumulated_stats = oomph_reset_accumulated_stats,
        .set_fraction = oomph_set_fraction,
        .get_fraction = oomph_get_fraction,
        .memory_info = oomph_memory_info,
        .largest_free = oomph_largest_free,
        .walk = oomph_walk,
        .call_site = oomph_call_site,
        .keep_oom = oomph_keep_oom,
        .site_min_bytes = oomph_site_min_bytes,
    };

    return &api;
}
