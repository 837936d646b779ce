/* site.c - the lines of source that allocate, numbered; what each holds on a device.
 *
 * A number stands for a line of a function of a file as long as the process lives,
 * whatever becomes of the code object that was compiled from it.
 */
#include "core/base/site.h"
#include "core/base/lock.h"
#include "core/base/map.h"

#include <stdlib.h>
#include <string.h>

enum {
    SITES_FIRST = 256,
    SITES_MAX = 1 << 20, // more lines than a program has; later ones are unknown
};

static struct {
    oomph_lock_t lock;
    oomph_site_info_t *infos; // [0] is the unknown site
    size_t count, capacity;
    oomph_map_t numbers; // by digest
} sites;

/* ---- Names */

static uint64_t digest_text(uint64_t digest, const char *text)
{
    for (; *text != '\0'; text++)
        digest = (digest ^ (uint8_t)*text) * 0x100000001B3u;
    return (digest ^ 0xFF) * 0x100000001B3u;
}

static uint64_t digest_of(const char *file, const char *function, int line)
{
    uint64_t digest = digest_text(0xCBF29CE484222325u, file);
    digest = digest_text(digest, function) + (uint64_t)(unsigned)line;
    return digest * 0x100000001B3u | 1; // never 0
}

static bool is_site(const oomph_site_info_t *info, const char *file,
                    const char *function, int line)
{
    return info->line == line && strcmp(info->file, file) == 0 &&
           strcmp(info->function, function) == 0;
}

static bool reserve_info(void)
{
    size_t capacity = sites.capacity == 0 ? SITES_FIRST : sites.capacity * 2;

    if (sites.count < sites.capacity)
        return true;
    if (sites.count >= SITES_MAX)
        return false;
    oomph_site_info_t *infos = realloc(sites.infos, capacity * sizeof *infos);
    if (infos == NULL)
        return false;
    sites.infos = infos;
    sites.capacity = capacity;
    if (sites.count == 0)
        sites.infos[sites.count++] = (oomph_site_info_t){"", "", 0};
    return true;
}

static oomph_site_t add_site(uint64_t digest, const char *file, const char *function,
                             int line)
{
    if (!reserve_info())
        return 0;
    char *file_copy = strdup(file), *function_copy = strdup(function);
    oomph_site_t site = (oomph_site_t)sites.count;
    if (file_copy == NULL || function_copy == NULL ||
        !oomph_map_add(&sites.numbers, digest, site)) {
        free(file_copy);
        free(function_copy);
        return 0;
    }
    sites.infos[sites.count++] = (oomph_site_info_t){file_copy, function_copy, line};
    return site;
}

oomph_site_t oomph_site(const char *file, const char *function, int line)
{
    uint64_t digest = digest_of(file, function, line);

    oomph_lock_take(&sites.lock);
    oomph_site_t site = (oomph_site_t)oomph_map_get(&sites.numbers, digest, 0);
    while (site != 0 && !is_site(&sites.infos[site], file, function, line)) {
        digest += 2; // another line has the same digest
        site = (oomph_site_t)oomph_map_get(&sites.numbers, digest, 0);
    }
    if (site == 0)
        site = add_site(digest, file, function, line);
    oomph_lock_give(&sites.lock);
    return site;
}

oomph_status_t oomph_site_info(oomph_site_t site, oomph_site_info_t *info)
{
    oomph_status_t status = OOMPH_OK;
    oomph_site_t number = site & ~OOMPH_SITE_INFERRED;

    oomph_lock_take(&sites.lock);
    if (number == 0 || number >= sites.count)
        status = oomph_fail(OOMPH_ERR_INVALID, "there is no site %u", number);
    else
        *info = sites.infos[number];
    oomph_lock_give(&sites.lock);
    return status;
}

/* ---- What each holds */

static size_t counter_index(oomph_site_t site)
{
    return (size_t)(site & ~OOMPH_SITE_INFERRED) * 2 +
           ((site & OOMPH_SITE_INFERRED) != 0);
}

oomph_status_t oomph_site_counters_grow(oomph_site_counters_t *counters,
                                        oomph_site_t site)
{
    size_t capacity =
        counters->capacity == 0 ? (size_t)SITES_FIRST * 2 : counters->capacity;

    while (capacity <= counter_index(site))
        capacity *= 2;
    oomph_site_counter_t *list = realloc(counters->list, capacity * sizeof *list);
    if (list == NULL)
        return oomph_fail(OOMPH_ERR_NO_MEMORY, "no host memory for call sites");
    memset(list + counters->capacity, 0,
           (capacity - counters->capacity) * sizeof *list);
    counters->list = list;
    counters->capacity = capacity;
    return OOMPH_OK;
}

// What a site held at the peak is kept when it changes for the first time after it.
static void change(oomph_site_counters_t *counters, oomph_site_counter_t *counter)
{
    if (counter->changed_after == counters->peak)
        return;
    counter->peak_bytes = counter->bytes;
    counter->peak_count = counter->count;
    counter->changed_after = counters->peak;
}

void oomph_site_count(oomph_site_counters_t *counters, oomph_site_t site, int64_t bytes)
{
    oomph_site_counter_t *counter = &counters->list[counter_index(site)];

    change(counters, counter);
    counter->bytes += bytes;
    counter->count += bytes > 0 ? 1 : -1;
    counters->bytes += bytes;
    if (counters->bytes > counters->peak_bytes) {
        counters->peak_bytes = counters->bytes;
        counters->peak++;
    }
}

void oomph_site_reset_peak(oomph_site_counters_t *counters)
{
    counters->peak_bytes = counters->bytes;
    counters->peak++;
}

size_t oomph_site_counters_report(const oomph_site_counters_t *counters, bool at_peak,
                                  oomph_site_bytes_t *rows, size_t capacity)
{
    size_t count = 0;

    for (size_t i = 0; i < counters->capacity; i++) {
        const oomph_site_counter_t *counter = &counters->list[i];
        bool changed = at_peak && counter->changed_after == counters->peak;
        int64_t blocks = changed ? counter->peak_count : counter->count;
        if (blocks == 0)
            continue;
        if (count < capacity)
            rows[count] = (oomph_site_bytes_t){
                .site = (oomph_site_t)(i / 2) | (i % 2 ? OOMPH_SITE_INFERRED : 0),
                .bytes = (size_t)(changed ? counter->peak_bytes : counter->bytes),
                .count = (size_t)blocks};
        count++;
    }
    return count;
}
