#include "libcuda/session/session.h"

#include "libcuda/session/config.h"
#include "libcuda/session/report.h"
#include "libcuda/session/visible_devices.h"
#include "sim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { ERROR_BYTES = 512 };

static sim_phase_t phase;
static bool configured;      // sim_config is the card in use
static bool described;       // sim_config was given by oomph_sim_configure()
static bool description_bad; // OOMPH_SIMULATE is wrong
static char error_text[ERROR_BYTES];
// Called before a device is used; NULL: nothing.
static void (*_Atomic before_use)(void);

static void after_fork_in_child(void)
{
    if (phase == SIM_PHASE_INITIALISED)
        phase = SIM_PHASE_FORKED;
    sim_unlock();
}

static void watch_forks(void)
{
    pthread_atfork(sim_take_lock, sim_unlock, after_fork_in_child);
}

// Decides which card is simulated, at first use.
static void read_card(void)
{
    static pthread_once_t watching = PTHREAD_ONCE_INIT;
    const char *card = getenv("OOMPH_SIMULATE");

    pthread_once(&watching, watch_forks);
    configured = true;
    if (!described)
        sim_config = sim_config_default();
    if (!described && card != NULL)
        description_bad =
            !sim_config_parse(card, &sim_config, error_text, sizeof error_text);
    sim_visible_devices_read(sim_config.device_count);
    sim_trace_open_from_environment();
}

bool sim_awaits_use(void)
{
    return before_use != NULL;
}

void sim_begin_use(void)
{
    if (!sim_awaits_use())
        return;
    sim_take_lock();
    void (*function)(void) = before_use;
    before_use = NULL;
    configured = false;
    sim_unlock();
    if (function != NULL)
        function();
}

bool sim_lock(void)
{
    sim_take_lock();
    if (!configured)
        read_card();
    else if (sim_awaits_use()) // a program may choose devices until it uses one
        sim_visible_devices_read(sim_config.device_count);
    return !description_bad;
}

sim_phase_t sim_phase(void)
{
    return phase;
}

void sim_mark_initialised(void)
{
    phase = SIM_PHASE_INITIALISED;
}

int oomph_sim_configure(const char *card)
{
    bool good = false;

    sim_take_lock();
    if (configured)
        snprintf(error_text, sizeof error_text,
                 "simulated card: the driver is in use; describe the card before that");
    else
        good = sim_config_parse(card, &sim_config, error_text, sizeof error_text);
    described = described || good;
    sim_unlock();
    return good ? 0 : 1;
}

void oomph_sim_before_use(void (*function)(void))
{
    sim_take_lock();
    before_use = function;
    sim_unlock();
}

void oomph_sim_begin_use(void)
{
    sim_begin_use();
}

int oomph_sim_describe(const char *card, oomph_sim_card_t *found)
{
    sim_config_t config;

    sim_take_lock();
    bool good = sim_config_parse(card, &config, error_text, sizeof error_text);
    sim_unlock();
    if (!good)
        return 1;
    *found = (oomph_sim_card_t){
        .memory_bytes = config.capacity_bytes,
        .host_bytes = config.host_bytes,
        .device_count = config.device_count,
        .has_values = config.memory == SIM_MEMORY_VALUES,
        .has_rates = sim_has_rates(&config),
    };
    return 0;
}

const char *oomph_sim_error(void)
{
    return error_text;
}

void oomph_sim_deinit(void)
{
    sim_lock();
    phase = SIM_PHASE_DEINITIALISED;
    sim_unlock();
}

void sim_session_reset(void)
{
    phase = SIM_PHASE_NEW;
    configured = described = description_bad = false;
    before_use = NULL;
    error_text[0] = '\0';
}
