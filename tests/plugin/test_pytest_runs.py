"""Runs of the pytest plugin: measured, stored, compared, shared out by xdist."""

import json
import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest
from inner_pytest import add_tests, run_pytest
from support import MIB

CARD = "256MiB,context=0,memory=values"
SETTINGS = "offload:on-oom,reserve:0,host_limit:1GiB"
SIMULATED = ("--simulate-gpu", CARD, "--oomph", SETTINGS)
EMPTY = "def test_nothing():\n    pass\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run that xdist shared out and stored, and one that is worse."""
    folder = tmp_path_factory.mktemp("runs")
    add_tests(folder, "runs.py")
    first = run_pytest(
        folder,
        *(*SIMULATED, "-n", "2", "--cuda-memory-save=first"),
        *("--cuda-memory-json=first.json", "--junitxml=junit.xml"),
    )
    second = run_pytest(
        folder,
        *(*SIMULATED, "--cuda-memory-compare", "--cuda-memory-json=out/second.json"),
        *("--cuda-memory-fail=peak:4%", "--cuda-memory-fail=rescues:0"),
        GROWTH="1.0625",
        LOSS="2.2",
    )
    return SimpleNamespace(folder=folder, first=first, second=second)


def stored(runs):
    return json.loads((runs.folder / ".cuda_memory" / "0001_first.json").read_text())


def rows(run, test):
    """The rows of a test in the tables of a run: their cells after its name."""
    lines = (line for line in run.out.splitlines() if line.startswith(f"{test} "))
    return [re.split(r" {2,}", line)[1:] for line in lines]


# ---- What is measured


@pytest.mark.long
def test_the_figures_of_a_function_are_stored_by_its_name_and_parameters(runs):
    for count in (2, 3):
        test = stored(runs)["tests"][f"test_runs.py::test_takes[{count}]"]
        assert test["figures"] == {
            "peak_bytes": count * 8 * MIB,
            "reserved_bytes": count * 8 * MIB,
            "fragmentation": 0.0,
            "host_bytes": 0,
            "rescues": 0,
            "left_bytes": count * 8 * MIB,
        }


def test_of_several_measurements_the_largest_counts(runs):
    figures = stored(runs)["tests"]["test_runs.py::test_takes_as_before"]["figures"]
    assert figures["peak_bytes"] == 8 * MIB
    assert figures["left_bytes"] == 0


def test_what_oomph_puts_on_the_host_is_reported(runs):
    figures = stored(runs)["tests"]["test_runs.py::test_is_rescued"]["figures"]
    assert figures["peak_bytes"] == 9 * 32 * MIB
    assert figures["rescues"] >= 1
    assert figures["host_bytes"] >= 32 * MIB


def test_a_rescue_counts_as_out_of_memory_only_if_the_marker_says_so(runs):
    assert runs.first.outcomes["test_is_rescued_in_peace"] == "PASSED"
    assert runs.first.outcomes["test_is_rescued_to_its_harm"] == "MEMORY PROBLEMS"
    said = runs.first.texts["test_is_rescued_to_its_harm"]
    assert "oomph rescued it by putting" in said


def test_the_fixture_of_pytest_benchmark_works_beside_it(runs):
    assert runs.second.outcomes["test_uses_both_fixtures"] == "PASSED"
    figures = stored(runs)["tests"]["test_runs.py::test_uses_both_fixtures"]["figures"]
    assert figures["peak_bytes"] == 2 * MIB


# ---- What is told


def test_a_stored_run_says_what_it_was_made_with(runs):
    content = stored(runs)
    assert content["version"] == 1
    assert content["gpu"] == "oomph simulated GPU, 256.00 MiB"
    assert content["allocator"] == "oomph"
    assert content["torch"].startswith("2.")


def test_only_tests_that_passed_are_stored_but_json_has_all(runs):
    name = "test_runs.py::test_reports"
    content = json.loads((runs.folder / "out" / "second.json").read_text())
    assert content["tests"][name]["outcome"] == "failed"
    assert content["tests"][name]["metrics"]["loss"] == pytest.approx(2.2)
    assert content["compared_with"] == "0001_first"
    content = json.loads((runs.folder / "first.json").read_text())
    assert content["tests"].keys() == stored(runs)["tests"].keys()


def test_the_table_has_the_figures_of_all_workers(runs):
    (cells,) = rows(runs.first, "test_takes[3]")
    assert cells == ["24.00 MiB", "24.00 MiB", "0.00%", "0 bytes", "0", "24.00 MiB"]
    assert len(rows(runs.first, "test_takes[2]")) == 1
    assert "stored: .cuda_memory/0001_first.json" in runs.first.out


def test_the_properties_of_junit_are_those_figures(runs):
    root = ET.parse(runs.folder / "junit.xml").getroot()
    (case,) = root.findall(".//testcase[@name='test_takes[2]']")
    found = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert found["cuda_memory_peak_bytes"] == str(16 * MIB)
    assert found["cuda_memory_rescues"] == "0"
    (case,) = root.findall(".//testcase[@name='test_reports']")
    found = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert found["metric_loss"] == "2.0"


def test_the_header_says_that_the_gpu_is_simulated_and_what_allocates(runs):
    for run in (runs.first, runs.second):
        assert run.out.count("the GPU is simulated (256.00 MiB)") == 1
        assert f"oomph allocates ({SETTINGS})" in run.out


# ---- What is compared


def test_a_figure_that_grew_too_much_fails_its_test(runs):
    assert runs.first.outcomes["test_takes[2]"] == "PASSED"
    assert runs.second.outcomes["test_takes[2]"] == "MEMORY PROBLEMS"
    assert runs.second.texts["test_takes[2]"].startswith(
        "GPU memory: peak was 16.00 MiB in run 0001_first, now it is 17.00 MiB "
        "(+6.25%; --cuda-memory-fail allows 4%)"
    )
    assert runs.second.outcomes["test_takes_as_before"] == "PASSED"


def test_the_table_shows_what_changed(runs):
    assert "in brackets: since run 0001_first\n" in runs.second.out
    (cells,) = rows(runs.second, "test_takes[2]")
    assert cells[0] == "17.00 MiB (+6.25%)"
    (cells,) = rows(runs.second, "test_takes_as_before")
    assert "8.00 MiB (=)" in cells


def test_a_metric_that_got_worse_fails_its_test(runs):
    assert runs.first.outcomes["test_reports"] == "PASSED"
    assert runs.second.outcomes["test_reports"] == "MEMORY PROBLEMS"
    said = runs.second.texts["test_reports"].splitlines()
    assert said == [
        "Metric 'loss' got worse: 2.2, it was 2 (lower is better, tolerance 5%)"
    ]


def test_a_metric_without_a_stored_run_is_not_waved_through(tmp_path):
    add_tests(tmp_path, "runs.py")
    run = run_pytest(tmp_path, *SIMULATED, "-k", "test_reports")
    assert run.outcomes["test_reports"] == "MEMORY PROBLEMS"
    assert "Metric 'loss' cannot be compared" in run.texts["test_reports"]
    assert not (tmp_path / ".cuda_memory").exists()


# ---- Without a GPU, and without the plugin's work


@pytest.mark.long
def test_without_a_gpu_tests_are_skipped_with_the_reason(tmp_path):
    add_tests(tmp_path, "runs.py")
    run = run_pytest(tmp_path, "-rs", CUDA_VISIBLE_DEVICES="")
    assert run.code == 0
    assert run.outcomes["test_takes[2]"] == "SKIPPED"
    assert run.outcomes["test_is_rescued_in_peace"] == "SKIPPED"
    assert run.outcomes["test_of_another_kind"] == "PASSED"
    reason = "no GPU: PyTorch finds none; --simulate-gpu 12GiB simulates one"
    assert reason in run.out


def test_tests_do_not_run_on_another_allocator_than_was_asked_for(tmp_path):
    add_tests(tmp_path, "runs.py")
    (tmp_path / "conftest.py").write_text(
        "import torch\n"
        "from oomph.base import state\n"
        "state.is_installed = lambda: False  # as if it did not fit this PyTorch\n"
    )
    run = run_pytest(tmp_path, *SIMULATED, "-k", "peace")
    assert run.outcomes["test_is_rescued_in_peace"] == "ERROR"
    said = run.texts["test_is_rescued_in_peace"]
    assert "oomph could not be installed, the log says why" in said


def test_a_run_without_such_tests_loads_nothing_of_it(tmp_path):
    (tmp_path / "test_empty.py").write_text(EMPTY)
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_sessionfinish():\n"
        "    names = {name.partition('.')[0] for name in sys.modules}\n"
        "    print('LOADED', *sorted(names & {'torch', 'oomph', 'ctypes'}))\n"
        "    print('OURS', *sorted(n for n in sys.modules if 'oomph_pytest' in n))\n"
    )
    run = run_pytest(tmp_path, "-s", "-p", "no:benchmark", "-p", "no:faulthandler")
    assert run.code == 0
    assert "LOADED\n" in run.out
    assert "OURS oomph_pytest oomph_pytest.names\n" in run.out


def test_the_card_can_stand_in_the_configuration_file(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nsimulate_gpu = 3GiB\n")
    (tmp_path / "test_empty.py").write_text(EMPTY)
    run = run_pytest(tmp_path)
    assert run.code == 0
    assert "the GPU is simulated (3.00 GiB)" in run.out


# ---- What cannot be


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--simulate-gpu", "much"], "--simulate-gpu much: "),
        (["--oomph", "offload:never"], "--oomph offload:never: offload"),
        (["--cuda-memory-fail", "top:5%"], "'top:5%' is not FIGURE:GROWTH, such as"),
        (["--cuda-memory-fail", "peak:much"], "'peak:much': 'much' is not a size"),
        (["--cuda-memory-fail", "peak:5%"], "there is no stored run in"),
        (["--cuda-memory-compare=main"], "there is no stored run main in"),
        (["--cuda-memory-compare=bad.json"], "bad.json is not a stored run"),
        (["--cuda-memory-save", "tests/"], "'tests/' is not a name for a run"),
    ],
)
def test_an_option_that_makes_no_sense_is_a_usage_error(tmp_path, arguments, why):
    (tmp_path / "test_empty.py").write_text(EMPTY)
    (tmp_path / "bad.json").write_text("{}")
    run = run_pytest(tmp_path, *arguments)
    assert run.code == 4
    assert why in run.out
    assert "Traceback" not in run.out


def test_a_card_that_comes_after_pytorch_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "test_empty.py").write_text(EMPTY)
    (tmp_path / "torch.py").touch()
    run = run_pytest(tmp_path, "-p", "torch", "--simulate-gpu=1GiB", PYTHONPATH=".")
    assert run.code == 4
    assert "--simulate-gpu 1GiB: PyTorch is imported already" in run.out
    assert "OOMPH_SIMULATE=1GiB pytest ..." in run.out
