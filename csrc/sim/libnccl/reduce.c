#include "reduce.h"

#include <math.h>
#include <string.h>

typedef uint16_t half_t;  // its bits
typedef uint16_t bhalf_t; // likewise

static const struct type {
    const char *name;
    unsigned char bytes;
    bool is_float, reduces;
} TYPES[] = {
    [ncclInt8] = {"int8", 1, false, true},
    [ncclUint8] = {"uint8", 1, false, true},
    [ncclInt32] = {"int32", 4, false, true},
    [ncclUint32] = {"uint32", 4, false, true},
    [ncclInt64] = {"int64", 8, false, true},
    [ncclUint64] = {"uint64", 8, false, true},
    [ncclFloat16] = {"float16", 2, true, true},
    [ncclFloat32] = {"float32", 4, true, true},
    [ncclFloat64] = {"float64", 8, true, true},
    [ncclBfloat16] = {"bfloat16", 2, true, true},
    [ncclFloat8e4m3] = {"float8_e4m3", 1, true, false},
    [ncclFloat8e5m2] = {"float8_e5m2", 1, true, false},
};

size_t nccl_type_bytes(ncclDataType_t type)
{
    return (unsigned)type < ncclNumTypes ? TYPES[type].bytes : 0;
}

const char *nccl_type_name(ncclDataType_t type)
{
    return (unsigned)type < ncclNumTypes ? TYPES[type].name : "an unknown type";
}

bool nccl_type_reduces(ncclDataType_t type)
{
    return (unsigned)type < ncclNumTypes && TYPES[type].reduces;
}

bool nccl_type_is_float(ncclDataType_t type)
{
    return TYPES[type].is_float;
}

// ---- numbers of two bytes

static float float_of_bits(uint32_t bits)
{
    float number;

    memcpy(&number, &bits, sizeof number);
    return number;
}

static uint32_t bits_of(float number)
{
    uint32_t bits;

    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static float from_bhalf(bhalf_t half)
{
    return float_of_bits((uint32_t)half << 16);
}

static bhalf_t to_bhalf(float number) // the nearest, ties to even
{
    const uint32_t bits = bits_of(number);

    if (number != number)
        return 0x7fff;
    return (bhalf_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_half(half_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;

    if (exponent == 0x1f)
        return float_of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) {
        const float small = (float)fraction * 0x1p-24f;
        return sign ? -small : small;
    }
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static half_t to_half(float number) // the nearest, ties to even
{
    const uint32_t bits = bits_of(number), sign = bits >> 16 & 0x8000;
    const float size = fabsf(number);

    if (number != number)
        return 0x7fff;
    if (size >= 65520.0f)
        return (half_t)(sign | 0x7c00);
    if (size < 0x1p-14f) // adding one rounds at the last place of a small half
        return (half_t)(sign | (bits_of(size + 0.5f) - bits_of(0.5f)));
    const uint32_t rounded = bits_of(size) + 0xfff + (bits_of(size) >> 13 & 1);
    return (half_t)(sign | ((rounded >> 13) - (112 << 10)));
}

// ---- reductions

// The four operations over an array of a type, whose numbers are computed as `wide`.
// A macro, as C has no function for several types, and a type has no parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define COMBINE(name, narrow, wide, load, store)                                       \
    static void name(narrow *into, const narrow *from, size_t count, int op)           \
    {                                                                                  \
        for (size_t i = 0; i < count; i++) {                                           \
            const wide a = load(into[i]), b = load(from[i]);                           \
            switch (op) {                                                              \
            case ncclProd:                                                             \
                into[i] = store(a * b);                                                \
                break;                                                                 \
            case ncclMax:                                                              \
                into[i] = a < b ? from[i] : into[i];                                   \
                break;                                                                 \
            case ncclMin:                                                              \
                into[i] = b < a ? from[i] : into[i];                                   \
                break;                                                                 \
            default:                                                                   \
                into[i] = store(a + b);                                                \
            }                                                                          \
        }                                                                              \
    }                                                                                  \
    static void name##_scale(narrow *numbers, size_t count, double scale)              \
    {                                                                                  \
        const wide by = load(store((wide)scale));                                      \
        for (size_t i = 0; i < count; i++)                                             \
            numbers[i] = store(load(numbers[i]) * by);                                 \
    }

// NOLINTEND(bugprone-macro-parentheses)

#define SAME(number) (number)
#define TO(type) (type)

COMBINE(combine_int8, int8_t, int64_t, SAME, TO(int8_t))
COMBINE(combine_uint8, uint8_t, uint64_t, SAME, TO(uint8_t))
COMBINE(combine_int32, int32_t, int64_t, SAME, TO(int32_t))
COMBINE(combine_uint32, uint32_t, uint64_t, SAME, TO(uint32_t))
COMBINE(combine_uint64, uint64_t, uint64_t, SAME, SAME)
COMBINE(combine_float, float, float, SAME, SAME)
COMBINE(combine_double, double, double, SAME, SAME)
COMBINE(combine_half, half_t, float, from_half, to_half)
COMBINE(combine_bhalf, bhalf_t, float, from_bhalf, to_bhalf)

// Sums and products of signed numbers wrap, so they are those of unsigned ones.
static void combine_int64(int64_t *into, const int64_t *from, size_t count, int op)
{
    if (op != ncclMax && op != ncclMin) {
        combine_uint64((uint64_t *)into, (const uint64_t *)from, count, op);
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (op == ncclMax ? into[i] < from[i] : from[i] < into[i])
            into[i] = from[i];
}

void nccl_combine(void *into, const void *from, size_t count, ncclDataType_t type,
                  int op)
{
    switch (type) {
    case ncclInt8:
        combine_int8(into, from, count, op);
        break;
    case ncclUint8:
        combine_uint8(into, from, count, op);
        break;
    case ncclInt32:
        combine_int32(into, from, count, op);
        break;
    case ncclUint32:
        combine_uint32(into, from, count, op);
        break;
    case ncclInt64:
        combine_int64(into, from, count, op);
        break;
    case ncclUint64:
        combine_uint64(into, from, count, op);
        break;
    case ncclFloat16:
        combine_half(into, from, count, op);
        break;
    case ncclFloat32:
        combine_float(into, from, count, op);
        break;
    case ncclFloat64:
        combine_double(into, from, count, op);
        break;
    case ncclBfloat16:
        combine_bhalf(into, from, count, op);
        break;
    default: // nccl_type_reduces() was asked
        break;
    }
}

void nccl_scale(void *numbers, size_t count, ncclDataType_t type, double scale)
{
    switch (type) {
    case ncclInt8:
        combine_int8_scale(numbers, count, scale);
        break;
    case ncclUint8:
        combine_uint8_scale(numbers, count, scale);
        break;
    case ncclInt32:
        combine_int32_scale(numbers, count, scale);
        break;
    case ncclUint32:
        combine_uint32_scale(numbers, count, scale);
        break;
    case ncclInt64:
    case ncclUint64:
        combine_uint64_scale(numbers, count, scale);
        break;
    case ncclFloat16:
        combine_half_scale(numbers, count, scale);
        break;
    case ncclFloat32:
        combine_float_scale(numbers, count, scale);
        break;
    case ncclFloat64:
        combine_double_scale(numbers, count, scale);
        break;
    case ncclBfloat16:
        combine_bhalf_scale(numbers, count, scale);
        break;
    default:
        break;
    }
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type has none
#define DIVIDE(type)                                                                   \
    do {                                                                               \
        type *number = numbers;                                                        \
        for (size_t i = 0; i < count; i++)                                             \
            number[i] = (type)(number[i] / (type)divisor);                             \
    } while (0)

// NOLINTEND(bugprone-macro-parentheses)

void nccl_divide(void *numbers, size_t count, ncclDataType_t type, int divisor)
{
    switch (type) {
    case ncclInt8:
        DIVIDE(int8_t);
        break;
    case ncclUint8:
        DIVIDE(uint8_t);
        break;
    case ncclInt32:
        DIVIDE(int32_t);
        break;
    case ncclUint32:
        DIVIDE(uint32_t);
        break;
    case ncclInt64:
        DIVIDE(int64_t);
        break;
    case ncclUint64:
        DIVIDE(uint64_t);
        break;
    default:
        break;
    }
}

double nccl_number(const void *place, ncclDataType_t type)
{
    switch (type) {
    case ncclFloat16:
        return from_half(*(const half_t *)place);
    case ncclBfloat16:
        return from_bhalf(*(const bhalf_t *)place);
    case ncclFloat32:
        return *(const float *)place;
    case ncclFloat64:
        return *(const double *)place;
    case ncclInt8:
        return *(const int8_t *)place;
    case ncclUint8:
        return *(const uint8_t *)place;
    case ncclInt32:
        return *(const int32_t *)place;
    case ncclUint32:
        return *(const uint32_t *)place;
    case ncclInt64:
        return (double)*(const int64_t *)place;
    case ncclUint64:
        return (double)*(const uint64_t *)place;
    default:
        return 0;
    }
}
