"""Mutations of the simulated GPU."""

from __future__ import annotations

from mutations.mutation import Mutation

MUTATIONS = {
    "a pool gives back more than it was charged": Mutation(
        "csrc/sim/libcuda/memory/allocation.c",
        "pooled_bytes -= allocation->slots[0]->handle->charged_bytes;",
        "pooled_bytes -= allocation->range.bytes;",
        ("c:sim_device", "c:sim_stream"),
    ),
    "writing to what is read-only passes": Mutation(
        "csrc/sim/libcuda/memory/space.c",
        "unsigned allowed = write ? mapping->writers : mapping->readers;",
        "unsigned allowed = mapping->readers;\n        (void)write;",
        ("c:sim_vmm", "c:sim_device"),
    ),
    "the default stream waits for other devices": Mutation(
        "csrc/sim/libcuda/engine/wait.c",
        "stream->is_default && other->context == stream->context &&",
        "stream->is_default &&",
        ("c:sim_stream", "c:sim_device", "c:sim_clock"),
    ),
    "a stream joins a capture with nodes of the last": Mutation(
        "csrc/sim/libcuda/objects/capture.c",
        """\
    if (stream->capture == NULL)
        stream->frontier.count = 0;
    if (!sim_nodes_add_all""",
        "    if (!sim_nodes_add_all",
        ("c:sim_capture", "tests/pytorch/test_cuda_graphs.py"),
    ),
    "what a kernel writes to the host takes no time": Mutation(
        "csrc/sim/libcuda/engine/engine.c",
        "link_end_ns(&on->to_host, from_ns, moved.to_host)",
        "link_end_ns(&on->to_host, from_ns, moved.from_host)",
        ("c:sim_clock", "tests/simulator/test_clock.py"),
    ),
    "a stream must wait for one operation more": Mutation(
        "csrc/sim/libcuda/engine/race.c",
        "return mark->number >= operation->number ||",
        "return mark->number > operation->number ||",
        ("c:sim_race", "c:sim_stream"),
    ),
    "the gradient of a transposed convolution counts its input": Mutation(
        "csrc/sim/values/costs/flops.hpp",
        'call.tensor(call.is_true("transposed") ? 1 : 0)',
        'call.tensor(call.is_true("transposed") ? 0 : 1)',
        (
            "tests/simulator/test_clock.py::"
            "test_convolutions_count_as_much_arithmetic_as_pytorchs_counter",
            "tests/simulator/test_clock.py",
        ),
    ),
    "the CPU's generator goes on where the GPU's was": Mutation(
        "csrc/sim/values/draws.hpp",
        """\
        generator_.set_state(of_cpu.get_state());
        of_cpu.set_state(kept_);
""",
        "        generator_.set_state(of_cpu.get_state());\n",
        (
            "tests/values/test_draws.py::"
            "test_drawing_on_the_gpu_leaves_the_cpus_generator_alone",
            "tests/values/test_draws.py",
        ),
    ),
    "the runtime records an external event as any other": Mutation(
        "csrc/sim/libcudart/stream.c",
        "cuEventRecordWithFlags(event, stream, flags)",
        "cuEventRecord(event, stream)",
        (
            "tests/pytorch/test_cuda_graphs.py::test_graph_timing",
            "tests/pytorch/test_cuda_graphs.py",
            "tests/pytorch/test_cuda_device_streams.py",
        ),
    ),
    "the management library knows one device too many": Mutation(
        "csrc/sim/libnvml/nvml.c",
        "device >= oomph_sim_device_total()",
        "device > oomph_sim_device_total()",
        (
            "tests/simulator/test_simulated_start.py::"
            "test_devices_are_known_by_their_uuids_as_nvml_tells_them",
            "tests/simulator/test_simulated_start.py",
        ),
    ),
}
