/* foreign.h - files that processes share: those of others, open as long as anything of
 * them is in use, and the labels in each that say what is known of exported memory. The
 * caller holds the driver's lock.
 *
 * A label is locked by whoever may still use the piece: each exported descriptor, each
 * process that has imported it. The system gives locks up when a process ends, however
 * it ends.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

// The file that `descriptor` refers to, open on its own; with one user more. -1 when
// the system refuses.
int sim_foreign_take(int descriptor, const struct stat *status);
void sim_foreign_give(int file);

// A file that a process has open, opened once more: with a position and locks of its
// own. -1 when the system refuses.
int sim_foreign_reopen(int process, int file);

typedef struct sim_label {
    uint64_t offset, bytes; // of the memory, in the file
    uint64_t handle;        // its value in the process that exported it
    int32_t device;         // in the machine (visible_devices.h)
    int32_t is_real;        // whether there are bytes
} sim_label_t;

// Writes a label into the file of this process; gives its place, 0 if the system
// refuses.
uint64_t sim_label_add(const sim_label_t *label);

// The label at a place of any process's file. False if there is none.
bool sim_label_read(int file, uint64_t place, sim_label_t *label);

// The lock goes with `file`, an opening of the file.
bool sim_label_lock(int file, uint64_t place);
void sim_label_unlock(int file, uint64_t place);

// Whether anybody has locked a label of this process.
bool sim_label_is_used(uint64_t place);

void sim_foreign_reset(void);
