// fit.hpp - whether the PyTorch that runs is as the one that this was built for.
//
// Names of functions are compared when the module is loaded. What is compared here is
// what has no name: the virtual functions of an allocator are called by their numbers,
// and a tensor is read where it lies in its object.
#pragma once
#include "torch/base/python.hpp"
#include "torch/base/versions.hpp"

#include <ATen/ops/empty.h>

#include <cstring>
#include <link.h>
#include <string>
#include <typeinfo>

namespace oomph_torch
{

// Whether an address is in code of the process.
inline bool is_code(const void *address)
{
    auto look = [](dl_phdr_info *object, size_t, void *wanted) {
        const auto at = reinterpret_cast<uintptr_t>(wanted) - object->dlpi_addr;
        for (int i = 0; i < object->dlpi_phnum; i++) {
            const auto &part = object->dlpi_phdr[i];
            if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0 &&
                at - part.p_vaddr < part.p_memsz)
                return 1;
        }
        return 0;
    };
    return dl_iterate_phdr(look, const_cast<void *>(address)) != 0;
}

// How many virtual functions an object has: behind a table of them comes no code.
inline size_t virtual_count(const void *object)
{
    const void *const *table = *static_cast<const void *const *const *>(object);
    size_t count = 0;
    while (is_code(table[count]))
        count++;
    return count;
}

// An allocator of the program's own may have more of them than PyTorch's.
inline bool is_pytorchs(const native::CUDAAllocator &allocator)
{
    const char *name = typeid(allocator).name();
    return std::strstr(name, "Native") != nullptr ||
           std::strstr(name, "CudaMallocAsync") != nullptr;
}

// Why they do not fit; empty: they do.
inline std::string misfit(native::CUDAAllocator &theirs,
                          const native::CUDAAllocator &ours)
{
    if (is_pytorchs(theirs) && virtual_count(&theirs) != virtual_count(&ours))
        return c10::str("its allocator has ", virtual_count(&theirs),
                        " functions, not ", virtual_count(&ours));
    const at::Tensor tensor = at::empty({0});
    PyObject *object = THPVariable_Wrap(tensor);
    if (object == nullptr) {
        PyErr_Clear();
        return "it has no object for a tensor";
    }
    const bool lies_there = tensor_in(object).is_same(tensor);
    Py_DECREF(object);
    return lies_there ? "" : "it keeps tensors elsewhere in their objects";
}

} // namespace oomph_torch
