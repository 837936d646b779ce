/* library.c - what the libraries above the driver ask of it (runtime.h): where bytes
 * lie, what is known of them, which line of the program calls.
 */
#include "libcuda/base/lock.h"
#include "libcuda/engine/wait.h"
#include "libcuda/memory/address.h"
#include "libcuda/memory/shadow.h"
#include "libcuda/memory/space.h"
#include "libcuda/session/config.h"
#include "libcuda/session/report.h"
#include "libcuda/session/session.h"
#include "runtime.h"
#include "sim.h"

#include <errno.h>
#include <stdatomic.h>

static void (*_Atomic line_of)(char *text, size_t bytes);
static _Atomic oomph_sim_place_t place_of;

// ---- memory

// Adds a piece, or makes the last one longer.
static bool add(oomph_sim_piece_t *pieces, size_t max_count, size_t *count,
                oomph_sim_piece_t piece)
{
    oomph_sim_piece_t *last = *count > 0 ? &pieces[*count - 1] : NULL;

    if (last != NULL && last->offset + last->bytes == piece.offset) {
        last->bytes += piece.bytes;
        return true;
    }
    if (*count == max_count)
        return false;
    pieces[(*count)++] = piece;
    return true;
}

size_t oomph_sim_pieces(uint64_t addr, uint64_t bytes, oomph_sim_piece_t *pieces,
                        size_t max_count)
{
    const uint64_t end = addr + bytes;
    size_t count = 0;

    while (addr < end) {
        const sim_mapping_t *mapping = sim_space_mapping(addr);
        if (mapping == NULL || mapping->handle->bytes_at.file >= 0)
            return 0;
        const uint64_t next = mapping->base + mapping->bytes;
        const oomph_sim_piece_t piece = {
            .offset = mapping->handle->bytes_at.offset + (addr - mapping->base),
            .bytes = (next < end ? next : end) - addr,
        };
        if (!add(pieces, max_count, &count, piece))
            return 0;
        addr += piece.bytes;
    }
    return count;
}

int oomph_sim_try_memory(void)
{
    int refusal = 0;

    sim_take_lock();
    if (sim_memory_is_real() && sim_bytes_file() < 0)
        refusal = errno;
    sim_address_reset(); // a child that comes before first use has its own
    sim_unlock();
    return refusal;
}

int oomph_sim_bytes_file(void)
{
    sim_lock();
    int file = sim_memory_is_real() ? sim_bytes_file() : -1;
    sim_unlock();
    return file;
}

int oomph_sim_has_bytes(void)
{
    return sim_memory_is_real();
}

uint64_t oomph_sim_peek(uint64_t addr, void *out, uint64_t bytes)
{
    return sim_shadow_read(addr, out, bytes);
}

int oomph_sim_peek_view(const oomph_sim_view_t *view, void *out)
{
    return sim_shadow_read_view(view, out);
}

int oomph_sim_look_view(const oomph_sim_view_t *view, void *out)
{
    sim_lock();
    int is_known = sim_shadow_read_view(view, out);
    sim_unlock();
    return is_known;
}

void oomph_sim_poke(uint64_t addr, const void *source, uint64_t bytes)
{
    if (source != NULL)
        sim_shadow_write(addr, source, bytes);
    else
        sim_shadow_forget(addr, bytes);
}

void oomph_sim_poke_zeros(uint64_t addr, uint64_t bytes)
{
    sim_shadow_zero(addr, bytes);
}

// ---- the card

double oomph_sim_fabric_bytes_per_s(void)
{
    return oomph_sim_has_nvlink() ? sim_config.fabric_bytes_per_s
                                  : sim_config.link_bytes_per_s;
}

int oomph_sim_has_nvlink(void)
{
    return sim_config.fabric_bytes_per_s > 0;
}

int oomph_sim_cc_major(void)
{
    return sim_config.cc_major;
}

// ---- what is reported

void oomph_sim_know_lines(void (*function)(char *text, size_t bytes))
{
    line_of = function;
}

void oomph_sim_line(char *text, size_t bytes)
{
    void (*function)(char *, size_t) = line_of;

    text[0] = '\0';
    if (function != NULL)
        function(text, bytes);
}

void oomph_sim_know_place(oomph_sim_place_t function)
{
    place_of = function;
}

int oomph_sim_place(char *text, size_t bytes, int *world_size)
{
    const oomph_sim_place_t function = place_of;

    text[0] = '\0';
    *world_size = 0;
    return function != NULL ? function(text, bytes, world_size) : 0;
}

int oomph_sim_is_at_rest(void)
{
    sim_lock();
    const bool is_at_rest = sim_queue_is_at_rest();
    sim_unlock();
    return is_at_rest;
}

void oomph_sim_report(const char *text)
{
    sim_misuse(CUDA_SUCCESS, "%s", text);
}
