/* error.h - the names of errors. */
#pragma once
#include "libcuda/session/cuda_api.h"

const char *sim_error_name(CUresult result);
