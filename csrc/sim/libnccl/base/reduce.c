#include "libnccl/base/reduce.h"

#include <math.h>
#include <string.h>

typedef uint16_t half_t;  // its bits
typedef uint16_t bhalf_t; // likewise

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

// ---- arithmetic of each type, whose numbers are computed as `wide`

// A macro, as C has no function for several types, and a type has no parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define ARITHMETIC(name, narrow, wide, load, store)                                    \
    static void name##_combine(void *numbers, const void *others, size_t count,        \
                               int op)                                                 \
    {                                                                                  \
        const narrow *from = others;                                                   \
        narrow *into = numbers;                                                        \
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
    static void name##_scale(void *numbers, size_t count, double scale)                \
    {                                                                                  \
        const wide by = load(store((wide)scale));                                      \
        narrow *into = numbers;                                                        \
        for (size_t i = 0; i < count; i++)                                             \
            into[i] = store(load(into[i]) * by);                                       \
    }                                                                                  \
    static double name##_number(const void *place)                                     \
    {                                                                                  \
        return (double)load(*(const narrow *)place);                                   \
    }

// Of integers, also division.
#define INTEGERS(name, narrow, wide)                                                   \
    ARITHMETIC(name, narrow, wide, SAME, (narrow))                                     \
    static void name##_divide(void *numbers, size_t count, int divisor)                \
    {                                                                                  \
        narrow *into = numbers;                                                        \
        for (size_t i = 0; i < count; i++)                                             \
            into[i] = (narrow)(into[i] / (narrow)divisor);                             \
    }
// NOLINTEND(bugprone-macro-parentheses)

#define SAME(number) (number)

INTEGERS(int8, int8_t, int64_t)
INTEGERS(uint8, uint8_t, uint64_t)
INTEGERS(int32, int32_t, int64_t)
INTEGERS(uint32, uint32_t, uint64_t)
INTEGERS(uint64, uint64_t, uint64_t)
ARITHMETIC(float32, float, float, SAME, SAME)
ARITHMETIC(float64, double, double, SAME, SAME)
ARITHMETIC(float16, half_t, float, from_half, to_half)
ARITHMETIC(bfloat16, bhalf_t, float, from_bhalf, to_bhalf)

// Sums and products of signed numbers wrap, so they are those of unsigned ones.
static void int64_combine(void *numbers, const void *others, size_t count, int op)
{
    const int64_t *from = others;
    int64_t *into = numbers;

    if (op != ncclMax && op != ncclMin) {
        uint64_combine(numbers, others, count, op);
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (op == ncclMax ? into[i] < from[i] : from[i] < into[i])
            into[i] = from[i];
}

static double int64_number(const void *place)
{
    return (double)*(const int64_t *)place;
}

static void int64_divide(void *numbers, size_t count, int divisor)
{
    int64_t *into = numbers;

    for (size_t i = 0; i < count; i++)
        into[i] /= divisor;
}

// ---- the types

static const struct type {
    const char *name;
    size_t bytes;
    // NULL: these numbers are moved alone.
    void (*combine)(void *into, const void *from, size_t count, int op);
    void (*scale)(void *numbers, size_t count, double scale);
    void (*divide)(void *numbers, size_t count, int divisor); // NULL: of floats
    double (*number)(const void *place);
} TYPES[] = {
    [ncclInt8] = {"int8", 1, int8_combine, int8_scale, int8_divide, int8_number},
    [ncclUint8] = {"uint8", 1, uint8_combine, uint8_scale, uint8_divide, uint8_number},
    [ncclInt32] = {"int32", 4, int32_combine, int32_scale, int32_divide, int32_number},
    [ncclUint32] = {"uint32", 4, uint32_combine, uint32_scale, uint32_divide,
                    uint32_number},
    [ncclInt64] = {"int64", 8, int64_combine, uint64_scale, int64_divide, int64_number},
    [ncclUint64] = {"uint64", 8, uint64_combine, uint64_scale, uint64_divide,
                    uint64_number},
    [ncclFloat16] = {"float16", 2, float16_combine, float16_scale, NULL,
                     float16_number},
    [ncclFloat32] = {"float32", 4, float32_combine, float32_scale, NULL,
                     float32_number},
    [ncclFloat64] = {"float64", 8, float64_combine, float64_scale, NULL,
                     float64_number},
    [ncclBfloat16] = {"bfloat16", 2, bfloat16_combine, bfloat16_scale, NULL,
                      bfloat16_number},
    [ncclFloat8e4m3] = {.name = "float8_e4m3", .bytes = 1},
    [ncclFloat8e5m2] = {.name = "float8_e5m2", .bytes = 1},
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
    return (unsigned)type < ncclNumTypes && TYPES[type].combine != NULL;
}

bool nccl_type_is_float(ncclDataType_t type)
{
    return TYPES[type].divide == NULL;
}

void nccl_combine(void *into, const void *from, size_t count, ncclDataType_t type,
                  int op)
{
    TYPES[type].combine(into, from, count, op);
}

void nccl_scale(void *numbers, size_t count, ncclDataType_t type, double scale)
{
    TYPES[type].scale(numbers, count, scale);
}

void nccl_divide(void *numbers, size_t count, ncclDataType_t type, int divisor)
{
    TYPES[type].divide(numbers, count, divisor);
}

double nccl_number(const void *place, ncclDataType_t type)
{
    return nccl_type_reduces(type) ? TYPES[type].number(place) : 0;
}
