"""What only a GPU can answer, in under ten minutes: ``make gpu``.

    python benchmarks/gpu.py [--simulate CARD] [--parts NAME,...] [--results FOLDER]

Parts, in the order of what decides most: ``costs`` of the driver's calls, which calls
are ``waiting`` for running work, ``host_pages`` of each kind and how fast kernels work
on them, how the ``clock`` of the same card, simulated, differs from this one's, what
fails first on a ``full_card`` and how much headroom helps, ``conformance`` of the
driver with the simulated one, ``traces`` of training beside those of a simulated GPU,
event by event, and the ``demo``. Each has a deadline; what was found is written after
each, so that nothing is lost if time runs out. Exits 0 if all parts ended in time and
nothing differed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from support import ROOT, SIMULATION, environment, setup_functions

HARDWARE = Path(__file__).parent / "hardware"
RESULTS = Path(__file__).parent / "results"
MIB = 1 << 20
NEWEST_DRIVER = 13000  # that the simulation can be
KINDS = ("numa", "host", "pinned")
RESERVES = (0, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)  # until one is enough

sys.path.insert(0, str(HARDWARE))


@dataclass
class Part:
    """What a part found.

    Attributes:
        results: Objects as the measuring programs print them.
        problems: What did not work, in words.
        seconds: How long it took.
    """

    results: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Machine:
    """Runs programs on the GPU, real or simulated, until a deadline."""

    def __init__(self, card: str | None, folder: Path) -> None:
        self.card = card
        self.folder = folder  # for what is built
        self.deadline = 0.0
        self.patience = 1 if card is None else 4  # times a part's limit, for CPUs
        self.environment = environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""))
        if card is not None:
            self.environment["OOMPH_SIMULATE"] = card

    def run(self, part: Part, *command: str | Path, **variables: str) -> str:
        """Gives what the program printed; notes it as a problem if it failed."""
        name = " ".join(Path(word).name for word in map(str, command))
        try:
            done = subprocess.run(
                [str(word) for word in command],
                env={**self.environment, **variables},
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=max(1.0, self.deadline - time.monotonic()),
            )
        except subprocess.TimeoutExpired as expired:
            part.problems.append(f"{name}: the time was up")
            return (expired.stdout or b"").decode()
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-1500:]
            part.problems.append(f"{name}: exit code {done.returncode}: {said}")
        return done.stdout

    def python(self, part: Part, script: Path, *arguments: str) -> str:
        """Runs a Python script."""
        return self.run(part, sys.executable, script, *arguments)

    def native(self, part: Part, source: Path, *arguments: str) -> str:
        """Compiles a C program, if that was not done, and runs it."""
        program = self.folder / source.stem
        if not program.exists():
            setup = setup_functions()
            includes = setup["system_includes"](setup["cuda_includes"]())
            flags = (*setup["C_FLAGS"], *setup["C_LIBRARIES"])
            self.run(part, "cc", source, "-o", program, *includes, *flags)
        simulated: dict[str, str] = {}
        if self.card is not None:  # these programs read what they wrote
            simulated["OOMPH_SIMULATE"] = f"{self.card},memory=real"
            simulated["LD_LIBRARY_PATH"] = str(SIMULATION)
        return self.run(part, program, *arguments, **simulated)


def objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects among the lines of a text."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def costs(machine: Machine, part: Part) -> None:
    part.results += objects(machine.native(part, HARDWARE / "calls.c", "costs"))


def waiting(machine: Machine, part: Part) -> None:
    part.results += objects(machine.native(part, HARDWARE / "calls.c", "waiting"))


def host_pages(machine: Machine, part: Part) -> None:
    for kind in KINDS:
        found = objects(machine.python(part, HARDWARE / "host_pages.py", kind))
        part.results += [{**result, "kind": kind} for result in found]
        part.problems += [
            f"{result['operator']} computes something else on {kind} pages"
            for result in found
            if result.get("equal") is False
        ]


def clock(machine: Machine, part: Part) -> None:
    script = HARDWARE / "clock.py"
    card, *measured = objects(machine.python(part, script))
    described = f"{card['memory_bytes']},gpu={card['device']}"
    command = (sys.executable, script, described)
    _, *predicted = objects(machine.run(part, *command, OOMPH_SIMULATE=""))
    for found, computed in zip(measured, predicted, strict=True):
        ratio = found["ms"] / computed["ms"]
        part.results.append({**found, "predicted_ms": computed["ms"], "ratio": ratio})


def full_card(machine: Machine, part: Part) -> None:
    from full_card import OPERATIONS

    for operation in OPERATIONS:
        for reserve_bytes in RESERVES:
            script = HARDWARE / "full_card.py"
            text = machine.python(part, script, operation, str(reserve_bytes))
            found = objects(text)
            part.results += found
            if not found or found[-1]["error"] is None or machine.card is not None:
                break


def conformance(machine: Machine, part: Part) -> None:
    out = machine.folder / "conformance.json"
    machine.native(part, ROOT / "tests" / "gpu" / "conformance.c", "--json", str(out))
    if out.exists():
        part.results += objects(out.read_text())


def twin_of(machine: Machine, part: Part) -> str:
    """A simulated card like the machine's; of a simulated one, the same with values."""
    if machine.card is not None:
        return f"{machine.card},memory=values"
    code = (
        "import ctypes, json, torch; p = torch.cuda.get_device_properties(0);"
        "v = ctypes.c_int(); ctypes.CDLL('libcuda.so.1').cuDriverGetVersion("
        "ctypes.byref(v)); print(json.dumps({'bytes': p.total_memory, 'name': p.name,"
        " 'cc': f'{p.major}.{p.minor}', 'driver': v.value}))"
    )
    (found,) = objects(machine.run(part, sys.executable, "-c", code))
    name = found["name"].replace(",", " ")
    driver = min(found["driver"], NEWEST_DRIVER)
    return f"{found['bytes']},cc={found['cc']},driver={driver},name={name}"


def traces(machine: Machine, part: Part) -> None:
    from traces import PROGRAMS, compare, read

    script = HARDWARE / "traces.py"
    here = [] if machine.card is None else ["--simulate", machine.card]
    there = ["--simulate", twin_of(machine, part)]
    for allocator in ("native", "oomph"):
        records = []
        for side, card in (("here", here), ("there", there)):
            out = machine.folder / f"{allocator}-{side}.json"
            chosen = ["run", *card, "--allocator", allocator, str(script), str(out)]
            command = (sys.executable, "-m", "oomph", *chosen)
            machine.run(part, *command, OMP_NUM_THREADS="1")
            records.append(read(out) if out.exists() else {})
        for program in PROGRAMS if all(records) else []:
            found = compare(records[0][program], records[1][program])
            title = {"program": program, "allocator": allocator, "twin": there[1]}
            part.results.append({**title, **asdict(found)})
            where = f"{program}, {allocator}"
            part.problems += [f"{where}: {problem}" for problem in found.problems]


def demo(machine: Machine, part: Part) -> None:
    out = machine.folder / "demo.json"
    machine.python(part, ROOT / "examples" / "demo.py", "--json", str(out))
    if out.exists():
        part.results += json.loads(out.read_text())


# Each with the seconds that it may take at most; 600 s in all.
PARTS: dict[str, tuple[Callable[[Machine, Part], None], int]] = {
    "costs": (costs, 60),
    "waiting": (waiting, 30),
    "host_pages": (host_pages, 60),
    "clock": (clock, 40),
    "full_card": (full_card, 130),
    "conformance": (conformance, 30),
    "traces": (traces, 90),
    "demo": (demo, 130),
}


def describe(machine: Machine) -> dict[str, Any]:
    """The device and the versions, as PyTorch and oomph name them."""
    part = Part()
    code = (
        "import json, torch; p = torch.cuda.get_device_properties(0); print(json.dumps("
        "{'device': p.name, 'memory_bytes': p.total_memory, 'torch': torch.__version__,"
        " 'cuda': torch.version.cuda}))"
    )
    machine.deadline = time.monotonic() + 60
    found = objects(machine.run(part, sys.executable, "-c", code))
    if not found:
        raise SystemExit(f"no GPU was found: {' '.join(part.problems)}")
    versions = machine.run(part, sys.executable, "-m", "oomph", "--version")
    return {
        "date": datetime.date.today().isoformat(),
        "simulated": machine.card,
        **found[0],
        "versions": versions.splitlines(),
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulate", metavar="CARD", help="try it without a GPU")
    parser.add_argument("--parts", default=",".join(PARTS), help="only these")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    arguments = parser.parse_args()
    arguments.parts = arguments.parts.split(",")
    for name in arguments.parts:
        if name not in PARTS:
            parser.error(f"{name!r} is none of {', '.join(PARTS)}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(arguments.simulate, Path(folder))
        report = describe(machine)
        name = re.sub(r"\W+", "-", report["device"].lower()).strip("-")
        path = arguments.results / f"gpu-{name}.json"
        arguments.results.mkdir(parents=True, exist_ok=True)
        print(f"{report['device']}: {', '.join(arguments.parts)}", flush=True)
        parts: dict[str, Part] = {}
        for title in arguments.parts:
            measure, seconds = PARTS[title]
            parts[title] = part = Part()
            start = time.monotonic()
            machine.deadline = start + seconds * machine.patience
            try:
                measure(machine, part)
            except Exception as error:  # the other parts are worth having
                part.problems.append(f"{type(error).__name__}: {error}")
            part.seconds = round(time.monotonic() - start, 1)
            report["parts"] = {key: asdict(value) for key, value in parts.items()}
            path.write_text(json.dumps(report, indent=1) + "\n")
            told = f"{len(part.results)} results, {len(part.problems)} problems"
            print(f"{title}: {told}, {part.seconds:.0f} s", flush=True)
            for problem in part.problems:
                print(f"  {problem}", flush=True)
        print(f"written to {path}")
    return int(any(part.problems for part in parts.values()))


if __name__ == "__main__":
    raise SystemExit(main())
