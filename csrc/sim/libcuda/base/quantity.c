#include "libcuda/base/quantity.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct unit {
    const char *name;
    double factor;
} unit_t;

static const unit_t SIZE_UNITS[] = {
    {"", 1},         {"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
    {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"KB", 1e3},     {"MB", 1e6},
    {"GB", 1e9},     {"TB", 1e12},    {NULL, 0},
};

static const unit_t SPEED_UNITS[] = {
    {"GFLOPS", 1e9},
    {"TFLOPS", 1e12},
    {"PFLOPS", 1e15},
    {NULL, 0},
};

static const unit_t TIME_UNITS[] = {
    {"", 1}, {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0},
};

// A number and its unit, such as 11.69GiB, as a whole number.
static bool read_quantity(const char *text, const unit_t *units, uint64_t *value)
{
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return false;
    double number = strtod(text, &end);
    for (const unit_t *unit = units; unit->name != NULL; unit++) {
        if (strcasecmp(end, unit->name) == 0 && number * unit->factor < 0x1p62) {
            *value = (uint64_t)(number * unit->factor + 0.5);
            return true;
        }
    }
    return false;
}

bool sim_read_integer(const char *text, int low, int high, int *value)
{
    char *end;
    long number = strtol(text, &end, 10);

    if (end == text || *end != '\0' || number < low || number > high)
        return false;
    *value = (int)number;
    return true;
}

int sim_read_choice(const char *text, const char *const *names)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    return -1;
}

bool sim_read_bytes(const char *text, void *bytes)
{
    return read_quantity(text, SIZE_UNITS, bytes);
}

bool sim_read_ns(const char *text, void *ns)
{
    return read_quantity(text, TIME_UNITS, ns);
}

static bool read_speed(const char *text, const unit_t *units, double *per_s)
{
    uint64_t number;

    if (!read_quantity(text, units, &number) || number == 0)
        return false;
    *per_s = (double)number;
    return true;
}

bool sim_read_flops(const char *text, void *flops_per_s)
{
    return read_speed(text, SPEED_UNITS, flops_per_s);
}

bool sim_read_bytes_per_s(const char *text, void *bytes_per_s)
{
    char size[32];
    size_t length = strlen(text);

    if (length < 3 || length - 2 >= sizeof size || strcmp(text + length - 2, "/s") != 0)
        return false;
    memcpy(size, text, length - 2);
    size[length - 2] = '\0';
    return read_speed(size, SIZE_UNITS, bytes_per_s);
}

bool sim_read_number(const char *text, void *number)
{
    char *end;
    double value = strtod(text, &end);

    *(double *)number = value;
    return end != text && *end == '\0' && value > 0 && value <= 1e6;
}

bool sim_read_share(const char *text, void *share)
{
    return sim_read_number(text, share) && *(double *)share <= 1;
}
