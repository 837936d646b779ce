/* module.h - loaded modules, with the rest of the driver's state. The caller holds the
 * driver's lock.
 */
#pragma once

void sim_module_reset(void);
