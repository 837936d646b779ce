#include "libcuda/session/report.h"

#include "libcuda/base/error.h"
#include "runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 16, TEXT_BYTES = 512 };

// The last texts of one kind.
typedef struct ring {
    char texts[KEPT][TEXT_BYTES];
    uint64_t count; // texts so far
} ring_t;

static ring_t misuses;
static ring_t unsupported;
static __thread char refusal[TEXT_BYTES]; // of this thread's last one, or ""
static __thread bool has_refused;         // in the call that is made now
static FILE *trace;

static __thread const char *current_call = "";

const char *sim_current_call(void)
{
    return current_call;
}

static char *ring_next(ring_t *ring)
{
    return ring->texts[ring->count++ % KEPT];
}

static const char *ring_ago(const ring_t *ring, size_t ago)
{
    if (ago >= KEPT || ago >= ring->count)
        return NULL;
    return ring->texts[(ring->count - 1 - ago) % KEPT];
}

static FILE *open_trace(const char *path)
{
    return strcmp(path, "-") == 0 ? stderr : fopen(path, "ae");
}

static void close_trace(void)
{
    if (trace != NULL && trace != stderr)
        fclose(trace);
    trace = NULL;
}

bool sim_trace_open(const char *path)
{
    close_trace();
    if (path != NULL)
        trace = open_trace(path);
    return path == NULL || trace != NULL;
}

void sim_trace_open_from_environment(void)
{
    const char *path = getenv("OOMPH_SIM_LOG");

    if (path != NULL && trace == NULL)
        trace = open_trace(path);
}

bool sim_trace_is_on(void)
{
    return trace != NULL;
}

void sim_trace_call(CUresult result, const char *format, va_list arguments)
{
    fprintf(trace, "%s(", current_call);
    vfprintf(trace, format, arguments);
    fprintf(trace, ") = %s\n", sim_error_name(result));
    fflush(trace);
}

void sim_trace_cost(const oomph_sim_cost_t *what)
{
    uint64_t read = 0, written = 0, kept = 0, again = 0, reread = 0;

    if (trace == NULL)
        return;
    for (size_t i = 0; i < what->use_count; i++) {
        const oomph_sim_use_t *use = &what->uses[i];
        read += use->read_bytes, written += use->written_bytes;
        again += use->again_bytes, reread += use->reread_bytes;
        kept += use->again_bytes + use->reread_bytes > 0 ? use->read_bytes : 0;
    }
    fprintf(trace,
            "cost: {\"name\": \"%s\", \"kernels\": %u, \"threads\": %llu, "
            "\"block\": %u, \"flops\": %.0f, \"precision\": %d, \"accesses\": %.0f, "
            "\"moved\": %llu, \"kept\": %llu, \"again\": %llu, \"reread\": %llu}\n",
            what->name, what->launched.kernel_count,
            (unsigned long long)what->launched.threads, what->launched.block_threads,
            what->flops, (int)what->precision, what->accesses,
            (unsigned long long)read + written, (unsigned long long)kept,
            (unsigned long long)again, (unsigned long long)reread);
}

void sim_trace_dispatch(void)
{
    if (trace != NULL)
        fprintf(trace, "dispatched\n");
}

static void trace_line(const char *what, const char *text)
{
    if (trace == NULL)
        return;
    fprintf(trace, "%s: %s\n", what, text);
    fflush(trace);
}

CUresult sim_misuse(CUresult result, const char *format, ...)
{
    char *text = ring_next(&misuses);
    int used = snprintf(text, TEXT_BYTES, "%s: ", current_call);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text + used, TEXT_BYTES - (size_t)used, format, arguments);
    va_end(arguments);
    trace_line("misuse", text);
    return result;
}

uint64_t sim_misuse_count(void)
{
    return misuses.count;
}

const char *sim_misuse_ago(size_t ago)
{
    return ring_ago(&misuses, ago);
}

static void refuse(const char *name, const char *format)
{
    char *text = ring_next(&unsupported);

    snprintf(text, TEXT_BYTES, "%s", name);
    trace_line("not supported", text);
    snprintf(refusal, sizeof refusal, format, name);
    has_refused = true;
}

void sim_unsupported(const char *function)
{
    refuse(function, "operation not supported: %s is not part of the simulated GPU");
}

void sim_refuse_kernel(const char *name)
{
    refuse(name, "operation not supported: the simulated GPU with values cannot "
                 "compute %.300s, which no operator of PyTorch launched; run it on the "
                 "CPU, or simulate shapes alone");
}

uint64_t sim_unsupported_count(void)
{
    return unsupported.count;
}

const char *sim_unsupported_ago(size_t ago)
{
    return ring_ago(&unsupported, ago);
}

void sim_report_begin(const char *function)
{
    current_call = function;
    has_refused = false;
}

void sim_report_end(CUresult result)
{
    if (result == CUDA_ERROR_NOT_SUPPORTED && !has_refused)
        refusal[0] = '\0';
}

const char *oomph_sim_refusal(void)
{
    return refusal;
}

void sim_report_reset(void)
{
    close_trace();
    misuses.count = 0;
    unsupported.count = 0;
}
