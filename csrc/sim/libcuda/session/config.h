/* config.h - the card that is simulated, read from its description (syntax: sim.h). */
#pragma once
#include "sim.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SIM_DEVICES_MAX = 16 };

typedef enum sim_memory {
    SIM_MEMORY_NONE,
    SIM_MEMORY_REAL,
    SIM_MEMORY_VALUES, // real, and programs are to know: operators compute
} sim_memory_t;

typedef enum sim_host_pages {
    SIM_HOST_PAGES_NONE,
    SIM_HOST_PAGES_HOST,
    SIM_HOST_PAGES_NUMA,
} sim_host_pages_t;

typedef enum sim_offer {
    SIM_OFFER_NO,
    SIM_OFFER_YES,
    SIM_OFFER_REFUSED, // the device says that it can
} sim_offer_t;

// How fast kernels are.
typedef struct sim_rates {
    double flops_per_s[OOMPH_SIM_PRECISIONS]; // peak
    double bytes_per_s;              // of device memory, peak; 0: nothing is known
    double cycles_per_s;             // of a multiprocessor
    double sm_bytes, sm_accesses;    // that one has room for in a cycle
    uint64_t l2_bytes;               // the cache of all of them
    double flops_share, bytes_share; // what kernels reach of the peaks, up to 1
    double l2_share;                 // and of the cache
    uint64_t launch_ns;              // what each kernel takes besides
    uint64_t dispatch_ns;            // what the host takes for an operator
} sim_rates_t;

typedef struct sim_config {
    uint64_t capacity_bytes; // of each device
    uint64_t context_bytes;
    uint64_t host_bytes;       // UINT64_MAX: no limit
    double link_bytes_per_s;   // greater than 0
    double fabric_bytes_per_s; // between cards, for NCCL; 0: the link is what they have
    uint64_t tick_ns;
    int device_count;
    int cc_major, cc_minor;
    int sm_count;
    sim_rates_t rates;
    int driver_version;
    sim_memory_t memory;
    sim_host_pages_t host_pages;
    sim_offer_t rdma; // network cards may use device memory made for it
    bool has_vmm;
    bool is_integrated; // the devices' memory is the host's, and one
    sim_offer_t share;  // descriptors name memory
    bool kernels_fail;
    double matches; // the share of elements that meet what nobody knows
    char name[96];
} sim_config_t;

// The card in use. Constant once the driver has been used.
extern sim_config_t sim_config;

static inline bool sim_memory_is_real(void)
{
    return sim_config.memory != SIM_MEMORY_NONE;
}

// Whether kernels of PyTorch take the time that their work needs (gpu=).
static inline bool sim_has_rates(const sim_config_t *config)
{
    return config->rates.bytes_per_s > 0;
}

// Reads `card`. On failure returns false, `config` is unchanged and `error` says what
// is wrong and what is allowed.
bool sim_config_parse(const char *card, sim_config_t *config, char *error,
                      size_t error_bytes);

// The card when nobody describes one: for tests in C.
sim_config_t sim_config_default(void);
