/* Objects of the program that graphs hold (cuUserObjectCreate()). */
#include "sim_check.h"

#include <stdatomic.h>
#include <time.h>

static atomic_int destroyed;

static void destroy(void *argument)
{
    atomic_fetch_add(&destroyed, *(int *)argument);
}

// Another thread destroys.
static bool is_destroyed(int times)
{
    const struct timespec while_ = {.tv_nsec = 1000000};

    for (int i = 0; i < 2000 && atomic_load(&destroyed) != times; i++)
        nanosleep(&while_, NULL);
    return atomic_load(&destroyed) == times;
}

static int one = 1;

static CUuserObject new_user(unsigned count)
{
    CUuserObject user;

    start(NULL);
    atomic_store(&destroyed, 0);
    OK(cuUserObjectCreate(&user, &one, destroy, count,
                          CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    return user;
}

static CUgraph empty_graph(void)
{
    CUgraph graph;
    CUstream stream;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuStreamDestroy(stream));
    return graph;
}

static void test_the_last_release_destroys_it(void)
{
    CUuserObject user = new_user(2);

    OK(cuUserObjectRetain(user, 1));
    OK(cuUserObjectRelease(user, 2));
    CHECK(is_destroyed(0));
    OK(cuUserObjectRelease(user, 1));
    CHECK(is_destroyed(1));
    CHECK_RESULT(cuUserObjectRelease(user, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK(misuse_says("was destroyed"));
}

static void test_graphs_hold_it_and_so_does_what_is_made_of_them(void)
{
    CUuserObject user = new_user(1);
    CUgraph graph = empty_graph();
    CUgraphExec exec;

    OK(cuGraphRetainUserObject(graph, user, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    CHECK(is_destroyed(0));
    OK(cuGraphExecDestroy(exec));
    CHECK(is_destroyed(1));
}

static void test_a_graph_may_give_it_back(void)
{
    CUuserObject user = new_user(1);
    CUgraph graph = empty_graph();

    OK(cuGraphRetainUserObject(graph, user, 2, 0));
    OK(cuUserObjectRelease(user, 1));
    CHECK_RESULT(cuGraphReleaseUserObject(graph, user, 3), CUDA_ERROR_INVALID_VALUE);
    CHECK(misuse_says("is not held 3 times"));
    OK(cuGraphReleaseUserObject(graph, user, 2));
    CHECK(is_destroyed(1));
    OK(cuGraphDestroy(graph));
    CHECK(is_destroyed(1));
}

static void test_wrong_arguments_are_refused(void)
{
    CUuserObject user = new_user(1), other;
    CUgraph graph = empty_graph();

    CHECK_RESULT(cuUserObjectCreate(&other, &one, destroy, 1, 0),
                 CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuUserObjectCreate(&other, &one, NULL, 1, 1),
                 CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuUserObjectRetain(NULL, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuUserObjectRetain(user, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_RESULT(cuGraphRetainUserObject(graph, user, 1, 8), CUDA_ERROR_INVALID_VALUE);
    CHECK(is_destroyed(0));
}

int main(void)
{
    run(test_the_last_release_destroys_it);
    run(test_graphs_hold_it_and_so_does_what_is_made_of_them);
    run(test_a_graph_may_give_it_back);
    run(test_wrong_arguments_are_refused);
    return finish();
}
