/* error.h - the names of errors, and what they mean. */
#pragma once
#include "libcuda/base/cuda_api.h"

typedef struct sim_error {
    CUresult result;
    const char *name;
    const char *text; // NULL: as the name says
} sim_error_t;

// NULL if there is no such error.
const sim_error_t *sim_error_find(CUresult result);

const char *sim_error_name(CUresult result);
