"""The marker ``fits_cuda``: each test on a card of its own; this machine has none."""

import pytest
from inner_pytest import add_tests, run_pytest

pytestmark = pytest.mark.long
MEMORY = "MEMORY PROBLEMS"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards")
    add_tests(folder, "cards.py")
    (folder / "conftest.py").write_text(
        "import pytest\n"
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--size', type=int, default=0)\n"
        "@pytest.fixture\n"
        "def size(request):\n"
        "    return request.config.getoption('--size')\n"
    )
    return folder


@pytest.fixture(scope="module")
def cards(folder):
    return run_pytest(
        folder, "-rs", "--strict-markers", "--junitxml=junit.xml", timeout=600
    )


@pytest.mark.parametrize(
    "name",
    [
        *("test_fits", "test_fits_with_the_host", "test_goes_on_with_less"),
        *(f"test_has_fixtures[{size << 20}]" for size in (8, 16)),
        *("test_measures", "test_computes", "TestOfUnittest::test_case"),
        *("test_before", "test_between", "test_runs_here", "test_starts_a_process"),
        "test_has_the_allocator_of_the_marker",
    ],
)
def test_what_fits_passes_on_its_card(name, cards):
    assert cards.outcomes[name] == "PASSED"


def test_what_does_not_fit_fails_with_the_explained_error(cards):
    assert cards.outcomes["test_does_not_fit"] == MEMORY
    text = cards.texts["test_does_not_fit"]
    assert "second = take(200 * MIB)" in text
    assert "oomph: no room for 200.00 MiB" in text
    assert "Test does not fit 512MiB,context=0 (oomph without offload): " in text
    assert "300.00 MiB" in text


def test_the_allocator_is_that_of_the_marker(cards):
    assert cards.outcomes["test_does_not_fit_native"] == MEMORY
    text = cards.texts["test_does_not_fit_native"]
    assert "Test does not fit 512MiB,context=0 (PyTorch): " in text
    assert "oomph: no room" not in text


def test_a_fixture_is_set_up_on_the_card(cards):
    assert cards.outcomes["test_has_a_fixture_that_does_not_fit"] == "ERROR"
    text = cards.texts["test_has_a_fixture_that_does_not_fit"]
    assert "CUDA out of memory" in text


def test_other_markers_are_checked_on_the_card(cards):
    assert cards.outcomes["test_has_another_marker"] == MEMORY
    text = cards.texts["test_has_another_marker"]
    assert "Test was limited to 8.00 MiB but allocated 16.00 MiB" in text


def test_what_fails_otherwise_is_no_memory_problem(cards):
    assert cards.outcomes["test_fails_by_itself"] == "FAILED"
    assert "does not fit" not in cards.texts["test_fails_by_itself"]
    assert "assert 16777216 == (17 * 1048576)" in cards.texts["test_fails_by_itself"]


def test_outcomes_come_back_as_they_are(cards):
    assert cards.outcomes["test_is_expected_to_fail"] == "XFAIL"
    assert cards.outcomes["test_skips_itself"] == "SKIPPED"


def test_a_process_that_ends_early_fails_its_test(cards):
    assert cards.outcomes["test_dies"] == "FAILED"
    assert "the script failed with exit code -9" in cards.texts["test_dies"]


def test_a_loop_that_waits_for_a_value_is_ended(cards):
    assert cards.outcomes["test_waits_for_a_value"] == "FAILED"
    assert "the script took too long" in cards.texts["test_waits_for_a_value"]


def test_a_fixture_of_the_module_lives_through_a_test_on_a_card(cards, folder):
    assert (folder / "log").read_text() == "begins\nends\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_has_no_such_card", "must start with the memory of a device"),
        ("test_has_two_cards", "give one card"),
        ("test_has_no_such_way", "there is no way 'luck'"),
    ],
)
def test_a_marker_that_makes_no_sense_says_so(name, said, cards):
    assert cards.outcomes[name] == "ERROR"
    assert said in cards.texts[name]


def test_figures_of_a_card_are_in_the_table_of_the_run(cards, folder):
    assert "test_measures" in cards.out.partition("= GPU memory =")[2]
    assert 'name="cuda_memory_peak_bytes" value="16777216"' in (
        folder / "junit.xml"
    ).read_text().replace("'", '"')


def test_options_of_the_run_are_those_on_the_card(folder):
    (folder / "test_options.py").write_text(
        "import pytest\n"
        "@pytest.mark.fits_cuda('1GiB')\n"
        "def test_option(size):\n"
        "    assert size == 7\n"
    )
    words = ("--size", "7", "-k", "test_option", "-n2", "--simulate-gpu", "2GiB")
    found = run_pytest(folder, *words, timeout=600)
    assert found.outcomes == {"test_option": "PASSED"}
