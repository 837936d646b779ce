/* table.h - the table that reaches another extension module in a capsule. */
#pragma once
#include "oomph/block.h"
#include "oomph/ipc.h"
#include "oomph/memory.h"
#include "oomph/oom.h"
#include "oomph/pool.h"
#include "oomph/start.h"
#include "oomph/stats.h"
#include "oomph/types.h"

#include <stdbool.h>
#include <stddef.h>

#define OOMPH_CAPSULE "oomph._C.api"

typedef struct oomph_api_table {
    size_t abi;   // OOMPH_ABI
    size_t bytes; // sizeof(oomph_api_t)
    const char *(*error_detail)(void);
    void (*set_hooks)(const oomph_hooks_t *);
    void (*watch)(bool);
    oomph_status_t (*start)(int *);
    oomph_status_t (*malloc)(const oomph_request_t *, oomph_addr_t *);
    oomph_status_t (*free)(oomph_addr_t, oomph_block_info_t *);
    oomph_status_t (*record_stream)(oomph_addr_t, int, oomph_stream_t, bool);
    oomph_status_t (*lookup)(oomph_addr_t, oomph_block_info_t *);
    oomph_status_t (*empty_cache)(int, oomph_pool_id_t, size_t *);
    oomph_status_t (*enable_peer)(int, int);
    oomph_status_t (*export_block)(oomph_addr_t, oomph_ticket_t *, size_t *);
    oomph_status_t (*import_block)(int, const oomph_ticket_t *, oomph_addr_t *);
    oomph_status_t (*unimport_block)(int, oomph_addr_t);
    oomph_status_t (*pool_retain)(int, oomph_pool_id_t);
    oomph_status_t (*pool_begin)(int, oomph_pool_id_t, oomph_stream_t, bool);
    oomph_status_t (*pool_end)(int, oomph_stream_t, bool);
    oomph_status_t (*pool_release)(int, oomph_pool_id_t);
    int (*pool_use_count)(int, oomph_pool_id_t);
    oomph_status_t (*pool_set_flag)(int, oomph_pool_id_t, oomph_pool_flag_t, bool);
    oomph_status_t (*pool_set_source)(int, oomph_pool_id_t, const oomph_source_t *);
    oomph_status_t (*revive)(const oomph_request_t *, oomph_addr_t);
    oomph_status_t (*get_stats)(int, oomph_stats_t *);
    oomph_status_t (*get_pool_stats)(int, oomph_pool_stats_t *, size_t, size_t *);
    oomph_status_t (*reset_peak_stats)(int);
    oomph_status_t (*reset_accumulated_stats)(int);
    oomph_status_t (*set_fraction)(int, double);
    double (*get_fraction)(int);
    oomph_status_t (*memory_info)(int, size_t *, size_t *);
    oomph_status_t (*largest_free)(int, size_t *);
    oomph_status_t (*walk)(int, oomph_visit_t, void *);
    oomph_site_t (*call_site)(bool);
    void (*keep_oom)(const oomph_oom_t *);
    size_t (*site_min_bytes)(void);
} oomph_api_t;

const oomph_api_t *oomph_api(void);
