#include "libcuda/engine/answer.h"

#include "libcuda/engine/record.h"
#include "libcuda/engine/wait.h"
#include "libcuda/objects/work.h"
#include "libcuda/session/lock.h"
#include "libcuda/session/session.h"

static bool thread_is_running;

// Answers one question, if there is one.
static bool answer(void)
{
    sim_question_t question;
    sim_ticket_t ticket;
    sim_mark_t mark;

    if (!sim_record_find_asked(&mark, &ticket, &question))
        return false;
    sim_queue_run(ticket, question.until_ns);
    sim_mark_answer(&mark, &question);
    return true;
}

static void *run(void *nothing)
{
    (void)nothing;
    sim_lock();
    while (sim_record_is_any()) {
        if (!answer())
            sim_wait(1);
    }
    thread_is_running = false;
    sim_unlock();
    return NULL;
}

CUresult sim_answer_begin(sim_mark_t *mark)
{
    return sim_start_thread(&thread_is_running, run) ? sim_record_begin(mark)
                                                     : CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_answer_reset(void)
{
    sim_record_reset();
    while (thread_is_running)
        sim_wait(1);
}
