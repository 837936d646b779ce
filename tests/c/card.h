/* card.h - the allocator on a simulated card, as tests of the whole core use it. */
#pragma once
#include "core/device/device.h"
#include "faults.h"
#include "harness.h"
#include "sim.h"

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

// Starts the allocator on a card ("64MiB,context=0"), with settings changed from the
// test's defaults: no reserve, no host memory, nothing made ahead.
oomph_config_t test_config(void);
void start_card(const char *card, const oomph_config_t *config);

// A stream of the simulated driver on device 0.
oomph_stream_t new_stream(void);

// What `first` was given so far happens before what `then` is given from now on.
void order_streams(oomph_stream_t first, oomph_stream_t then);

// A block of device 0 on a stream, which must be had.
oomph_addr_t take(size_t bytes, oomph_stream_t stream);
// The same, of which the status is wanted.
oomph_status_t try_take(size_t bytes, oomph_stream_t stream, oomph_addr_t *addr);
// A block on a stream that is never destroyed, as PyTorch's own are.
oomph_addr_t take_living(size_t bytes, oomph_stream_t stream);
void give(oomph_addr_t addr);

// Marks a block so that another use of its memory would be seen, through the address
// itself: simulated memory is real.
void mark(oomph_addr_t addr, size_t bytes, uint64_t tag);
bool is_marked(oomph_addr_t addr, size_t bytes, uint64_t tag);

oomph_stats_t stats_of(int device);
oomph_sim_stats_t sim_stats_of(int device);
// Checks the records of every device, and that the driver saw no misuse.
void check_sound(void);
