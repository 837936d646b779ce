"""``python tests/campaign/planted.py``: puts bugs back, and hunts for them.

Each has been in oomph. It is planted in a copy of the checkout, which is built by
itself; then programs are run until one fails. Ends with 1 if a bug was not found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "dist", "c")


@dataclass(frozen=True)
class Plant:
    """A bug: what is exchanged for what, in which files."""

    changes: tuple[tuple[str, str, str], ...]

    def put(self, root: Path) -> None:
        """Plants it in a checkout.

        Raises:
            ValueError: A text is not there, or not only once: the code has changed.
        """
        for name, old, new in self.changes:
            file = root / name
            text = file.read_text()
            if text.count(old) != 1:
                raise ValueError(f"{name} has {text.count(old)} times: {old}")
            file.write_text(text.replace(old, new))


PLANTS = {
    "pages float once the stream that freed last has passed": Plant(
        (
            (
                "csrc/core/stream/clock.c",
                "driver->event_record_all(streams->device, event);",
                "driver->event_record(streams->device, event,\n"
                "streams->last != NULL && streams->last->lives &&\n"
                "streams->last->device == streams->device\n"
                "? streams->last->handle : NULL);",
            ),
        )
    ),
    "pages of a dropped graph float while it runs": Plant(
        (
            (
                "csrc/core/control/groups.c",
                "pool->floor = oomph_streams_stamp(&device->streams, 0);",
                "pool->floor = 0;",
            ),
        )
    ),
    "saved storages are known by their address": Plant(
        (
            (
                "python/oomph/offload/policy.py",
                "(self.offloaded.get(key), self.link.restored.get(key)):\n"
                "            if offloaded is not None and offloaded.serves(tensor):",
                "(self.offloaded.get(storage.data_ptr()),):\n"
                "            if (\n"
                "                offloaded is not None\n"
                "                and offloaded.state() != transfer.GONE\n"
                "                and offloaded.copied_version == tensor._version\n"
                "            ):",
            ),
            (
                "python/oomph/offload/policy.py",
                "transfer.lock:\n                self._note_sent(offloaded)",
                "transfer.lock:\n                self._note_sent(offloaded)\n"
                "                self.offloaded[tensor.data_ptr()] = offloaded",
            ),
        )
    ),
    "memory of others, of graphs and of MemPools leaves": Plant(
        (
            (
                "csrc/torch/tensors/saved.hpp",
                "if (data.get_deleter() != &delete_block ||\n"
                "        core->lookup(address(data.get()), &info) != OOMPH_OK ||\n"
                "        info.addr != address(data.get()) || from_core(info.pool) != "
                "MempoolId_t{0, 0})\n"
                "        Py_RETURN_NONE;",
                "if (core->lookup(address(data.get()), &info) != OOMPH_OK)\n"
                "        return PyLong_FromLong(OOMPH_TIER_DEVICE);",
            ),
        )
    ),
    "the second stream does not wait for what was fetched": Plant(
        (
            (
                "python/oomph/offload/transfer.py",
                "if stream.cuda_stream in self._waited:\n"
                "            stream.wait_event(self._ready)",
                "if self._waited:\n            pass",
            ),
        )
    ),
    "the planner's threads have no lock": Plant(
        (
            (
                "python/oomph/offload/transfer.py",
                "lock = threading.RLock()\n\nGONE",
                "import contextlib\nlock = contextlib.nullcontext()\n\nGONE",
            ),
            (
                "python/oomph/offload/transfer.py",
                "self.sending = threading.RLock()",
                "self.sending = contextlib.nullcontext()",
            ),
            (
                "python/oomph/offload/transfer.py",
                "self._fetching = threading.Lock()",
                "self._fetching = contextlib.nullcontext()",
            ),
            (
                "python/oomph/offload/fetches.py",
                "            if self._is_fetching:\n                return\n",
                "",
            ),
        )
    ),
    "streams of other devices are not recorded": Plant(
        (
            (
                "csrc/core/alloc/free.c",
                "status == OOMPH_OK && user != oomph_block_pool(block)->stream",
                "status == OOMPH_OK && stream_device == device->ordinal &&\n"
                "user != oomph_block_pool(block)->stream",
            ),
        )
    ),
    "garbage counts as live": Plant(
        (
            (
                "csrc/core/alloc/garbage.c",
                "if (collect == NULL || is_in_vain(ctx, last))",
                "if (collect == NULL || is_in_vain(ctx, last) || true)",
            ),
        )
    ),
    "idle page-locked blocks are kept": Plant(
        (
            (
                "csrc/core/alloc/host.c",
                "        return OOMPH_NEXT;\n    if (survey.now < want)\n"
                "        return oomph_wait_for_pages(device)",
                "        return OOMPH_NEXT;\n    return OOMPH_NEXT;\n"
                "    if (survey.now < want)\n"
                "        return oomph_wait_for_pages(device)",
            ),
        )
    ),
    "a capture that failed goes on for oomph": Plant(
        (
            (
                "csrc/core/stream/capture.h",
                "if (streams->beginning && pthread_equal(streams->beginner, "
                "pthread_self()))\n        streams->beginning = false;",
                "",
            ),
        )
    ),
}


def build(plant: Plant, folder: Path) -> Path:
    """Builds a copy with the bug; gives the folder to import it from.

    What was built before is built again only where it changes.
    """
    copy, site = folder / "checkout", folder / "site"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT, symlinks=True)
    plant.put(copy)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target")
    pip = (sys.executable, "-m", "pip", "install", *options)
    subprocess.run([*pip, str(site), str(copy)], check=True)
    return site


def seek(name: str, programs: int, jobs: int) -> dict[str, Any]:
    """Runs programs with a bug until one fails, and tells how many they were."""
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        site, out = build(PLANTS[name], folder), folder / "found.json"
        environment = os.environ | {"PYTHONPATH": str(site)}
        where = "import oomph; print(oomph.__file__)"
        planted = [sys.executable, "-c", where]
        used = subprocess.run(planted, env=environment, check=True, capture_output=True)
        assert str(site) in used.stdout.decode(), "another oomph is imported"
        hunt = [sys.executable, str(ROOT / "tests" / "campaign"), "--until-found"]
        hunt += ["--programs", str(programs), "--jobs", str(jobs), "--out", str(out)]
        subprocess.run(hunt, env=environment, check=False)
        found = json.loads(out.read_text())
        if any(finding["like"].startswith("native") for finding in found["findings"]):
            raise RuntimeError("a program was wrong natively: mend the campaign first")
        return {"bug": name, **found}


def main() -> int:
    parser = argparse.ArgumentParser(prog="planted", description=__doc__)
    parser.add_argument("--only", help="a part of the bug's name")
    parser.add_argument("--programs", type=int, default=500, help="at most, for each")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="where the result goes, as JSON")
    wanted = parser.parse_args()
    names = [name for name in PLANTS if (wanted.only or "") in name]
    results = []
    for name in names:
        print(f"=== {name}", flush=True)
        results.append(seek(name, wanted.programs, wanted.jobs or 1))
        if wanted.out is not None:
            wanted.out.write_text(json.dumps(results, indent=2) + "\n")
    missed = [found["bug"] for found in results if not found["findings"]]
    print(f"{len(results) - len(missed)} of {len(results)} found; not: {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
