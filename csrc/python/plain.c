/* plain.c - the allocator as two plain C functions, which oomph._C exports for
 * PyTorch's CUDAPluggableAllocator: process-wide, or behind a MemPool.
 *
 * Whoever calls may hold PyTorch's lock and the GIL: the GIL is never given up here, as
 * another thread could take it and wait for that lock.
 */
#include "python/plain.h"

#include "python/types.h"

static oomph_listener_t refusal_listener;

void *oomph_torch_malloc(ssize_t size, int device, oomph_stream_t stream)
{
    oomph_request_t request = {
        .device = device, .bytes = (size_t)size, .stream = stream};
    oomph_addr_t addr = 0;

    if (size <= 0)
        return NULL;
    if (request.bytes >= oomph_site_min_bytes())
        request.site = oomph_call_site(false);
    oomph_keeps_gil = true;
    oomph_status_t status = oomph_malloc(&request, &addr);
    oomph_keeps_gil = false;
    if (status != OOMPH_OK)
        oomph_listener_note(&refusal_listener, device, request.bytes);
    return (void *)(uintptr_t)addr;
}

void oomph_torch_free(void *block, ssize_t size, int device, oomph_stream_t stream)
{
    (void)size;
    (void)device;
    (void)stream;
    oomph_keeps_gil = true;
    oomph_free((oomph_addr_t)(uintptr_t)block, NULL);
    oomph_keeps_gil = false;
}

static PyObject *set_refusal_hook(PyObject *Py_UNUSED(module), PyObject *callable)
{
    return oomph_listener_set(&refusal_listener, callable);
}

PyMethodDef oomph_plain_methods[] = {
    {"set_refusal_hook", set_refusal_hook, METH_O,
     "A callable for (device, bytes) of what oomph_torch_malloc could not give."},
    {NULL, NULL, 0, NULL},
};
