/* visible_devices.h - which of the card's devices the program sees: all, or those that
 * CUDA_VISIBLE_DEVICES names. Read when the driver is first used, and again until a
 * device is, where that is awaited (oomph_sim_before_use()).
 */
#pragma once

// Reads the variable for a machine of `total` devices. As the real driver does, takes
// the indices up to the first that names no device.
void sim_visible_devices_read(int total);

int sim_visible_device_count(void);

// The index in the machine of a device that the program sees.
int sim_visible_device(int device);

// And back: as the program counts; -1 if it does not see the device.
int sim_visible_device_find(int in_machine);
