#include "libcuda/memory/space.h"

#include "libcuda/base/slab.h"
#include "libcuda/memory/address.h"
#include "libcuda/session/config.h"

#include <stdlib.h>

static sim_ranges_t reservations;
static sim_slab_t mappings = {.object_bytes = sizeof(sim_mapping_t)};

// Reservations may end within a page; addresses and slots go by whole pages.
static uint64_t page_count(uint64_t bytes)
{
    return (bytes + SIM_PAGE - 1) / SIM_PAGE;
}

static size_t slot_of(const sim_reservation_t *reservation, uint64_t addr)
{
    return (addr - reservation->range.base) / SIM_PAGE;
}

static void give_addresses(const sim_reservation_t *reservation)
{
    sim_address_give(reservation->range.base,
                     page_count(reservation->range.bytes) * SIM_PAGE);
}

sim_reservation_t *sim_space_reserve(uint64_t bytes, uint64_t alignment)
{
    const uint64_t address_space = 1ull << 47;

    if (bytes > address_space || alignment > address_space)
        return NULL;
    sim_reservation_t *reservation = calloc(1, sizeof *reservation);
    if (reservation == NULL)
        return NULL;
    reservation->range.bytes = bytes;
    reservation->range.base = sim_address_take(page_count(bytes) * SIM_PAGE, alignment);
    if (reservation->range.base == 0)
        goto undo_reservation;
    // Large tables come zeroed from the system and cost nothing until touched.
    reservation->slots = calloc(page_count(bytes), sizeof(sim_mapping_t *));
    if (reservation->slots == NULL)
        goto undo_address;
    if (!sim_ranges_add(&reservations, &reservation->range))
        goto undo_slots;
    return reservation;

undo_slots:
    free(reservation->slots);
undo_address:
    give_addresses(reservation);
undo_reservation:
    free(reservation);
    return NULL;
}

void sim_space_unreserve(sim_reservation_t *reservation)
{
    sim_ranges_remove(&reservations, &reservation->range);
    give_addresses(reservation);
    free(reservation->slots);
    free(reservation);
}

sim_reservation_t *sim_space_find(uint64_t addr)
{
    return (sim_reservation_t *)sim_ranges_find(&reservations, addr);
}

sim_mapping_t *sim_space_mapping(uint64_t addr)
{
    const sim_reservation_t *reservation = sim_space_find(addr);

    return reservation ? reservation->slots[slot_of(reservation, addr)] : NULL;
}

int sim_space_place(uint64_t addr)
{
    const sim_mapping_t *mapping = sim_space_mapping(addr);

    if (mapping == NULL || sim_handle_is_on_host(mapping->handle))
        return SIM_ON_HOST;
    return mapping->handle->prop.location.id;
}

bool sim_space_has_bytes(uint64_t addr)
{
    return sim_memory_is_real() || sim_space_find(addr) == NULL;
}

// Where the bytes at an address lie, and how many of `bytes` follow there. False if
// they are the host's own.
static bool find_bytes(uint64_t addr, uint64_t *bytes, sim_bytes_t *at)
{
    const sim_mapping_t *mapping = sim_space_mapping(addr);

    if (mapping == NULL)
        return false;
    uint64_t offset = addr - mapping->base;
    *at = mapping->handle->bytes_at;
    at->offset += offset;
    if (*bytes > mapping->bytes - offset)
        *bytes = mapping->bytes - offset;
    return true;
}

uint64_t sim_space_unwritten(uint64_t addr, uint64_t bytes)
{
    sim_bytes_t at;

    return find_bytes(addr, &bytes, &at) ? sim_bytes_unwritten(&at, bytes) : 0;
}

uint64_t sim_space_written(uint64_t addr, uint64_t bytes)
{
    sim_bytes_t at;

    return find_bytes(addr, &bytes, &at) ? sim_bytes_written(&at, bytes) : bytes;
}

static void fill_slots(sim_reservation_t *reservation, const sim_mapping_t *mapping,
                       sim_mapping_t *value)
{
    size_t first = slot_of(reservation, mapping->base);

    for (size_t i = 0; i < mapping->bytes / SIM_PAGE; i++)
        reservation->slots[first + i] = value;
}

CUresult sim_space_map(sim_reservation_t *reservation, uint64_t addr, uint64_t bytes,
                       sim_handle_t *handle)
{
    sim_mapping_t *mapping = sim_slab_take(&mappings);

    if (mapping == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_bytes_map(addr, bytes, &handle->bytes_at)) {
        sim_slab_give(&mappings, &mapping->object);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *mapping = (sim_mapping_t){
        .object = mapping->object,
        .base = addr,
        .bytes = bytes,
        .handle = handle,
    };
    fill_slots(reservation, mapping, mapping);
    reservation->mapping_count++;
    sim_handle_map(handle);
    return CUDA_SUCCESS;
}

CUresult sim_space_unmap(sim_reservation_t *reservation, sim_mapping_t *mapping)
{
    if (!sim_bytes_unmap(mapping->base, mapping->bytes))
        return CUDA_ERROR_OPERATING_SYSTEM;
    fill_slots(reservation, mapping, NULL);
    reservation->mapping_count--;
    sim_handle_unmap(mapping->handle);
    sim_slab_give(&mappings, &mapping->object);
    return CUDA_SUCCESS;
}

CUresult sim_space_allow(sim_mapping_t *mapping, int device, CUmemAccess_flags flags)
{
    unsigned bit = device >= 0 ? 1u << device : 0;
    bool read = flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    bool write = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    sim_mapping_t wanted = *mapping;

    wanted.readers = read ? wanted.readers | bit : wanted.readers & ~bit;
    wanted.writers = write ? wanted.writers | bit : wanted.writers & ~bit;
    if (device < 0) {
        wanted.host_reads = read;
        wanted.host_writes = write;
    }
    if (!sim_bytes_allow(mapping->base, mapping->bytes,
                         wanted.readers != 0 || wanted.host_reads,
                         wanted.writers != 0 || wanted.host_writes))
        return CUDA_ERROR_OPERATING_SYSTEM;
    *mapping = wanted;
    return CUDA_SUCCESS;
}

sim_check_t sim_space_check(uint64_t addr, uint64_t bytes, int device, bool write,
                            uint64_t *bad)
{
    const sim_reservation_t *reservation = sim_space_find(addr);
    uint64_t at = addr, end = addr + bytes;

    if (reservation == NULL)
        return SIM_CHECK_OUTSIDE;
    while (at < end) {
        *bad = at;
        if (at - reservation->range.base >= reservation->range.bytes)
            return SIM_CHECK_NOT_MAPPED;
        const sim_mapping_t *mapping = reservation->slots[slot_of(reservation, at)];
        if (mapping == NULL)
            return SIM_CHECK_NOT_MAPPED;
        unsigned allowed = write ? mapping->writers : mapping->readers;
        if (!(allowed >> device & 1))
            return SIM_CHECK_NO_ACCESS;
        at = mapping->base + mapping->bytes;
    }
    return SIM_CHECK_GOOD;
}

sim_reservation_t *sim_space_at(size_t place)
{
    return place < reservations.count ? (sim_reservation_t *)reservations.items[place]
                                      : NULL;
}

uint64_t sim_space_mapping_count(void)
{
    return mappings.live_count;
}

size_t sim_space_reservation_count(void)
{
    return reservations.count;
}

void sim_space_reset(void)
{
    while (reservations.count > 0) {
        sim_reservation_t *reservation = sim_space_at(reservations.count - 1);
        sim_bytes_unmap(reservation->range.base, reservation->range.bytes);
        sim_space_unreserve(reservation);
    }
    sim_slab_give_all(&mappings);
}
