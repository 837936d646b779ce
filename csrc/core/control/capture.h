/* capture.h - room for what a graph captures, made before the capture begins. */
#pragma once
#include "core/device/device.h"

// Makes room for a capture, if one is about to begin, with requests like this one, into
// the pool that it names and that is in use. Gives the lock up for a while.
void oomph_capture_prepare(oomph_device_t *device, const oomph_request_t *request);
