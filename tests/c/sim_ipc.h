/* sim_ipc.h - two processes: each test forks before the driver is used. The parent
 * exports, the child imports, and each says to the other through a pipe how far it is.
 */
#pragma once
#include "sim_check.h"

static int from_parent[2], from_child[2];

static inline void send(const int pipe_ends[2], const void *what, size_t bytes)
{
    CHECK(write(pipe_ends[1], what, bytes) == (ssize_t)bytes);
}

static inline void receive(const int pipe_ends[2], void *what, size_t bytes)
{
    CHECK(read(pipe_ends[0], what, bytes) == (ssize_t)bytes);
}

static inline void signal_to(const int pipe_ends[2])
{
    send(pipe_ends, "x", 1);
}

static inline void wait_for(const int pipe_ends[2])
{
    char mark;

    receive(pipe_ends, &mark, 1);
}

// Runs the child's part in a process of its own.
static inline pid_t begin(void (*child)(void))
{
    oomph_sim_reset();
    CHECK(pipe(from_parent) == 0 && pipe(from_child) == 0);
    pid_t process = fork();
    CHECK(process >= 0);
    if (process > 0)
        return process;
    child();
    _exit(0);
}

static inline void end(pid_t process)
{
    int status;

    CHECK(waitpid(process, &status, 0) == process);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int i = 0; i < 2; i++) {
        close(from_parent[i]);
        close(from_child[i]);
    }
}
