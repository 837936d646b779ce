/* module.h - loaded modules, with the rest of the driver's state. The caller holds the
 * driver's lock.
 */
#pragma once
#include "libcuda/base/cuda_api.h"

const char *sim_function_name(CUfunction function);

void sim_module_reset(void);
