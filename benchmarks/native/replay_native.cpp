// Replays a recorded step through PyTorch's own allocator, as replay_oomph.c does
// through the core.
#include "trace.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>

namespace native = c10::cuda::CUDACachingAllocator;

namespace
{

void replay(int from, int to)
{
    for (int i = from; i < to; i++) {
        const event_t &event = events[i];
        if (event.kind == 'f') {
            native::raw_delete(slots[event.slot]);
            slots[event.slot] = nullptr;
            continue;
        }
        slots[event.slot] = native::raw_alloc_with_stream(event.bytes, nullptr);
    }
}

} // namespace

// A name of its own, so that instructions can be counted inside of it alone.
extern "C" __attribute__((noinline)) void replay_step()
{
    replay(step_begin, event_count);
}

int main(int argc, char **argv)
{
    int device_count = 0;
    double best = 1e18;

    if (argc != 4 || cudaGetDeviceCount(&device_count) != cudaSuccess)
        return 2;
    native::init(device_count);
    read_trace(argv[1]);
    replay(0, step_begin);
    int unmatched = close_the_circle();
    for (int i = 0; i < std::atoi(argv[2]); i++)
        replay(step_begin, event_count);
    for (int i = 0; i < std::atoi(argv[3]); i++) {
        auto start = std::chrono::steady_clock::now();
        replay_step();
        std::chrono::duration<double, std::nano> ns =
            std::chrono::steady_clock::now() - start;
        best = std::min(best, ns.count());
    }
    std::printf("ns %.0f\nevents %d\nunmatched %d\n", best, event_count - step_begin,
                unmatched);
    return 0;
}
