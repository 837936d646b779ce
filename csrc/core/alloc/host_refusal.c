#include "core/alloc/host_refusal.h"
#include "core/device/steal.h"

#include <stdio.h>

// The driver's failure for which the rung gave nothing; "": there was another reason.
static _Thread_local char failure[200];

oomph_rung_result_t oomph_host_go_without(oomph_status_t status)
{
    if (status != OOMPH_OK && status != OOMPH_ERR_NO_MEMORY)
        snprintf(failure, sizeof failure, "%s", oomph_error_detail());
    return OOMPH_NEXT;
}

void oomph_host_begin(void)
{
    failure[0] = '\0';
}

bool oomph_host_captures(oomph_streams_t *streams)
{
    bool found = false;

    oomph_status_t status = oomph_streams_ask(streams, &found);
    oomph_host_go_without(status);
    return found || status != OOMPH_OK;
}

/* ---- Regions without offload */

static atomic_int *count_of(oomph_ban_t ban)
{
    return (unsigned)ban < OOMPH_BANS ? &oomph_process.offload_bans[ban] : NULL;
}

oomph_status_t oomph_forbid_offload(oomph_ban_t ban)
{
    atomic_int *count = count_of(ban);

    if (count == NULL)
        return oomph_fail(OOMPH_ERR_INVALID, "there is no such ban");
    atomic_fetch_add(count, 1);
    return OOMPH_OK;
}

oomph_status_t oomph_allow_offload(oomph_ban_t ban)
{
    atomic_int *count = count_of(ban);
    int open = count != NULL ? atomic_load(count) : 0;

    while (open > 0)
        if (atomic_compare_exchange_weak(count, &open, open - 1))
            return OOMPH_OK;
    return oomph_fail(OOMPH_ERR_INVALID, "offload is not forbidden");
}

bool oomph_offload_is_forbidden_by(oomph_ban_t ban)
{
    const atomic_int *count = count_of(ban);

    return count != NULL && atomic_load(count) > 0;
}

bool oomph_offload_is_forbidden(void)
{
    for (int ban = 0; ban < OOMPH_BANS; ban++)
        if (oomph_offload_is_forbidden_by(ban))
            return true;
    return false;
}

/* ---- Bans */

static const char *leaving_ban(const oomph_request_context_t *ctx)
{
    if (oomph_process.config.offload == OOMPH_OFFLOAD_OFF)
        return "offload is off (OOMPH_CONF=offload:on-oom continues in CPU memory)";
    if (!oomph_device_offloads(ctx->device))
        return "the GPU has no memory of its own but uses the CPU's: offloading "
               "would free nothing";
    if (oomph_offload_is_forbidden_by(OOMPH_BAN_BATCH_FINDER))
        return "a batch finder is running, and nothing moves to CPU memory until it "
               "ends";
    if (oomph_offload_is_forbidden_by(OOMPH_BAN_REGION))
        return "nothing is offloaded within oomph.no_offload()";
    if (ctx->pool->group != NULL && ctx->pool->group->is_mem_pool)
        return "MemPools get no host memory";
    if (ctx->device->pages.host->limit_bytes == 0)
        return "host_limit is 0";
    return NULL;
}

const char *oomph_host_ban(const oomph_request_context_t *ctx)
{
    const char *banned = leaving_ban(ctx);

    if (banned != NULL || !oomph_offload_is_forbidden_by(OOMPH_BAN_TRIAL))
        return banned;
    return "oomph is testing whether the step fits without host memory";
}

// A ban, or else that a stream captures; NULL: neither.
static const char *or_captures(const char *banned, const oomph_request_context_t *ctx)
{
    if (banned != NULL || !oomph_host_captures(&ctx->device->streams))
        return banned;
    return "a CUDA graph is being captured, so nothing can move, and the room made "
           "beforehand was too small; call oomph.evict() before the capture";
}

const char *oomph_leaving_ban_now(const oomph_request_context_t *ctx)
{
    return or_captures(leaving_ban(ctx), ctx);
}

const char *oomph_host_ban_now(const oomph_request_context_t *ctx)
{
    return or_captures(oomph_host_ban(ctx), ctx);
}

/* ---- In words */

size_t oomph_missing_bytes(const oomph_request_context_t *ctx)
{
    oomph_device_t *device = ctx->device;
    oomph_reach_t reach = {.tier = OOMPH_TIER_DEVICE, .keep = ctx->span};
    size_t want = ctx->span.missing_count;
    oomph_survey_t survey = oomph_steal_survey(device, &reach);
    size_t have = survey.now + survey.later +
                  oomph_pages_available(&device->pages, OOMPH_TIER_DEVICE, want,
                                        oomph_kept_reserve(ctx));

    // As many, and yet in vain: the driver has fewer than it says.
    return (have < want ? want - have : want) * device->pages.page_bytes;
}

const char *oomph_host_refusal(const oomph_request_context_t *ctx)
{
    static _Thread_local char text[300];
    const oomph_pages_t *pages = &ctx->device->pages;
    uint64_t limit = pages->host->limit_bytes;
    uint64_t used = atomic_load(&pages->host->used_bytes);

    if (ctx->pool->group == NULL && failure[0] != '\0')
        return failure;
    if (ctx->host_ban != NULL)
        return ctx->host_ban;
    if (pages->host_kind == OOMPH_HOST_OFF)
        return "no kind of host memory works here, or host_pages is off (see oomph "
               "--version)";
    if (used + ctx->bytes <= limit && used + ctx->bytes > pages->host_pages_max_bytes &&
        pages->host_kind != OOMPH_HOST_PINNED)
        snprintf(text, sizeof text,
                 "host memory in use: %s; with pages of %s it can be at most %s, since "
                 "the system limits the mappings of a process (sysctl "
                 "vm.max_map_count): set larger pages (OOMPH_CONF=page:%zuMiB)",
                 oomph_size_text(used).text, oomph_size_text(pages->page_bytes).text,
                 oomph_size_text(pages->host_pages_max_bytes).text,
                 4 * pages->page_bytes >> 20);
    else if (used + ctx->bytes > limit)
        snprintf(text, sizeof text, "host memory in use: %s, host_limit is %s",
                 oomph_size_text(used).text, oomph_size_text(limit).text);
    else if (oomph_process.config.strict)
        snprintf(text, sizeof text,
                 "the device is %s short, and strict:yes does not allow host memory",
                 oomph_size_text(oomph_missing_bytes(ctx)).text);
    else
        snprintf(text, sizeof text, "the driver gives no more host memory (%s in use)",
                 oomph_size_text(used).text);
    return text;
}
