#include "libcuda/memory/foreign.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

// The file of another process, open as long as anything of it is in use.
typedef struct foreign {
    struct foreign *next;
    dev_t device;
    ino_t inode;
    int file;
    size_t user_count;
} foreign_t;

static foreign_t *foreigners;

int sim_foreign_reopen(int process, int file)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, file);
    return open(path, O_RDWR | O_CLOEXEC);
}

static foreign_t *find_foreign(const struct stat *status)
{
    foreign_t *found = foreigners;

    while (found != NULL &&
           (found->device != status->st_dev || found->inode != status->st_ino))
        found = found->next;
    return found;
}

int sim_foreign_take(int descriptor, const struct stat *status)
{
    foreign_t *found = find_foreign(status);

    if (found == NULL) {
        found = calloc(1, sizeof *found);
        if (found == NULL)
            return -1;
        found->device = status->st_dev;
        found->inode = status->st_ino;
        found->file = sim_foreign_reopen(getpid(), descriptor);
        if (found->file < 0) {
            free(found);
            return -1;
        }
        found->next = foreigners;
        foreigners = found;
    }
    found->user_count++;
    return found->file;
}

void sim_foreign_give(int file)
{
    foreign_t **link = &foreigners;

    while ((*link)->file != file)
        link = &(*link)->next;
    foreign_t *foreign = *link;
    if (--foreign->user_count > 0)
        return;
    *link = foreign->next;
    close(foreign->file);
    free(foreign);
}

void sim_foreign_reset(void)
{
    while (foreigners != NULL) {
        foreigners->user_count = 1;
        sim_foreign_give(foreigners->file);
    }
}
