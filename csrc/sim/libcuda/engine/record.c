#include "libcuda/engine/record.h"

#include "libcuda/objects/mark.h"

#include <stdlib.h>

// A record, until it is done.
typedef struct pending {
    struct pending *next;
    sim_mark_t mark;
    sim_ticket_t ticket;
} pending_t;

static pending_t *pending;

static pending_t **find(const sim_mark_t *mark)
{
    pending_t **link = &pending;

    while (*link != NULL &&
           ((*link)->mark.slot != mark->slot || (*link)->mark.number != mark->number))
        link = &(*link)->next;
    return link;
}

CUresult sim_record_begin(sim_mark_t *mark)
{
    pending_t *added = calloc(1, sizeof *added);

    if (added == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_mark_begin(mark);
    *added = (pending_t){.next = pending, .mark = *mark};
    pending = added;
    return CUDA_SUCCESS;
}

void sim_record_place(const sim_mark_t *mark, sim_ticket_t ticket)
{
    pending_t *placed = *find(mark);

    if (placed != NULL) // it may be done already
        placed->ticket = ticket;
}

static bool is_pending(const sim_mark_t *mark)
{
    const pending_t *one = pending;

    while (one != NULL && one->mark.slot != mark->slot)
        one = one->next;
    return one != NULL;
}

void sim_record_end(const sim_mark_t *mark)
{
    pending_t **link = find(mark), *ended = *link;

    if (ended != NULL)
        *link = ended->next;
    free(ended);
    sim_mark_end(mark, !is_pending(mark));
}

bool sim_record_is_any(void)
{
    return pending != NULL;
}

bool sim_record_find_asked(sim_mark_t *mark, sim_ticket_t *ticket,
                           sim_question_t *question)
{
    for (const pending_t *one = pending; one != NULL; one = one->next) {
        if (!sim_mark_question(&one->mark, question))
            continue;
        *mark = one->mark;
        *ticket = one->ticket;
        return true;
    }
    return false;
}

void sim_record_reset(void)
{
    while (pending != NULL) {
        pending_t *ended = pending;
        pending = ended->next;
        free(ended);
    }
}
