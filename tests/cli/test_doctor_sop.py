"""``oomph doctor --sop``: what it ticks is so, and it fits the memory that is gone."""

import json

from oomph.doctor import sop
from support import lines, oomph
from test_doctor import FORMS, doctor


def test_a_log_of_host_memory_gets_the_procedure_for_host_memory():
    text = FORMS["host memory"][0].encode()
    steps = json.loads(doctor("--sop", "--json", "-", log=text).stdout)
    titles = " ".join(step["title"] for step in steps)
    assert "host memory" in titles and "mixed precision" not in titles


DUMP = (
    "{'gradient_accumulation_steps': %s, 'gradient_checkpointing': %s, 'bf16': %s, "
    "'deepspeed': %s}"
)


def test_a_technique_is_in_use_only_if_its_value_is_not_off():
    def used(*values: object) -> list[str]:
        log = (DUMP % values).encode()
        return json.loads(doctor("--json", log=log).stdout or "{}")["seen"]

    assert used(1, False, False, None) == []
    assert used(2, True, "'yes'", "'ds.json'") == [
        *("accumulation", "amp", "checkpointing", "sharding")
    ]


def test_a_driver_that_is_absent_is_not_said_to_be_there(monkeypatch):
    monkeypatch.setattr(sop.versions, "driver_version", lambda: "none")
    assert "[ ] NVIDIA's driver: not found" in sop.text(sop.steps(None))


def test_where_gpus_use_the_cpus_memory_it_says_that_nothing_is_offloaded():
    for card, said in (
        (
            "gb10",
            "[ ] GPUs have memory of their own: GPU 0 uses the CPU's, so oomph "
            "offloads nothing there by default",
        ),
        ("gh200", "[x] GPUs have memory of their own"),
    ):
        text = oomph("doctor", "--sop", card=card).out
        (line,) = lines(text, "GPUs have memory of their own")
        assert line.strip() == said
