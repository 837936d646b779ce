/* lock.h - the lock that guards all state of the simulation. */
#pragma once
#include <stdbool.h>

// The lock alone, whatever the card; sim_lock() of session.h reads that first.
void sim_take_lock(void);
void sim_unlock(void);

// Gives the lock away while waiting for something that other threads do, at most
// `milliseconds`. sim_end_wait() ends the wait.
void sim_wait(unsigned milliseconds);
void sim_end_wait(void);

// Gives the lock away, and the processor.
void sim_yield(void);

// Has a thread of its own run a function that ends when it finds no more to do, unless
// one does already. The function clears `is_running`, with the lock, which the caller
// holds too. False: there can be no thread.
bool sim_start_thread(bool *is_running, void *(*run)(void *));
