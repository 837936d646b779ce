"""``python tests/campaign``: hunts for programs that are right natively alone.

Without ``--first`` it begins at a seed that nobody has seen. What is found is told with
its seed and made short; ``--seed N`` repeats it. Ends with 1 if anything was found.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent)]

from campaign import hunt
from campaign.program import draw

_hunter: hunt.Hunter | None = None  # of this worker


def check_block(first: int, count: int, deadline: float, shrinks: bool) -> list[Any]:
    """Checks programs of consecutive seeds in this process.

    Returns:
        For each that was run its seed, and what was found if anything: its likeness
        and its text.
    """
    global _hunter
    _hunter = _hunter or hunt.Hunter()
    found: list[Any] = []
    for seed in range(first, first + count):
        if time.time() > deadline:
            break
        finding = _hunter.check(draw(seed), hunt.settings(seed))
        if finding is not None and shrinks:
            finding = hunt.shrink(finding, _hunter)
        found.append([seed, finding and [finding.likeness, str(finding)]])
    return found


def blocks(first: int, programs: int | None) -> Iterator[tuple[int, int]]:
    """Seeds, as many at a time as have the same settings: the first, and how many."""
    end = None if programs is None else first + programs
    while end is None or first < end:
        after = (first // hunt.BLOCK + 1) * hunt.BLOCK
        after = after if end is None else min(after, end)
        yield first, after - first
        first = after


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--programs", type=int, help="how many; else until time is up")
    parser.add_argument("--seconds", type=float, help="how long at most")
    parser.add_argument("--seed", type=int, help="repeats one program")
    parser.add_argument("--first", type=int, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep-long", action="store_true", help="makes nothing short")
    parser.add_argument("--out", type=Path, help="where the result goes, as JSON")
    return parser.parse_args()


def main() -> int:
    wanted = arguments()
    first = wanted.first
    if first is None:
        first = random.SystemRandom().randrange(10**9) * hunt.BLOCK
    programs = wanted.programs
    if wanted.seed is not None:
        first, programs = wanted.seed, 1
    if programs is None and wanted.seconds is None:
        sys.exit("campaign: --programs or --seconds says when it ends")
    started = time.time()
    deadline = started + (wanted.seconds or 1e9)
    print(f"campaign: seeds from {first} on", flush=True)
    results = run(first, programs, deadline, wanted)
    seconds = time.time() - started
    findings = [(seed, found) for seed, found in results if found]
    summary = {
        "first": first,
        "programs": len(results),
        "seconds": round(seconds),
        "jobs": wanted.jobs,
        "findings": [{"seed": seed, "like": like} for seed, (like, _) in findings],
    }
    if wanted.out is not None:
        wanted.out.write_text(json.dumps(summary, indent=2) + "\n")
    print(f"{len(results)} programs in {seconds:.0f} s: {len(findings)} fail")
    return 1 if findings else 0


def run(first: int, programs: int | None, deadline: float, wanted: Any) -> list[Any]:
    """Has workers check blocks of programs; tells what they find."""
    results: list[Any] = []
    todo = blocks(first, programs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(wanted.jobs, mp_context=context) as pool:
        running = {
            pool.submit(check_block, *block, deadline, not wanted.keep_long)
            for block in itertools.islice(todo, wanted.jobs)
        }
        while running:
            done = next(f for f in iter_done(running))
            running.discard(done)
            for seed, found in done.result():
                results.append((seed, found))
                if found:
                    print(f"\n=== seed {seed}: {found[1]}", flush=True)
            block = next(todo, None)
            if block is not None and time.time() < deadline:
                more = check_block, *block, deadline, not wanted.keep_long
                running.add(pool.submit(*more))
    return results


def iter_done(running: Any) -> Iterator[Any]:
    from concurrent.futures import FIRST_COMPLETED, wait

    yield from wait(running, return_when=FIRST_COMPLETED).done


if __name__ == "__main__":
    sys.exit(main())
