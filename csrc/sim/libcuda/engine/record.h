/* record.h - records of shared marks that are pending here. The caller holds the
 * driver's lock.
 */
#pragma once
#include "libcuda/objects/work.h"

// Begins a record of the mark, which a stream is given next; `number` becomes that of
// the record. Errors: OUT_OF_MEMORY.
CUresult sim_record_begin(sim_mark_t *mark);

// The record's place in its stream, once it is known.
void sim_record_place(const sim_mark_t *mark, sim_ticket_t ticket);

// The record is done, or was not given to a stream after all.
void sim_record_end(const sim_mark_t *mark);

bool sim_record_is_any(void);

// A record that another process asks for. False if there is none.
bool sim_record_find_asked(sim_mark_t *mark, sim_ticket_t *ticket,
                           sim_question_t *question);

void sim_record_reset(void);
