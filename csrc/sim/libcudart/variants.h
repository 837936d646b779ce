/* variants.h - what CUDA 12 and 13 name or pass in different ways. The library is built
 * for each of them, with its headers.
 */
#pragma once
#include "rt.h"

// Fills in the properties of a device that CUDA 13 no longer has.
void rt_fill_older(struct cudaDeviceProp *prop, int device);
