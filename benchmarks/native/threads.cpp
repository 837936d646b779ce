// Threads that allocate and free through PyTorch's interface, each on a stream of its
// own, without the GIL: whichever allocator the process has.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <thread>
#include <vector>

namespace native = c10::cuda::CUDACachingAllocator;

namespace
{

constexpr int LIVE = 16; // blocks that each thread holds

void work(cudaStream_t stream, int pairs, unsigned seed)
{
    void *blocks[LIVE] = {};
    for (int i = 0; i < pairs; i++) {
        seed = seed * 1664525u + 1013904223u;
        void *&block = blocks[(seed >> 16) % LIVE];
        native::raw_delete(block);
        block = native::raw_alloc_with_stream(512u << ((seed >> 24) % 8), stream);
    }
    for (void *block : blocks)
        native::raw_delete(block);
}

} // namespace

// Pairs of allocate and free per second, of all threads together.
extern "C" __attribute__((visibility("default"))) double run_threads(int count,
                                                                     int pairs)
{
    std::vector<c10::cuda::CUDAStream> streams;
    for (int i = 0; i < count; i++)
        streams.push_back(c10::cuda::getStreamFromPool());
    auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int i = 0; i < count; i++)
        threads.emplace_back(work, streams[static_cast<size_t>(i)].stream(), pairs,
                             static_cast<unsigned>(i + 1));
    for (std::thread &thread : threads)
        thread.join();
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return count * static_cast<double>(pairs) / seconds.count();
}
