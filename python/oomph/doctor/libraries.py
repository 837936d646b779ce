"""Texts of libraries that allocate the GPU's memory without PyTorch's allocator."""

from __future__ import annotations

from oomph.doctor.forms import Form, amount, steps

LIBRARIES = {
    "vllm_memory": Form(
        "vLLM: less GPU memory is free than it is set to use",
        ("Freememoryondevice",),
        r"Freememoryondevice(?:cuda:(?P<device>\d+))?\((?P<free>[\d.]+)(?=/"
        r"[\d.]+(?P<free_unit>GiB))/(?P<total>[\d.]+)(?P<total_unit>GiB)\)onstartupislessthandesiredGPUmemoryutilization"
        r"\((?P<utilization>[\d.]+),(?P<requested>[\d.]+)(?P<requested_unit>GiB)\)",
        helps=steps(
            (
                "nvidia-smi: end other processes on this device",
                "vLLM takes its share of the whole device, and others have some",
            ),
            ("a lower gpu_memory_utilization", "so that the share is what is free"),
        ),
    ),
    "vllm_none": Form(
        "vLLM: no GPU memory is left for its KV cache",
        ("Noavailablememoryforthecacheblocks",),
        r"Noavailablememoryforthecacheblocks",
        helps=steps(
            (
                "a higher gpu_memory_utilization, if the device is free otherwise",
                "weights and one forward's activations take all of the share",
            ),
            (
                "smaller weights (quantized, or a smaller model), or more devices "
                "(tensor_parallel_size)",
                "the cache gets what they leave",
            ),
            (
                "a lower max_num_batched_tokens, max_num_seqs or max_model_len",
                "forward is measured with that many",
            ),
        ),
    ),
    "vllm_cache": Form(
        "vLLM: its KV cache is too small for one sequence of full length",
        ("maxseqlen",),
        r"maxseqlen\((?P<max_model_len>\d+)\)(?:islargerthanthemaximumnumberoftokensthat"
        r"canbestoredinKVcache\((?P<tokens_that_fit>\d+)\)|,\(?(?P<requested>[\d.]+)"
        r"(?P<requested_unit>GiB|GB)KVcacheisneeded,whichislargerthantheavailableKVcache"
        r"memory\((?P<free>[\d.]+)(?P<free_unit>GiB|GB)\))",
        helps=steps(
            ("max_model_len at most what fits", "the cache must hold one sequence"),
            (
                "a higher gpu_memory_utilization, kv_cache_dtype=fp8, or more devices "
                "(tensor_parallel_size)",
                "each makes the cache hold more",
            ),
        ),
    ),
    "ggml": Form(
        "llama.cpp (ggml): out of GPU memory",
        ("allocating",),
        rf"allocating{amount('requested')}ondevice(?P<device>\d+):cudaMallocfailed"
        r":outofmemory",
        helps=steps(
            (
                "fewer layers on the GPU (-ngl), or a split over devices (-ts)",
                "a buffer is allocated in one piece on each device",
            ),
            (
                "a smaller context (-c), batch (-ub), or a cache of 8 bits (-ctk q8_0)",
                "buffers of the cache and of computing grow with them",
            ),
            ("nvidia-smi: see who fills the device", "ggml has no cache to give back"),
        ),
    ),
    "cupy": Form(
        "CuPy: out of GPU memory",
        ("Outofmemoryallocating",),
        rf"Outofmemoryallocating{amount('requested')}\(allocatedsofar:"
        rf"{amount('allocated')}(?:,limitsetto:{amount('allowed')})?",
        helps=steps(
            (
                "cupy.get_default_memory_pool().free_all_blocks(), or a smaller batch",
                "CuPy caches for itself what it freed",
            ),
            (
                "nvidia-smi: see who else fills the device",
                "CuPy's text says only what CuPy has; PyTorch beside it caches, too",
            ),
        ),
    ),
    "onnxruntime": Form(
        "ONNX Runtime: its arena got no memory",
        ("Failedtoallocatememoryforrequestedbufferofsize",),
        r"Failedtoallocatememoryforrequestedbufferofsize(?P<requested>\d+)"
        r"(?P<requested_unit>)",
        memory="",
        helps=steps(
            (
                "a smaller input or batch",
                "the arena asks for what one operator needs",
            ),
            (
                "gpu_mem_limit, and arena_extend_strategy=kSameAsRequested",
                "by default the arena grows to powers of two, beside PyTorch",
            ),
        ),
        doubt="whose memory: the arena is of the CPU or of the GPU, by its provider",
    ),
    "jax": Form(
        "JAX (XLA): out of GPU memory",
        ("RESOURCE_EXHAUSTED:Outofmemory", "RESOURCE_EXHAUSTED:Failedtoallocate"),
        r"RESOURCE_EXHAUSTED:(?:Outofmemorywhiletryingtoallocate|Failedtoallocate"
        rf"requestfor|Outofmemory)(?:{amount('requested')})?",
        helps=steps(
            (
                "a smaller batch, jax.checkpoint, or donated buffers (donate_argnums)",
                "they shrink what one compiled step needs",
            ),
            (
                "XLA_PYTHON_CLIENT_PREALLOCATE=false, where PyTorch or another shares "
                "the device",
                "JAX takes 75 % of it at its start; XLA_PYTHON_CLIENT_MEM_FRACTION "
                "sets how much",
            ),
        ),
    ),
    "tensorflow": Form(
        "TensorFlow: out of memory",
        ("OOMwhenallocatingtensor",),
        r"OOMwhenallocatingtensor(?:ofshape|withshape)(?P<shape>\[[\d,]*\])andtype"
        r"(?P<data_type>[a-z]+\d{0,3}?)on(?:/job\S{0,60}?device:(?P<where>[CG]PU:\d+))?",
        memory="",
        helps=steps(
            ("a smaller batch", "most tensors shrink with it"),
            (
                "tf.config.experimental.set_memory_growth(gpu, True), where others "
                "share the device",
                "TensorFlow takes nearly all of it at its start",
            ),
        ),
    ),
}
