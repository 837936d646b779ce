/* trace.h - a recorded step, to be replayed any number of times.
 *
 * The file has a line for each event: `a ID BYTES` allocates, `f ID` frees; `w` begins
 * the step that is replayed, after what came before it. What the step frees of earlier
 * steps is, from the second turn on, what it left alive itself: blocks are matched by
 * size, so that each turn begins as the last one ended.
 */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EVENTS_MAX = 400000, BLOCKS_MAX = 200000 };

typedef struct event {
    char kind; // a, f
    int slot;  // where the address is kept
    size_t bytes;
} event_t;

static event_t events[EVENTS_MAX];
static void *slots[BLOCKS_MAX];
static size_t slot_bytes[BLOCKS_MAX];
static int event_count, step_begin;

// Reads the trace; exits if it cannot.
static void read_trace(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[128];

    if (file == NULL) {
        perror(path);
        exit(1);
    }
    while (fgets(line, sizeof line, file) != NULL && event_count < EVENTS_MAX) {
        event_t *event = &events[event_count];
        if (line[0] == 'w') {
            step_begin = event_count;
            continue;
        }
        event->kind = line[0];
        event->slot = (int)strtol(line + 2, NULL, 10);
        if (event->kind == 'a')
            event->bytes = strtoull(strchr(line + 2, ' '), NULL, 10);
        event_count++;
    }
    fclose(file);
}

// Gives the blocks that the step leaves alive the slots of those of the same size that
// it frees but did not allocate. Returns how many could not be matched.
static int close_the_circle(void)
{
    static char made[BLOCKS_MAX], freed[BLOCKS_MAX];
    int unmatched = 0;

    for (int i = 0; i < event_count; i++)
        if (events[i].kind == 'a')
            slot_bytes[events[i].slot] = events[i].bytes;
    for (int i = step_begin; i < event_count; i++)
        (events[i].kind == 'a' ? made : freed)[events[i].slot] = 1;
    for (int i = step_begin; i < event_count; i++) {
        int slot = events[i].slot;
        if (events[i].kind != 'f' || made[slot])
            continue;
        int k = step_begin;
        while (k < event_count && !(events[k].kind == 'a' && !freed[events[k].slot] &&
                                    events[k].bytes == slot_bytes[slot]))
            k++;
        if (k == event_count) {
            unmatched++;
            continue;
        }
        freed[events[k].slot] = 1;
        events[k].slot = slot;
    }
    return unmatched;
}

#ifdef __cplusplus
}
#endif
