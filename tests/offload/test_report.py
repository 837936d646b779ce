"""What is said of memory on the host: a line a step, and a table at the end."""

import re
import textwrap

from support import lines, run

CARD = "64MiB,context=0,link=25GB/s"
CONF = "reserve:0,host_ahead:0,host_limit:256MiB"
STEPS = """
import torch
import oomph

def take(size):
    return torch.empty(size << 20, dtype=torch.uint8, device="cuda")

def steps(*rescues):
    # Other sizes each time: what repeats is predicted, and no rescue.
    for step, count in enumerate(rescues):
        kept = [take(60)] + [take(10 + 2 * step) for _ in range(count)]
        del kept
        oomph.step()

"""


def table(result) -> dict[str, str]:
    """The rows of the table at the end, by their names."""
    text = re.split("GPU . was (?:out|short) of memory:\n", result.err)[-1]
    rows = (line.strip().split("  ", 1) for line in text.splitlines())
    return {name: value.strip() for name, value in rows}


def test_at_the_end_a_table_says_what_rescues_came_to():
    result = run(STEPS + "steps(0, 2, 1, 1)", card=CARD, conf=CONF)
    assert result.code == 0
    assert table(result) == {
        "steps": "4",
        "blocks that fell back to the host": "4, 50.00 MiB",  # and 4 on the device
        "in each of the last steps": "0 2 1 1",
        "per step, on average": "12.50 MiB; each pass over it takes about "
        "0.5 ms at 24.7 GB/s",
        "used on host pages in the last step": "12.00 MiB; each pass over it takes "
        "about 0.5 ms at 24.7 GB/s",
        "device memory, peak": "64.00 MiB",
        "host memory, peak": "24.00 MiB of 256.00 MiB",
        "link": "24.7 GB/s to the host, 24.7 GB/s to the device",
    }


def test_a_run_that_ends_within_its_first_step_has_a_table_too():
    result = run(STEPS + "kept = [take(64), take(10)]", card=CARD, conf=CONF)
    rows = table(result)
    assert rows["steps"] == "0"
    none = "none ended: call oomph.step() after each"
    assert rows["in each of the last steps"] == none
    assert rows["in the first step"].startswith("10.00 MiB; each pass over it")
    assert rows["used on host pages so far"].startswith("10.00 MiB; each pass over it")


def test_the_table_says_what_steps_without_rescues_used_on_the_host():
    # What is predicted goes there in each step, and is no rescue.
    code = """
    oomph._C.predict_host(0, 4 << 20, 4 << 20)
    for _ in range(12):
        kept = [take(60), take(20), take(20)]
        del kept
        oomph.step()
    """
    result = run(STEPS + textwrap.dedent(code), card=CARD, conf=CONF)
    rows = table(result)
    assert rows["in each of the last steps"] == " ".join("0" * 10)
    used = rows["used on host pages in the last step"]
    assert used == "36.00 MiB; each pass over it takes about 1.5 ms at 24.7 GB/s"


def test_the_table_says_that_the_last_step_used_nothing_there():
    result = run(STEPS + "steps(0, 2, 1, 0)", card=CARD, conf=CONF)
    assert table(result)["used on host pages in the last step"] == "0 bytes"


def test_what_the_program_has_moved_there_itself_is_in_the_table():
    code = """
    kept = take(20)
    oomph.evict(kept)
    oomph.step()
    oomph.step()
    """
    result = run(STEPS + textwrap.dedent(code), card=CARD, conf=CONF)
    assert len(lines(result.err, "GPU 0 was short of memory:")) == 1
    rows = table(result)
    assert rows["used on host pages in the last step"].startswith("20.00 MiB; ")
    assert "blocks that fell back to the host" not in rows


def test_only_the_last_steps_are_shown_one_by_one():
    result = run(STEPS + "steps(*[2] * 5, *[1] * 10)", card=CARD, conf=CONF)
    assert table(result)["in each of the last steps"] == " ".join("1" * 10)


def test_a_run_that_fits_says_nothing():
    result = run(STEPS + "steps(0, 0)", card=CARD, conf=CONF)
    assert result.said == ""


def test_a_step_with_rescues_has_one_line():
    result = run(STEPS + "steps(3, 0, 2)", card=CARD, conf=CONF)
    assert len(lines(result.err, "MiB fell back to host memory")) == 2


def test_the_line_says_what_the_step_before_used_on_the_host():
    result = run(STEPS + "steps(3, 2)", card=CARD, conf=CONF)
    first, second = lines(result.err, "MiB fell back to host memory")
    assert first.endswith("GB/s")
    assert second.endswith("; the last step used 30.00 MiB on host pages")


def test_each_device_that_was_out_of_memory_has_a_table():
    code = """
    import torch
    kept = [
        torch.empty(size << 20, dtype=torch.uint8, device=device)
        for device in ("cuda:0", "cuda:2")
        for size in (64, 10)
    ]
    """
    result = run(code, card=f"{CARD},devices=3", conf=CONF)
    assert [line[:6] for line in lines(result.err, "was out of memory:")] == [
        "GPU 0 ",
        "GPU 2 ",
    ]


def test_others_add_rows_where_they_offloaded_something():
    result = run(
        STEPS
        + """
from oomph.base import log
moved = {1: {"moved to the host": "3.00 GiB"}}
log.more_rows.append(lambda device: moved.get(device, {}))
steps(0)
torch.ones(1, device="cuda:1")
""",
        card=f"{CARD},devices=2",
        conf=CONF,
    )
    assert lines(result.err, "was short of memory:") == ["GPU 1 was short of memory:"]
    rows = table(result)
    assert rows["moved to the host"] == "3.00 GiB"
    assert "blocks that fell back to the host" not in rows


def test_why_oomph_is_not_in_use_is_said_once(caplog):
    from oomph.base import log

    for reason in ("of the moon", "of the moon", "of the sun"):
        log.not_in_use(reason)
    assert [record.getMessage() for record in caplog.records] == [
        "oomph is not in use: of the moon",
        "oomph is not in use: of the sun",
    ]
