// draws.hpp - where the generator of a GPU stands, without making it begin anew.
//
// Whoever sets the state of a generator through PyTorch has recurrent networks of cuDNN
// seed their dropout again, from the generator of the CPU. A call that runs again must
// not: others than it would drop otherwise afterwards. Setting the offset alone does
// not, and the seed is rarely another.
#pragma once
#include "torch/base/python.hpp"

#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>

namespace oomph_torch
{

inline at::CUDAGeneratorImpl *generator_of(int device)
{
    const at::Generator &found = at::cuda::detail::getDefaultCUDAGenerator(
        static_cast<c10::DeviceIndex>(device));
    return at::check_generator<at::CUDAGeneratorImpl>(found);
}

inline PyObject *draws(PyObject *, PyObject *device)
{
    long index = PyLong_AsLong(device);
    if (PyErr_Occurred() != nullptr)
        return nullptr;
    return or_raise([&] {
        at::CUDAGeneratorImpl *generator = generator_of(static_cast<int>(index));
        std::lock_guard<std::mutex> guard(generator->mutex_);
        return Py_BuildValue(
            "KK", static_cast<unsigned long long>(generator->current_seed()),
            static_cast<unsigned long long>(generator->philox_offset_per_thread()));
    });
}

inline PyObject *draw_from(PyObject *, PyObject *args)
{
    int device;
    unsigned long long seed, offset;

    if (!PyArg_ParseTuple(args, "iKK:draw_from", &device, &seed, &offset))
        return nullptr;
    return or_raise([&]() -> PyObject * {
        at::CUDAGeneratorImpl *generator = generator_of(device);
        std::lock_guard<std::mutex> guard(generator->mutex_);
        if (generator->current_seed() != seed)
            generator->set_current_seed(seed);
        generator->set_philox_offset_per_thread(offset);
        Py_RETURN_NONE;
    });
}

} // namespace oomph_torch
