/* foreign.h - the files of other processes, open as long as anything of them is in use.
 * The caller holds the driver's lock.
 */
#pragma once
#include <sys/stat.h>

// The file that `descriptor` refers to, open on its own; with one user more. -1 when
// the system refuses.
int sim_foreign_take(int descriptor, const struct stat *status);
void sim_foreign_give(int file);

// A file that a process has open, opened once more: with a position and locks of its
// own. -1 when the system refuses.
int sim_foreign_reopen(int process, int file);

void sim_foreign_reset(void);
