#include "libcuda/session/config.h"

#include "libcuda/base/quantity.h"
#include "libcuda/session/gpu.h"
#include "sim.h"

#include <stdio.h>
#include <string.h>

sim_config_t sim_config;

// How a key is read. `place` is that of its field, or the sim_config_t itself where the
// key is about more than one.
typedef bool read_t(const char *text, void *place);

typedef struct key {
    const char *name;
    const char *allowed; // NULL: the names of GPUs
    read_t *read;
    size_t place; // of the field, within sim_config_t
    bool needs_gpu;
} sim_key_t;

static bool read_capacity(const char *text, sim_config_t *config)
{
    const uint64_t page = 2 << 20;

    if (!sim_read_bytes(text, &config->capacity_bytes))
        return false;
    config->capacity_bytes -= config->capacity_bytes % page;
    return config->capacity_bytes > 0;
}

static bool read_devices(const char *text, void *count)
{
    return sim_read_integer(text, 1, SIM_DEVICES_MAX, count);
}

static bool read_sms(const char *text, void *count)
{
    return sim_read_integer(text, 1, 1024, count);
}

static bool read_driver(const char *text, void *version)
{
    return sim_read_integer(text, 11000, 13000, version);
}

static bool read_cc(const char *text, void *place)
{
    sim_config_t *config = place;
    const char *point = strchr(text, '.');
    char major[3] = "";

    if (point == NULL || (size_t)(point - text) >= sizeof major)
        return false;
    memcpy(major, text, (size_t)(point - text));
    return sim_read_integer(major, 5, 99, &config->cc_major) &&
           sim_read_integer(point + 1, 0, 9, &config->cc_minor);
}

static bool read_name(const char *text, void *place)
{
    sim_config_t *config = place;
    size_t length = strlen(text);

    if (length == 0 || length >= sizeof config->name)
        return false;
    memcpy(config->name, text, length + 1);
    return true;
}

static bool read_memory(const char *text, void *place)
{
    static const char *const names[] = {"none", "real", "values", NULL};
    int choice = sim_read_choice(text, names);

    *(sim_memory_t *)place = (sim_memory_t)choice;
    return choice >= 0;
}

static bool read_host_pages(const char *text, void *place)
{
    static const char *const names[] = {"none", "host", "numa", NULL};
    int choice = sim_read_choice(text, names);

    *(sim_host_pages_t *)place = (sim_host_pages_t)choice;
    return choice >= 0;
}

static bool read_kernels(const char *text, void *fail)
{
    static const char *const names[] = {"ignore", "error", NULL};
    int choice = sim_read_choice(text, names);

    *(bool *)fail = choice == 1;
    return choice >= 0;
}

static bool read_yes(const char *text, void *is_so)
{
    static const char *const names[] = {"no", "yes", NULL};
    int choice = sim_read_choice(text, names);

    *(bool *)is_so = choice == 1;
    return choice >= 0;
}

static bool read_offer(const char *text, void *place)
{
    static const char *const names[] = {"no", "yes", "refused", NULL};
    int choice = sim_read_choice(text, names);

    *(sim_offer_t *)place = (sim_offer_t)choice;
    return choice >= 0;
}

// The sums and products in fp32 that a multiprocessor begins in a cycle.
static int lanes_of(const sim_gpu_t *gpu)
{
    bool is_half = gpu->cc_major < 8 || (gpu->cc_major == 8 && gpu->cc_minor == 0);

    return is_half ? 64 : 128;
}

// Takes over the figures of a well-known card. For units that it lacks the nearest do
// the work: fp32 for tf32 and bf16, fp16 for fp8.
static bool read_gpu(const char *text, void *place)
{
    sim_config_t *config = place;
    const double link_share = 0.8; // what headers and flow control leave of PCIe
    const sim_gpu_t *gpu = sim_gpu_find(text);
    sim_rates_t *rates = &config->rates;

    if (gpu == NULL)
        return false;
    config->capacity_bytes = (uint64_t)(gpu->memory_gib * 512) << 21;
    config->context_bytes = sim_gpu_context_bytes(gpu);
    config->is_integrated = gpu->link_gb_per_s == 0;
    // A copy within one memory reads it and writes it.
    double link = config->is_integrated ? gpu->memory_gb_per_s / 2
                                        : gpu->link_gb_per_s * link_share;
    config->link_bytes_per_s = (double)(uint64_t)(link * 1e9);
    config->fabric_bytes_per_s = gpu->fabric_gb_per_s * 1e9;
    config->cc_major = gpu->cc_major;
    config->cc_minor = gpu->cc_minor;
    config->sm_count = gpu->sm_count;
    snprintf(config->name, sizeof config->name, "%s", gpu->title);
    rates->bytes_per_s = gpu->memory_gb_per_s * 1e9;
    rates->l2_bytes = (uint64_t)gpu->l2_mib << 20;
    rates->flops_share = gpu->flops_share;
    rates->cycles_per_s =
        gpu->tflops[OOMPH_SIM_FP32] * 1e12 / 2 / (gpu->sm_count * lanes_of(gpu));
    for (int i = 0; i < OOMPH_SIM_PRECISIONS; i++) {
        int instead = i == OOMPH_SIM_FP8 ? OOMPH_SIM_FP16 : OOMPH_SIM_FP32;
        double tflops = gpu->tflops[i] > 0 ? gpu->tflops[i] : gpu->tflops[instead];
        rates->flops_per_s[i] = tflops * 1e12;
    }
    return true;
}

#define FIELD(field) offsetof(sim_config_t, field)

static const sim_key_t KEYS[] = {
    {"devices", "1 to 16", read_devices, FIELD(device_count), false},
    {"host", "a size, such as 128GiB", sim_read_bytes, FIELD(host_bytes), false},
    {"link", "a size per second, such as 25GB/s", sim_read_bytes_per_s,
     FIELD(link_bytes_per_s), false},
    {"fabric", "a size per second, such as 450GB/s", sim_read_bytes_per_s,
     FIELD(fabric_bytes_per_s), false},
    {"cc", "a compute capability from 5.0, such as 9.0", read_cc, 0, false},
    {"context", "a size, such as 512MiB", sim_read_bytes, FIELD(context_bytes), false},
    {"name", "a text of at most 95 bytes without a comma", read_name, 0, false},
    {"driver", "11000 to 13000", read_driver, FIELD(driver_version), false},
    {"memory", "none, real or values", read_memory, FIELD(memory), false},
    {"matches", "a number above 0, up to 1", sim_read_share, FIELD(matches), false},
    {"tick", "a time, such as 1us, or 0", sim_read_ns, FIELD(tick_ns), false},
    {"kernels", "ignore or error", read_kernels, FIELD(kernels_fail), false},
    {"host-pages", "numa, host or none", read_host_pages, FIELD(host_pages), false},
    {"rdma", "yes, no or refused", read_offer, FIELD(rdma), false},
    {"share", "yes, no or refused", read_offer, FIELD(share), false},
    {"vmm", "yes or no", read_yes, FIELD(has_vmm), false},
    {"integrated", "yes or no", read_yes, FIELD(is_integrated), false},
    {"sms", "1 to 1024", read_sms, FIELD(sm_count), false},
    {"gpu", NULL, read_gpu, 0, false},
    {"bandwidth", "a size per second, such as 1008GB/s", sim_read_bytes_per_s,
     FIELD(rates.bytes_per_s), true},
    {"bandwidth-share", "a number above 0, up to 1", sim_read_share,
     FIELD(rates.bytes_share), true},
    {"fp32", "a speed, such as 82.6TFLOPS", sim_read_flops,
     FIELD(rates.flops_per_s[OOMPH_SIM_FP32]), true},
    {"tf32", "a speed, such as 82.6TFLOPS", sim_read_flops,
     FIELD(rates.flops_per_s[OOMPH_SIM_TF32]), true},
    {"fp16", "a speed, such as 165.2TFLOPS", sim_read_flops,
     FIELD(rates.flops_per_s[OOMPH_SIM_FP16]), true},
    {"bf16", "a speed, such as 165.2TFLOPS", sim_read_flops,
     FIELD(rates.flops_per_s[OOMPH_SIM_BF16]), true},
    {"fp8", "a speed, such as 330.3TFLOPS", sim_read_flops,
     FIELD(rates.flops_per_s[OOMPH_SIM_FP8]), true},
    {"l2", "a size, such as 72MiB", sim_read_bytes, FIELD(rates.l2_bytes), true},
    {"flops-share", "a number above 0, up to 1", sim_read_share,
     FIELD(rates.flops_share), true},
    {"l2-share", "a number above 0, up to 1", sim_read_share, FIELD(rates.l2_share),
     true},
    {"sm-bytes", "a number above 0", sim_read_number, FIELD(rates.sm_bytes), true},
    {"sm-accesses", "a number above 0", sim_read_number, FIELD(rates.sm_accesses),
     true},
    {"launch", "a time, such as 2us, or 0", sim_read_ns, FIELD(rates.launch_ns), true},
    {"dispatch", "a time, such as 10us, or 0", sim_read_ns, FIELD(rates.dispatch_ns),
     true},
};
enum { KEY_COUNT = sizeof KEYS / sizeof KEYS[0] };

static void name_keys(char *text, size_t bytes)
{
    size_t used = 0;

    for (size_t i = 0; i < KEY_COUNT && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "",
                                 KEYS[i].name);
}

// Reads one key=value.
static bool read_setting(char *setting, sim_config_t *config, char *error, size_t bytes)
{
    char names[512];
    char *value = strchr(setting, '=');

    if (value != NULL)
        *value++ = '\0';
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strcmp(setting, KEYS[i].name) != 0)
            continue;
        if (KEYS[i].needs_gpu && !sim_has_rates(config)) {
            snprintf(error, bytes,
                     "simulated card: %s= needs a card: add gpu=", setting);
            return false;
        }
        if (value != NULL && KEYS[i].read(value, (char *)config + KEYS[i].place))
            return true;
        snprintf(error, bytes, "simulated card: %s=%s is not allowed; use %s", setting,
                 value ? value : "",
                 KEYS[i].allowed ? KEYS[i].allowed : sim_gpu_names());
        return false;
    }
    name_keys(names, sizeof names);
    snprintf(error, bytes, "simulated card: unknown key '%s'; allowed are: %s", setting,
             names);
    return false;
}

static sim_config_t simulated_card(void)
{
    return (sim_config_t){
        .context_bytes = 512ull << 20,
        .host_bytes = UINT64_MAX,
        .link_bytes_per_s = 25000000000,
        .tick_ns = 1000,
        .device_count = 1,
        .cc_major = 9,
        .sm_count = 132,
        // Fitted by benchmarks/published/fit.py.
        .rates = {.bytes_share = 0.9,
                  .l2_share = 0.6,
                  .sm_bytes = 24,
                  .sm_accesses = 3.4,
                  .launch_ns = 3800,
                  .dispatch_ns = 14000},
        .driver_version = 13000,
        .memory = SIM_MEMORY_NONE,
        .matches = 0.5,
        .host_pages = SIM_HOST_PAGES_NUMA,
        .rdma = SIM_OFFER_YES,
        .has_vmm = true,
        .share = SIM_OFFER_YES,
        .name = "oomph simulated GPU",
    };
}

sim_config_t sim_config_default(void)
{
    sim_config_t config = simulated_card();

    config.capacity_bytes = 96ull << 30;
    config.memory = SIM_MEMORY_REAL;
    config.tick_ns = 0;
    return config;
}

// Reading a setting puts an end in the place of its '='.
static bool is_gpu(const char *part)
{
    return strncmp(part, "gpu", 3) == 0 && (part[3] == '=' || part[3] == '\0');
}

// Reads the parts of a description. A well-known card comes first, as the others
// overrule it.
static bool read_parts(char *const *parts, size_t count, sim_config_t *config,
                       char *error, size_t bytes)
{
    for (size_t i = 1; i < count; i++)
        if (is_gpu(parts[i]) && !read_setting(parts[i], config, error, bytes))
            return false;
    if (count == 0 ||
        !(read_capacity(parts[0], config) || read_gpu(parts[0], config))) {
        snprintf(error, bytes,
                 "simulated card: '%s' must start with the memory of a device, at "
                 "least 2MiB, such as 12GiB, or with a GPU: %s",
                 count > 0 ? parts[0] : "", sim_gpu_names());
        return false;
    }
    for (size_t i = 1; i < count; i++)
        if (!is_gpu(parts[i]) && !read_setting(parts[i], config, error, bytes))
            return false;
    return true;
}

bool sim_config_parse(const char *card, sim_config_t *config, char *error,
                      size_t error_bytes)
{
    enum { PARTS = 64 };
    char text[512];
    char *parts[PARTS];
    char *rest = NULL;
    size_t length = strlen(card), count = 0;
    sim_config_t read = simulated_card();

    if (length >= sizeof text) {
        snprintf(error, error_bytes, "simulated card: the description is too long");
        return false;
    }
    memcpy(text, card, length + 1);
    for (char *part = strtok_r(text, ",", &rest); part != NULL && count < PARTS;
         part = strtok_r(NULL, ",", &rest))
        parts[count++] = part;
    if (!read_parts(parts, count, &read, error, error_bytes))
        return false;
    if (read.context_bytes >= read.capacity_bytes) {
        snprintf(error, error_bytes,
                 "simulated card: CUDA itself takes %zu MiB of it, which leaves none: "
                 "name a larger card, or less, as context=0",
                 (size_t)(read.context_bytes >> 20));
        return false;
    }
    *config = read;
    return true;
}
