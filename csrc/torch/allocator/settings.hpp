// settings.hpp - PyTorch's own settings of its allocator (PYTORCH_ALLOC_CONF and
// torch._C._accelerator_setAllocatorSettings()), as PyTorch parses and refuses them.
//
// What has a meaning here is honoured; of the rest Python hears and says why not
// (python/oomph/setup/allocator_settings.py).
#pragma once
#include "torch/base/core.hpp"
#include "torch/base/python.hpp"

#include <c10/cuda/CUDAAllocatorConfig.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <string>

namespace oomph_torch
{

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using native::CUDAAllocatorConfig;

class Settings
{
    // PyTorch's parser runs in this thread. It holds `backend` against the allocator's
    // name, and is to find that of the one that was there before.
    static inline thread_local bool parsing = false;
    static inline PyObject *listener = nullptr; // guarded by the GIL
    static inline std::atomic<bool> rounds_{false};

    std::string replaced_; // the name of the allocator that was there before

    struct Parsing {
        Parsing()
        {
            parsing = true;
        }
        ~Parsing()
        {
            parsing = false;
        }
    };

  public:
    explicit Settings(std::string replaced) : replaced_(std::move(replaced))
    {
    }

    std::string name() const
    {
        return parsing ? replaced_ : "oomph";
    }

    // Hears of all settings that are made from now on; `changed` is called after each.
    void follow(std::function<void()> changed)
    {
        replace_parser<AcceleratorAllocatorConfig, CUDAAllocatorConfig>(
            [&](Parser parse) -> Parser {
                return [parse, changed](const std::string &text) {
                    {
                        Parsing now;
                        parse(text);
                    }
                    changed();
                    notify_listener();
                };
            });
    }

    // Reads the environment, as PyTorch's allocator does when CUDA is used first.
    // Throws what PyTorch throws.
    void read() const
    {
        Parsing now;
        CUDAAllocatorConfig::instance();
        update();
        notify_listener();
    }

    static void update()
    {
        const auto &divisions = AcceleratorAllocatorConfig::roundup_power2_divisions();
        rounds_ = std::any_of(divisions.begin(), divisions.end(),
                              [](size_t division) { return division > 1; });
    }

    // Whether sizes are rounded by roundup_power2_divisions.
    static bool rounds()
    {
        return rounds_.load(std::memory_order_relaxed);
    }

    // The size of a block for a request: as many equal steps from one power of two to
    // the next as the setting says of such sizes.
    static size_t rounded(size_t bytes)
    {
        const size_t steps =
            AcceleratorAllocatorConfig::roundup_power2_divisions(bytes);
        if (steps <= 1 || bytes <= steps * c10::CachingAllocator::kMinBlockSize)
            return bytes;
        const size_t step = std::bit_floor(bytes) / steps;
        return (bytes + step - 1) / step * step;
    }

    // The most of each card that this process may take.
    static double memory_fraction()
    {
        return oomph_torch::memory_fraction<CUDAAllocatorConfig>();
    }

    // As they are set, but for what this allocator does whatever is set.
    static native::AllocatorConfigInfo describe()
    {
        native::AllocatorConfigInfo info = {};
        info.garbage_collection_threshold =
            AcceleratorAllocatorConfig::garbage_collection_threshold();
        info.max_split_size = AcceleratorAllocatorConfig::max_split_size();
        info.expandable_segments = true;
        info.pinned_num_register_threads =
            CUDAAllocatorConfig::pinned_num_register_threads();
        info.release_lock_on_malloc = CUDAAllocatorConfig::release_lock_on_cudamalloc();
        info.pinned_use_host_register =
            CUDAAllocatorConfig::pinned_use_cuda_host_register();
        info.graph_capture_record_stream_reuse =
            CUDAAllocatorConfig::graph_capture_record_stream_reuse();
        info.last_allocator_settings =
            AcceleratorAllocatorConfig::last_allocator_settings();
        info.roundup_power2_divisions =
            AcceleratorAllocatorConfig::roundup_power2_divisions();
        set_no_cached_max(info);
        return info;
    }

    // Python's settings_keys(): those that PyTorch knows.
    static PyObject *keys(PyObject *, PyObject *)
    {
        PyObject *list = PyList_New(0);
        for (const std::string &key : AcceleratorAllocatorConfig::getKeys()) {
            PyObject *name = PyUnicode_FromString(key.c_str());
            if (list != nullptr && (name == nullptr || PyList_Append(list, name) < 0))
                Py_CLEAR(list);
            Py_XDECREF(name);
        }
        return list;
    }

    // Python's set_settings_hook(callable): called with the settings as text.
    static PyObject *listen(PyObject *, PyObject *callable)
    {
        Py_INCREF(callable);
        PyObject *had = std::exchange(listener, callable);
        Py_XDECREF(had);
        Py_RETURN_NONE;
    }

  private:
    // Whoever sets something may hold locks of PyTorch and wait for the GIL: the main
    // thread is asked to notify it a moment later.
    static void notify_listener()
    {
        Py_AddPendingCall(&notify, nullptr);
    }

    static int notify(void *) noexcept
    {
        if (listener == nullptr)
            return 0;
        const std::string text = AcceleratorAllocatorConfig::last_allocator_settings();
        PyObject *result = PyObject_CallFunction(listener, "s", text.c_str());
        if (result == nullptr && !PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        if (result == nullptr)
            PyErr_WriteUnraisable(listener);
        Py_XDECREF(result);
        return 0;
    }
};

} // namespace oomph_torch
