#include "libcuda/engine/event_queue.h"

#include "libcuda/objects/stream.h"

#include <stdlib.h>

static sim_operation_t **heap;
static size_t count, capacity;

static bool ends_before(const sim_operation_t *a, const sim_operation_t *b)
{
    return a->end_ns != b->end_ns ? a->end_ns < b->end_ns : a->sequence < b->sequence;
}

static void swap(size_t a, size_t b)
{
    sim_operation_t *held = heap[a];

    heap[a] = heap[b];
    heap[b] = held;
}

static void sift_up(size_t place)
{
    while (place > 0 && ends_before(heap[place], heap[(place - 1) / 2])) {
        swap(place, (place - 1) / 2);
        place = (place - 1) / 2;
    }
}

static void sift_down(size_t place)
{
    for (;;) {
        size_t first = place, left = 2 * place + 1;
        if (left < count && ends_before(heap[left], heap[first]))
            first = left;
        if (left + 1 < count && ends_before(heap[left + 1], heap[first]))
            first = left + 1;
        if (first == place)
            return;
        swap(place, first);
        place = first;
    }
}

bool sim_event_queue_push(sim_operation_t *operation)
{
    if (count == capacity) {
        size_t wanted = capacity ? capacity * 2 : 64;
        sim_operation_t **grown = realloc(heap, wanted * sizeof(sim_operation_t *));
        if (grown == NULL)
            return false;
        heap = grown;
        capacity = wanted;
    }
    heap[count++] = operation;
    sift_up(count - 1);
    return true;
}

sim_operation_t *sim_event_queue_top(void)
{
    return count > 0 ? heap[0] : NULL;
}

sim_operation_t *sim_event_queue_pop(void)
{
    sim_operation_t *top = heap[0];

    heap[0] = heap[--count];
    sift_down(0);
    return top;
}

void sim_event_queue_clear(void)
{
    count = 0;
}
