/* mark.h - marks that several processes know: what an event stands for that they share.
 * The caller holds the driver's lock.
 *
 * A mark lies in memory that all of them have mapped. It says how often it was
 * recorded, how many of these records are done, and when the last of them was. Who has
 * recorded it holds a lock on it until that is done; the system gives the lock up when
 * the process ends, and then there is nothing to wait for.
 *
 * Work is done only when the clock of its process moves. So who waits asks, and the
 * other process lets its work be done up to a time.
 *
 * Clocks of processes start when they start. When one of them first opens a mark, its
 * clock stands where that of the other stood when it described the mark; what is sent
 * from then on is sent in this common time.
 */
#pragma once
#include "libcuda/base/cuda_api.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_mark {
    struct sim_board *board; // NULL: no mark
    struct sim_slot *slot;
    uint64_t number; // the record that is meant; 0: none
} sim_mark_t;

// Times to ask for: one that somebody waits for, so that held streams are released, and
// whatever work comes to without that.
#define SIM_MARK_FOR_EVER UINT64_MAX
#define SIM_MARK_FREELY (UINT64_MAX - 1)

// A new mark of this process, never recorded. Errors: OUT_OF_MEMORY.
CUresult sim_mark_take(sim_mark_t *mark);

// The mark as plain bytes, for as long as the process lives that took it.
enum { SIM_MARK_TEXT = 64 };
void sim_mark_describe(const sim_mark_t *mark, char text[SIM_MARK_TEXT]);
CUresult sim_mark_open(const char text[SIM_MARK_TEXT], sim_mark_t *mark);

// The latest record of the mark, by whatever process.
sim_mark_t sim_mark_latest(const sim_mark_t *mark);

// This process records the mark: `number` becomes that of the new record. Then the
// record is done; with the last one that is pending here the lock goes.
void sim_mark_begin(sim_mark_t *mark);
void sim_mark_end(const sim_mark_t *mark, bool is_last);

// Whether the record is done, and when it was.
bool sim_mark_is_done(const sim_mark_t *mark);
uint64_t sim_mark_end_ns(const sim_mark_t *mark);

// Asks the process that has recorded the mark to come so far, at most to `until_ns`.
// Gives the question's number, 0 if the record is done.
uint64_t sim_mark_call_for(const sim_mark_t *mark, uint64_t until_ns);

// Asks, and gives the lock away until the process has answered.
void sim_mark_ask(sim_mark_t mark, uint64_t until_ns);

// What other processes ask for of a record that is pending here: false if nothing.
// sim_mark_answer() ends their wait.
typedef struct sim_question {
    uint64_t number, until_ns;
} sim_question_t;
bool sim_mark_question(const sim_mark_t *mark, sim_question_t *question);
void sim_mark_answer(const sim_mark_t *mark, const sim_question_t *question);

void sim_mark_reset(void);
