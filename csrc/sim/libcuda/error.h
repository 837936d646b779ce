/* error.h - the names of errors. */
#pragma once
#include "cuda_api.h"

const char *sim_error_name(CUresult result);
