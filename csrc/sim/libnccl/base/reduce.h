/* reduce.h - the arithmetic of reductions.
 *
 * As on a card, each sum of two ranks is rounded to the type. An average of floats
 * multiplies by one over the count of ranks first, one of integers divides the sum.
 */
#pragma once
#include "libnccl/base/abi.h"

#include <stdbool.h>

size_t nccl_type_bytes(ncclDataType_t type);
const char *nccl_type_name(ncclDataType_t type);

// Whether numbers of the type can be reduced here.
bool nccl_type_reduces(ncclDataType_t type);
bool nccl_type_is_float(ncclDataType_t type);

// Of a type that can be reduced: into[i] = into[i] op from[i]; ncclAvg is a sum.
void nccl_combine(void *into, const void *from, size_t count, ncclDataType_t type,
                  int op);
// numbers[i] *= scale, with the scale rounded to the type.
void nccl_scale(void *numbers, size_t count, ncclDataType_t type, double scale);
// numbers[i] /= divisor, of integers.
void nccl_divide(void *numbers, size_t count, ncclDataType_t type, int divisor);

// One number, as a double.
double nccl_number(const void *place, ncclDataType_t type);
