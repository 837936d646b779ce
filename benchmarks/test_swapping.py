"""What does moving live blocks cost beside the copy and the driver's calls?"""

from __future__ import annotations

import subprocess

import pytest
from support import build_with_core, numbers, on_simulated_card

LIMIT = 1.2
CLOCKS = {
    "gpu": "deterministic, 1 us for each driver call",
    "host": "best of 3, memory is really copied",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, float]:
    program = build_with_core("swap", tmp_path_factory.mktemp("swap"))
    card = "4GiB,context=0,memory=real,tick=1us,link=25GB/s"
    done = subprocess.run(
        [program],
        env=on_simulated_card(card),
        capture_output=True,
        text=True,
        check=True,
    )
    return numbers(done.stdout)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("way", ["evict", "promote"])
def test_a_move_costs_little_beside_the_copy_and_its_calls(figure, found, way, clock):
    ours, raw = found[f"{way}_{clock}_ns"], found[f"raw_{way}_{clock}_ns"]
    figure(
        name=f"1 GiB moved by {way} / copy and driver calls alone, {clock} time",
        value=ours / raw,
        limit=LIMIT,
        unit="x",
        kind="deterministic" if clock == "gpu" else "timed",
        how=f"{CLOCKS[clock]}: {ours / 1e6:.1f} ms against {raw / 1e6:.1f} ms, on the "
        "simulated card",
    )


def test_a_move_waits_for_the_device_once(figure, found):
    figure(
        name="drains for a move of 64 blocks",
        value=found["drains"] / found["moves"],
        limit=1,
        unit="drains",
        kind="deterministic",
        how=f"{found['drains']:.0f} drains in {found['moves']:.0f} moves of 1 GiB",
    )
