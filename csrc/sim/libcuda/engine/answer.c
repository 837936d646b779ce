#include "libcuda/engine/answer.h"

#include "libcuda/engine/queue.h"
#include "libcuda/session/lock.h"
#include "libcuda/session/session.h"

#include <stdlib.h>

typedef struct pending {
    struct pending *next;
    sim_mark_t mark;
    sim_ticket_t ticket;
} pending_t;

static pending_t *pending;
static bool thread_is_running;

static pending_t **find(const sim_mark_t *mark)
{
    pending_t **link = &pending;

    while (*link != NULL &&
           ((*link)->mark.slot != mark->slot || (*link)->mark.number != mark->number))
        link = &(*link)->next;
    return link;
}

// Answers one question, if there is one: the list may be another after that.
static bool answer(void)
{
    sim_question_t question;

    for (pending_t *one = pending; one != NULL; one = one->next) {
        const sim_mark_t mark = one->mark;
        if (!sim_mark_question(&mark, &question))
            continue;
        sim_queue_run(one->ticket, question.until_ns);
        sim_mark_answer(&mark, &question);
        return true;
    }
    return false;
}

static void *run(void *nothing)
{
    (void)nothing;
    sim_lock();
    while (pending != NULL) {
        if (!answer())
            sim_wait(1);
    }
    thread_is_running = false;
    sim_unlock();
    return NULL;
}

CUresult sim_answer_begin(sim_mark_t *mark)
{
    pending_t *added = calloc(1, sizeof *added);

    if (added == NULL || !sim_start_thread(&thread_is_running, run)) {
        free(added);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_mark_begin(mark);
    *added = (pending_t){.next = pending, .mark = *mark};
    pending = added;
    return CUDA_SUCCESS;
}

void sim_answer_place(const sim_mark_t *mark, sim_ticket_t ticket)
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

void sim_answer_end(const sim_mark_t *mark)
{
    pending_t **link = find(mark), *ended = *link;

    if (ended != NULL)
        *link = ended->next;
    free(ended);
    sim_mark_end(mark, !is_pending(mark));
}

void sim_answer_reset(void)
{
    while (pending != NULL) {
        pending_t *ended = pending;
        pending = ended->next;
        free(ended);
    }
    while (thread_is_running)
        sim_wait(1);
}
