"""``python tests/campaign``: hunts for programs that are right natively alone.

Without ``--first`` it begins at a seed that nobody has seen. What is found is told with
its seed and made short; ``--seed N`` repeats it. Ends with 1 if anything was found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent)]

from campaign import hunt  # noqa: E402

TOLD = 250  # programs, after which it is said how many there were


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--programs", type=int, help="how many; else until time is up")
    parser.add_argument("--seconds", type=float, help="how long at most")
    parser.add_argument("--seed", type=int, help="repeats one program")
    parser.add_argument("--first", type=int, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep-long", action="store_true", help="makes nothing short")
    parser.add_argument("--until-found", action="store_true", help="one is enough")
    parser.add_argument("--out", type=Path, help="where the result goes, as JSON")
    return parser.parse_args()


def report(results: Iterator[Any], until_found: bool) -> Iterator[Any]:
    """Tells what is found as it comes, and now and then how far it is."""
    started = time.time()
    for count, (seed, found) in enumerate(results, 1):
        yield seed, found
        if count % TOLD == 0:
            print(f"{count} programs in {time.time() - started:.0f} s", flush=True)
        if found:
            print(f"\n=== seed {seed}: {found[1]}", flush=True)
        if found and until_found:
            break


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
    until_found = wanted.until_found
    shrinks = not (wanted.keep_long or until_found)
    found = hunt.run(first, programs, deadline, wanted.jobs, shrinks, until_found)
    results = [*report(found, until_found)]
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


if __name__ == "__main__":
    sys.exit(main())
