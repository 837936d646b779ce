#include "libcuda/objects/user.h"

#include "libcuda/base/lock.h"

#include <stdlib.h>
#include <string.h>

// What is to be called, without the lock, as it may wait for other threads.
typedef struct ending {
    CUhostFn destroy;
    void *argument;
    struct ending *next;
} ending_t;

enum { END_PATIENCE_MS = 2000 };

static sim_slab_t objects = {.object_bytes = sizeof(struct CUuserObject_st)};
static ending_t *endings;
static bool thread_is_running, is_over;

// When the program ends what it would call is taken apart, too. A fork does not have
// the thread, and what it calls may wait for what has ended.
static void stop(void)
{
    sim_take_lock();
    is_over = true;
    for (unsigned ms = 0; thread_is_running && ms < END_PATIENCE_MS; ms++)
        sim_wait(1);
    sim_unlock();
}

static void *run_endings(void *nothing)
{
    (void)nothing;
    sim_take_lock();
    while (endings != NULL) {
        ending_t *ending = endings;
        endings = ending->next;
        sim_unlock();
        ending->destroy(ending->argument);
        free(ending);
        sim_take_lock();
    }
    thread_is_running = false;
    sim_unlock();
    return NULL;
}

CUuserObject sim_user_create(CUhostFn destroy, void *argument, unsigned hold_count)
{
    static bool stops;
    CUuserObject user = sim_slab_take(&objects);

    if (user == NULL)
        return NULL;
    stops = stops || atexit(stop) == 0;
    user->destroy = destroy;
    user->argument = argument;
    user->hold_count = hold_count;
    return user;
}

// Without memory or a thread, or at the end, the object is left as it is: whoever made
// it loses it.
static void end(CUuserObject user)
{
    ending_t *ending = is_over ? NULL : malloc(sizeof *ending);

    if (ending != NULL) {
        *ending = (ending_t){user->destroy, user->argument, endings};
        endings = ending;
        sim_start_thread(&thread_is_running, run_endings);
    }
    sim_slab_give(&objects, &user->object);
}

bool sim_user_release(CUuserObject user, unsigned count)
{
    if (count > user->hold_count)
        return false;
    user->hold_count -= count;
    if (user->hold_count == 0)
        end(user);
    return true;
}

// ---- sets of them

bool sim_users_add(sim_users_t *users, CUuserObject user, unsigned count)
{
    for (size_t i = 0; i < users->count; i++)
        if (users->items[i].user == user) {
            users->items[i].count += count;
            return true;
        }
    sim_held_user_t *grown =
        realloc(users->items, (users->count + 1) * sizeof *users->items);
    if (grown == NULL)
        return false;
    users->items = grown;
    users->items[users->count++] = (sim_held_user_t){user, count};
    return true;
}

bool sim_users_release(sim_users_t *users, CUuserObject user, unsigned count)
{
    for (size_t i = 0; i < users->count; i++) {
        sim_held_user_t *held = &users->items[i];
        if (held->user != user || held->count < count)
            continue;
        held->count -= count;
        if (held->count == 0)
            *held = users->items[--users->count];
        return sim_user_release(user, count);
    }
    return false;
}

bool sim_users_copy(sim_users_t *users, const sim_users_t *from)
{
    *users = (sim_users_t){0};
    if (from->count == 0)
        return true;
    users->items = malloc(from->count * sizeof *users->items);
    if (users->items == NULL)
        return false;
    users->count = from->count;
    memcpy(users->items, from->items, from->count * sizeof *users->items);
    for (size_t i = 0; i < users->count; i++)
        users->items[i].user->hold_count += users->items[i].count;
    return true;
}

void sim_users_clear(sim_users_t *users)
{
    for (size_t i = 0; i < users->count; i++)
        sim_user_release(users->items[i].user, users->items[i].count);
    free(users->items);
    *users = (sim_users_t){0};
}

void sim_user_reset(void)
{
    sim_slab_give_all(&objects);
}
