"""The ways to oomph: the command, the variable, the call, pytest, and the build."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import GIB, MIB, ROOT, execute, lines, oomph, run

CARD = "1GiB,context=0"
SETTINGS = "reserve:0,host_limit:1GiB"
WHO = """
import sys
import torch
import oomph
kept = torch.ones(1 << 18, device="cuda")
print(__name__, oomph.is_installed(), sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script; gives its path."""

    def write(text: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def run_simulated(*arguments, card=CARD, **options):
    return oomph("run", "--simulate", card, *arguments, **options)


# ---- oomph run


def test_run_runs_a_script_as_python_does(script):
    path = script(
        WHO + "import __main__\n"
        "print(__main__.kept is kept, __file__ == sys.argv[0], sys.path[0])\n"
    )
    result = run_simulated(path, "--lr", "0.1", "-x", "--", "--set", anew=True)
    assert result.out.splitlines() == [
        "__main__ True ['--lr', '0.1', '-x', '--', '--set']",
        f"True True {path.parent}",
    ]
    assert result.said == result.out


def test_run_runs_a_module_as_python_does(script):
    path = script(WHO, "who.py")
    found_there = {"PYTHONPATH": str(path.parent)}
    result = run_simulated("-m", "who", "--lr", "1", anew=True, **found_there)
    assert result.said == "__main__ True ['--lr', '1']\n"


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('enough')", 1, "enough\n"),
        ("raise KeyError('lost')", 1, "KeyError: 'lost'\n"),
        ("import os; os._exit(9)", 9, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
    ],
)
def test_the_exit_code_is_the_scripts(script, ending, code, said):
    result = run_simulated(script(f"import sys\nimport torch\n{ending}\n"))
    assert result.code == code
    assert result.said.endswith(said)
    if not said:
        assert result.said == ""


def test_a_script_reads_what_is_given_to_it(script):
    path = script("import sys, torch; print(sys.stdin.read().upper(), end='')")
    result = execute(
        *("sh", "-c", 'echo hello | "$0" -m oomph run --simulate 1GiB "$1"'),
        *(sys.executable, path),
    )
    assert result.said == "HELLO\n"


FLAGS = "import sys; print(sys.flags.optimize, sys.flags.utf8_mode, sys.warnoptions)"


def test_the_options_of_python_are_the_scripts(script):
    flags = ("-O", "-X", "utf8", "-W", "error", "-u")
    path = script(FLAGS + "\nprint(sys.stdout.write_through)")
    command = (sys.executable, *flags, "-m", "oomph", "run", path)
    result = execute(*command, anew=True)
    assert result.out.splitlines() == ["1 1 ['error']", "True"], result.said


TOOLS = {
    "a debugger": ["pdb", "-m"],
    "a profiler": ["cProfile", "-o", "profile", "-m"],
    "a tracer": ["trace", "--count", "--module"],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_would_lose_the_script_is_named(script, tool, tmp_path):
    path = script("print(1)")
    found = subprocess.run(
        [sys.executable, "-m", *TOOLS[tool], "oomph", "run", path],
        input=f"break {path}:1\ncontinue\n",  # without one it lets go
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    (line,) = lines(found.stderr, "cannot follow the script, because oomph run")
    assert line.startswith("oomph: ")


def test_a_script_may_come_from_the_standard_input():
    found = subprocess.run(
        [sys.executable, "-m", "oomph", "run", "-", "word"],
        input="import sys; print(sys.argv)",
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == "['-', 'word']\n", found.stderr


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m oomph --version | true"
    found = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False
    )
    assert found.stderr == ""


@pytest.mark.parametrize(
    ("allocator", "backend", "installed"),
    [("oomph", "oomph", True), ("native", "native", False)],
)
def test_the_allocator_can_be_chosen(script, allocator, backend, installed):
    path = script(
        "import torch, oomph\n"
        "torch.ones(3, device='cuda')\n"
        "print(torch.cuda.get_allocator_backend(), oomph.is_installed())\n"
    )
    # As in a shell where oomph is always on.
    result = run_simulated("--allocator", allocator, path, conf="offload:off")
    assert result.said == f"{backend} {installed}\n"


def test_expandable_segments_can_be_chosen(script):
    path = script(
        "import torch\n"
        "kept = torch.ones(3, device='cuda')\n"
        "(segment,) = torch.cuda.memory_snapshot()\n"
        "print(torch.cuda.get_allocator_backend(), segment['is_expandable'])\n"
    )
    assert run_simulated("--allocator", "expandable", path).said == "native True\n"


@pytest.mark.parametrize("allocator", ["oomph", "native"])
def test_a_device_limit_holds_for_either_allocator(script, allocator):
    path = script(
        "import torch\n"
        "torch.empty(500 << 20, dtype=torch.uint8, device='cuda')\n"
        "torch.cuda.empty_cache()\n"
        "torch.empty(600 << 20, dtype=torch.uint8, device='cuda')\n"
    )
    limit = ("--allocator", allocator, "--device-limit", "512MiB")
    chosen = ("--set", "offload:off,reserve:0") if allocator == "oomph" else ()
    result = run_simulated(*limit, *chosen, path)
    assert result.code == 1
    assert "torch.OutOfMemoryError" in result.err
    assert "line 4" in result.err


def test_settings_of_the_command_win_over_the_variable(script):
    path = script("import oomph, torch; print(oomph.base.state.settings()['plan'])")
    result = run_simulated("--set", "plan:off", path, conf="plan:on,reserve:0")
    assert result.said == "off\n"


def test_settings_may_come_one_by_one(script):
    path = script(
        "import oomph, torch; now = oomph.base.state.settings()\n"
        "print(now['plan'], now['reserve'], now['offload'])"
    )
    result = run_simulated("--set", "plan:off,reserve:0", "--set", "offload:off", path)
    assert result.said == "off 0 off\n"
    twice = run_simulated("--set", "plan:off", "--set", "plan:on", path)
    assert twice.code == 2
    assert "'plan' is given twice" in twice.err


# ---- --stats

USES = """
import sys
import torch
kept = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (900, 200)]
"""


def stats_after(script, ending: str, *options: str, code: int) -> dict:
    folder = script("").parent
    path = script(f"{USES}\nimport os\nos.chdir('/')\n{ending}\n")
    result = run_simulated(
        *("--set", SETTINGS, *options, "--stats", "stats.json", path), cwd=folder
    )
    assert result.code == code, result.err
    return json.loads((folder / "stats.json").read_text())


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise KeyError", 1),
        ("kept.append(torch.empty(1 << 40, device='cuda'))", 1),
    ],
)
def test_stats_are_written_however_a_script_ends(script, ending, code):
    stats = stats_after(script, ending, code=code)
    assert set(stats) == {"0"}
    assert stats["0"]["allocator"] == "oomph"
    assert stats["0"]["allocated_bytes.all.current"] == 1100 * MIB
    assert stats["0"]["rescues"] == 1
    assert stats["0"]["host_bytes"] >= 76 * MIB  # what is missing
    assert stats["0"]["num_ooms"] == (1 if "1 << 40" in ending else 0)


def test_stats_that_cannot_be_written_are_named(script, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    path = script(f"{USES}\nimport os\nos.rmdir({str(folder)!r})\n")
    result = run_simulated("--set", SETTINGS, "--stats", folder / "stats.json", path)
    assert result.code == 0
    (line,) = lines(result.err, "statistics cannot be written: ")
    assert str(folder) in line and "Traceback" not in result.err


def test_stats_of_the_native_allocator_have_the_same_names(script, tmp_path):
    path = script(USES.replace("200", "100"))
    out = tmp_path / "stats.json"
    result = run_simulated("--allocator", "native", "--stats", out, path)
    assert result.code == 0, result.err
    stats = json.loads(out.read_text())["0"]
    assert stats["allocator"] == "native"
    assert stats["allocated_bytes.all.current"] == 1000 * MIB
    assert stats["device_bytes"] >= 1000 * MIB
    assert stats["rescues"] == stats["host_bytes"] == 0


def test_stats_of_every_device_are_written(script, tmp_path):
    path = script("import torch\nkept = torch.ones(1 << 20, device='cuda:1')\n")
    out = tmp_path / "stats.json"
    result = run_simulated("--stats", out, path, card=f"{CARD},devices=2")
    assert result.code == 0, result.err
    stats = json.loads(out.read_text())
    assert [stats[i]["allocated_bytes.all.current"] for i in "01"] == [0, 4 * MIB]


def test_stats_of_a_script_without_cuda_are_empty(script, tmp_path):
    out = tmp_path / "stats.json"
    assert run_simulated("--stats", out, script("import torch")).code == 0
    assert json.loads(out.read_text()) == {}


def test_a_folder_that_is_not_there_is_named_before_the_script_starts(script, tmp_path):
    out = tmp_path / "absent" / "stats.json"
    result = run_simulated("--stats", out, script("print('started')"))
    assert (result.code, result.out) == (2, "")
    assert result.err == f"oomph: --stats: there is no folder {out.parent}\n"


# ---- Other ways


def test_python_m_oomph_is_the_same_command(script):
    command = (sys.executable, "-m", "oomph", "run", "--simulate", CARD, script(WHO))
    result = execute(*command, anew=True)
    assert result.said == "__main__ True []\n"


def test_without_a_command_the_help_is_shown():
    result = oomph()
    assert result.code == 2
    assert result.out.startswith("usage: oomph")


def test_the_version_tells_what_works_here():
    result = oomph("--version", card="2GiB,driver=12040")
    assert result.code == 0, result.err
    import oomph as package

    text = result.out
    assert package.__version__ in text
    assert lines(text, "PyTorch") and lines(text, "12.4") and lines(text, "NUMA pages")
    assert lines(text, "this oomph is built for it")


def test_the_version_names_another_oomph_that_is_installed(tmp_path):
    (tmp_path / "oomph").mkdir()
    info = tmp_path / "oomph-0.0.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: oomph\nVersion: 0.0.9\n"
    )
    result = run(
        "import sys; sys.path.append(sys.argv[1])\n"
        "from oomph.setup import versions; print(versions.report())",
        tmp_path,
    )
    (line,) = lines(result.out, "and another, 0.0.9, is in")
    import oomph as package

    here = Path(package.__file__).parent
    assert line.startswith(f"the oomph in {here} is in use")
    assert f"is in {tmp_path / 'oomph'}: remove the one that you do not mean" in line
    assert line.endswith(f"or pip uninstall oomph, in {tmp_path})")


def test_the_version_needs_no_driver():
    result = oomph("--version")
    assert result.code == 0, result.err
    assert lines(result.out, "driver")[0].endswith("none")


def test_the_variable_installs_at_import_torch():
    result = run(
        "import torch; torch.ones(3, device='cuda')\n"
        "import oomph; print(oomph.is_installed(), oomph.stats()['device_bytes'])",
        card=CARD,
        conf=SETTINGS,
        anew=True,
    )
    assert result.said == f"True {2 * MIB}\n"


def test_a_script_can_install():
    result = run(
        """
        import oomph
        oomph.install("reserve:0", device_limit="128MiB", host_limit=1 << 30)
        import torch
        kept = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        more = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        print(oomph.stats()["rescues"], torch.cuda.mem_get_info()[1])
        """,
        card=CARD,
        anew=True,
    )
    assert result.out == f"1 {128 * MIB}\n", result.err


CHILDREN = """
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader


def child(rank, queue):
    import oomph

    kept = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    queue.put((oomph.is_installed(), oomph.stats()["device_limit_bytes"]))


if __name__ == "__main__":
    queue = mp.get_context("spawn").Queue()
    mp.spawn(child, (queue,), nprocs=2)
    print(queue.get() == queue.get() == (True, 512 << 20))
    loader = DataLoader(torch.arange(8), batch_size=4, num_workers=2, pin_memory=True)
    print([batch.cuda().device.index for batch in loader])
"""


@pytest.mark.long
def test_spawned_children_and_workers_inherit_it(script):
    result = run_simulated("--device-limit", "512MiB", script(CHILDREN))
    assert (result.code, result.said) == (0, "True\n[0, 0]\n")


RANKS = """
import torch
import torch.distributed as dist
import oomph

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = torch.nn.Linear(256, 256).cuda()
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(4, 256, device="cuda")).sum().backward()
    optimizer.step()
stats = oomph.stats()
with open(f"{__file__}.{rank}", "w") as file:
    print(oomph.is_installed(), stats["steps"], stats["host_limit_bytes"], file=file)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_the_ranks_of_torchrun_share_what_there_is(script, tmp_path):
    path = script(RANKS)
    result = run_simulated(
        *("--stats", tmp_path / "stats.json", "-m", "torch.distributed.run"),
        "--standalone",
        *("--nproc-per-node", "2", path),
        card="1GiB,devices=2,host=8GiB",
        anew=True,
    )
    assert result.code == 0, result.err
    reported = [Path(f"{path}.{rank}").read_text() for rank in (0, 1)]
    assert reported == [f"True 2 {2 * GIB}\n"] * 2  # a half of the host, for two
    for rank in "01":
        written = json.loads((tmp_path / f"stats.rank{rank}.json").read_text())
        assert written[rank]["allocated_bytes.all.peak"] > 0
        assert written[str(1 - int(rank))]["allocated_bytes.all.peak"] == 0


def test_tests_run_under_oomph(script, tmp_path):
    path = script(
        "import oomph, torch\n"
        "def test_something():\n"
        "    assert torch.ones(3, device='cuda').is_cuda\n"
        "    assert oomph.is_installed()\n",
        "test_theirs.py",
    )
    quiet = ("-q", "-p", "no:cacheprovider", path)
    result = run_simulated("-m", "pytest", *quiet, cwd=tmp_path)
    assert result.code == 0, result.said
    result = execute(
        *(sys.executable, "-m", "pytest", *quiet),
        card=CARD,
        conf=SETTINGS,
        cwd=tmp_path,
    )
    assert result.code == 0, result.said


# ---- The build


COMMANDS = """
import json, sys
sys.path.insert(0, "tools")
from compile_commands import entries
print(json.dumps([e["arguments"] for e in entries() if "/csrc/" in e["file"]]))
"""


def headers_read(command: list[str], path: str) -> set[Path]:
    """What a compiler would read for a source."""
    *flags, _, source = command
    listed = execute(*flags, "-M", source, cwd=ROOT, PATH=path)
    assert listed.code == 0, listed.err
    words = listed.out.replace("\\\n", " ").split()[1:]
    return {Path(ROOT, word).resolve() for word in words}


@pytest.mark.long
def test_the_build_needs_no_cuda_toolkit(tmp_path):
    path = os.pathsep.join(
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not (Path(folder) / "nvcc").exists()
    )
    assert shutil.which("nvcc", path=path) is None
    no_toolkit = {"PATH": path, "CUDA_HOME": str(tmp_path / "no toolkit")}
    listed = execute(sys.executable, "-c", COMMANDS, cwd=ROOT, **no_toolkit)
    assert listed.code == 0, listed.err
    read = set().union(*(headers_read(c, path) for c in json.loads(listed.out)))
    theirs = [header for header in read if not header.is_relative_to(ROOT / "csrc")]
    cuda = [h for h in theirs if h.name.startswith(("cuda", "cublas"))]
    assert {"cuda.h", "cuda_runtime_api.h"} <= {header.name for header in cuda}
    packages = {"site-packages", "dist-packages"}
    assert [str(h) for h in cuda if not packages & set(h.parts)] == []
