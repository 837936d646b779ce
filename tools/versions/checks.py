"""What must work with each PyTorch, by a program each, for try_versions.py."""

from __future__ import annotations

CARD = "1GiB,memory=values"

# Each is a program, which says nothing of what is wrong but by an exception.
CHECKS = {
    "installs": """
        import oomph, torch
        oomph.install()
        assert oomph.is_installed()
        """,
    "simulated GPU": """
        import oomph, torch
        oomph.install()
        x = torch.arange(6.0, device="cuda", requires_grad=True)
        (x * x).sum().backward()
        assert x.grad.tolist() == [0, 2, 4, 6, 8, 10]
        """,
    "falls back to the host": """
        import oomph, torch
        oomph.install(host_limit="2GiB")
        blocks = [torch.full((64 << 20,), float(i), device="cuda") for i in range(6)]
        assert [int(block[-1]) for block in blocks] == list(range(6))
        assert oomph.stats()["host_bytes"] > 0
        """,
    "PyTorch's statistics": """
        import oomph, torch
        oomph.install()
        x = torch.ones(1 << 20, device="cuda")
        assert torch.cuda.memory_allocated() == 4 << 20
        assert torch.cuda.memory_stats()["num_ooms"] == 0
        torch.cuda.memory._record_memory_history(stacks="python")
        y = torch.ones(1 << 20, device="cuda")
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        assert "alloc" in [entry["action"] for entry in trace]
        """,
    "streams": """
        import oomph, torch
        oomph.install()
        side = torch.cuda.Stream()
        x = torch.ones(1 << 20, device="cuda")
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.current_stream())
            y = x * 2
            x.record_stream(side)
        del x
        torch.cuda.current_stream().wait_stream(side)
        assert float((y + 1).sum()) == 3 << 20
        """,
    "graphs and MemPools": """
        import oomph, torch
        oomph.install()
        x = torch.ones(1 << 10, device="cuda")
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
        with torch.cuda.graph(graph):
            y = x * 3
        graph.replay()
        assert float(y.sum()) == 3 << 10
        with torch.cuda.use_mem_pool(pool):
            z = torch.ones(1 << 20, device="cuda")
        assert pool.snapshot()
        """,
    "offload by the planner": """
        import oomph, torch
        oomph.install(host_limit="4GiB")
        net = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh())
              for _ in range(12)))
        net.cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(40000, 256, device="cuda")
        for _ in range(3):
            net(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        oomph._C.check(0)
        """,
    "out-of-memory report": """
        import oomph, torch
        oomph.install(offload="off")
        try:
            kept = [torch.ones(64 << 20, device="cuda") for _ in range(9)]
        except torch.OutOfMemoryError as error:
            assert "oomph" in str(error)
        else:
            raise SystemExit("no error")
        """,
    "`oomph run`": """
        import pathlib, subprocess, sys
        script = pathlib.Path("script.py")
        script.write_text("import torch; print(torch.ones(5, device='cuda').sum())")
        oomph = pathlib.Path(sys.executable).with_name("oomph")
        command = [oomph, "run", "--simulate", "1GiB", "--values", script]
        said = subprocess.run(command, capture_output=True, text=True)
        assert said.returncode == 0 and "tensor(5." in said.stdout, said.stderr
        """,
}
