/* util.h - what every file may use: rounding, asserts, the error text, the clock. */
#pragma once
#include "oomph.h"

#include <assert.h>
#include <time.h>

#define oomph_assert(condition) assert(condition)

enum { OOMPH_ROUND_BYTES = 512 }; // sizes and addresses of blocks are multiples of it
#define OOMPH_SMALL_MAX                                                                \
    ((size_t)1 << 20) // bytes; larger blocks have pools of their own
#define OOMPH_CHUNK_BYTES ((size_t)1 << 30) // alignment of reserved address space

// Of a function that is seldom called: the compiler keeps it off the path of what is
// called for every block, and has room there for what is.
#define OOMPH_COLD __attribute__((cold))

// Sets the error text of this thread and returns `status`, so that a function can say
// `return oomph_fail(...)`.
oomph_status_t oomph_fail(oomph_status_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

static inline size_t oomph_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t oomph_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static inline int64_t oomph_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

// `unit` is a power of two.
static inline uint64_t oomph_round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

static inline uint64_t oomph_round_down(uint64_t value, uint64_t unit)
{
    return value & ~(unit - 1);
}

static inline int64_t oomph_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// A size for people, such as "1.50 GiB".
typedef struct oomph_size_text {
    char text[24];
} oomph_size_text_t;
oomph_size_text_t oomph_size_text(uint64_t bytes);

// Zeroed memory for records, in huge pages where the system has them: records are
// looked up at random. NULL if there is none.
void *oomph_map(size_t bytes);
void oomph_unmap(void *memory, size_t bytes);

static inline bool oomph_same_pool(oomph_pool_id_t a, oomph_pool_id_t b)
{
    return a.first == b.first && a.second == b.second;
}

// Whether it is neither a graph capture's nor a MemPool's.
static inline bool oomph_is_default_pool(oomph_pool_id_t id)
{
    return (id.first | id.second) == 0;
}
