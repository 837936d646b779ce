/* user.h - objects of the program that graphs hold (CUuserObject): once nobody holds
 * one any more, a thread of the driver calls what destroys it. The caller holds the
 * driver's lock.
 */
#pragma once
#include "libcuda/base/cuda_api.h"
#include "libcuda/base/slab.h"

struct CUuserObject_st {
    sim_object_t object;
    unsigned hold_count;
    CUhostFn destroy;
    void *argument;
};

// What a graph holds, and how often.
typedef struct sim_held_user {
    CUuserObject user;
    unsigned count;
} sim_held_user_t;

typedef struct sim_users {
    sim_held_user_t *items;
    size_t count;
} sim_users_t;

// NULL when the host has no memory.
CUuserObject sim_user_create(CUhostFn destroy, void *argument, unsigned hold_count);

// False: it is not held so often.
bool sim_user_release(CUuserObject user, unsigned count);

// Adds to what the set holds, which the caller has counted. False: the host has no
// memory.
bool sim_users_add(sim_users_t *users, CUuserObject user, unsigned count);

// Takes from what the set holds, and releases. False: it does not hold it so often.
bool sim_users_release(sim_users_t *users, CUuserObject user, unsigned count);

// An empty set holds all that another does. False: the host has no memory.
bool sim_users_copy(sim_users_t *users, const sim_users_t *from);
void sim_users_clear(sim_users_t *users);

// Forgets all objects; nothing is called.
void sim_user_reset(void);
