/* quantity.h - numbers with units, as the description of a card has them (syntax:
 * sim.h). All give false if the text is no such number; the value may be changed all
 * the same. Values are void * where a table of keys names the reader (config.c).
 */
#pragma once
#include <stdbool.h>

// Each into a uint64_t.
bool sim_read_bytes(const char *text, void *bytes);
bool sim_read_ns(const char *text, void *ns);

// Speeds, more than 0, each into a double: FLOPS, and a size with "/s".
bool sim_read_flops(const char *text, void *flops_per_s);
bool sim_read_bytes_per_s(const char *text, void *bytes_per_s);

// A number above 0, and a part of a whole, each into a double.
bool sim_read_number(const char *text, void *number);
bool sim_read_share(const char *text, void *share);

bool sim_read_integer(const char *text, int low, int high, int *value);

// The place of `text` among `names`, which end with NULL; -1 if it is none of them.
int sim_read_choice(const char *text, const char *const *names);
