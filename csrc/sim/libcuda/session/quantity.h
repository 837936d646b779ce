/* quantity.h - numbers with units, as the description of a card has them (syntax:
 * sim.h). All give false if the text is no such number; the value may be changed all
 * the same.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

bool sim_read_bytes(const char *text, uint64_t *bytes);
bool sim_read_flops(const char *text, uint64_t *flops_per_s);
bool sim_read_ns(const char *text, uint64_t *ns);

// A size and "/s", more than 0.
bool sim_read_bytes_per_s(const char *text, uint64_t *bytes_per_s);

// A part of a whole.
bool sim_read_share(const char *text, double *share);

bool sim_read_integer(const char *text, int low, int high, int *value);

// The place of `text` among `names`, which end with NULL.
bool sim_read_choice(const char *text, const char *const *names, int *value);
