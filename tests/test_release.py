"""The list of what a release needs: each line is ticked for a reason."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import release

CHANGES = "# Changelog\n\n## 0.2.0 - 2026-11-26\n\n### Added\n\n* More.\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One that is ready to be released as 0.2.0."""
    package, results = (
        tmp_path / "python" / "oomph",
        tmp_path / "benchmarks" / "results",
    )
    for folder in (package, results, tmp_path / "dist", tmp_path / "tools"):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / ".gitignore").write_text("/dist/\n")
    (tmp_path / "tools" / "readme.py").write_text("")
    nothing = hashlib.sha256(b"").hexdigest()  # of the wheel below
    found = {
        "2.15": {"oomph": "0.2.0", "wheel_sha256": nothing, "checks": {"streams": ""}}
    }
    (results / "versions.json").write_text(json.dumps(found))
    (results / "gpu-card.json").write_text('{"versions": ["oomph 0.2.0"]}')
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    git(tmp_path, "tag", "v0.1.0")
    for name in (
        "oomph-0.2.0-cp310-abi3-manylinux_2_28_x86_64.whl",
        "oomph-0.2.0.tar.gz",
    ):
        (tmp_path / "dist" / name).touch()
    return tmp_path


def git(root: Path, *words: str) -> None:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", *who, *words], cwd=root, check=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "More")


def lacking(root: Path, version: str = "0.2.0") -> list[str]:
    """The checks that are not ticked."""
    return [c.missing.__name__ for c in release.CHECKS if c.missing(root, version)]


def test_what_is_ready_has_all_boxes_ticked(repository):
    assert lacking(repository) == []


def test_uncommitted_files_and_a_known_tag_are_reported(repository):
    (repository / "new.py").touch()
    assert lacking(repository) == ["is_committed"]
    commit(repository)
    git(repository, "tag", "v0.2.0")
    assert {"is_committed", "is_in_package"} <= set(lacking(repository))


def test_a_version_is_later_than_those_before_and_that_of_the_package(repository):
    assert "is_in_package" in lacking(repository, "0.3.0")
    git(repository, "tag", "v0.10.0")
    assert lacking(repository) == ["is_in_package"]


@pytest.mark.parametrize(
    "changes",
    [
        CHANGES.replace(" - 2026-11-26", ""),
        CHANGES.replace("### Added\n\n* More.\n", ""),
        CHANGES.replace("## 0.2.0", "## Unreleased\n\n### Fixed\n\n* It.\n\n## 0.2.0"),
    ],
    ids=["no date", "nothing said", "something unreleased"],
)
def test_the_changelog_has_a_dated_section_that_is_all(repository, changes):
    (repository / "CHANGELOG.md").write_text(changes)
    assert "is_in_changelog" in lacking(repository)


def test_old_names_go_with_the_release_after(repository):
    source = repository / "python" / "oomph" / "planner.py"
    source.write_text("figures = metrics  # its name up to 0.2\n")
    commit(repository)
    assert "are_old_names_gone" not in lacking(repository)
    source.write_text("figures = metrics  # its name up to 0.1\n")
    assert "are_old_names_gone" in lacking(repository)


def test_pages_that_are_out_of_date_are_reported(repository):
    (repository / "tools" / "readme.py").write_text("raise SystemExit(1)")
    assert "are_pages_written" in lacking(repository)


def test_a_wheel_is_of_this_version_and_newer_than_the_commit(repository):
    wheel = next((repository / "dist").glob("*.whl"))
    os.utime(wheel, (0, 0))
    assert lacking(repository) == ["is_built"]
    wheel.unlink()
    assert lacking(repository) == ["is_built"]


def test_other_versions_and_a_card_were_tried_with_this_oomph(repository):
    versions = repository / "benchmarks" / "results" / "versions.json"
    for oomph, error in (("0.2.0", "it hangs"), ("0.1.0", "")):
        found = {"2.15": {"oomph": oomph, "checks": {"streams": error}}}
        versions.write_text(json.dumps(found))
        assert "was_run_on_all_versions" in lacking(repository)
    (repository / "benchmarks" / "results" / "gpu-card.json").unlink()
    assert "was_run_on_hardware" in lacking(repository)


def test_the_wheel_that_is_released_is_the_one_that_was_tried(repository):
    (wheel,) = (repository / "dist").glob("*.whl")
    wheel.write_bytes(b"other")
    assert lacking(repository) == ["was_run_on_all_versions"]


def test_the_script_ticks_and_says_what_to_do():
    command = [sys.executable, ROOT / "tools" / "release.py"]
    done = subprocess.run([*command, "9.9.9"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "[ ] `oomph.__version__` is the version" in done.stdout
    assert "    python/oomph/__init__.py has" in done.stdout
    assert done.stdout.count("[") == len(release.CHECKS)
    done = subprocess.run([*command, "next"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "give the version" in done.stderr


def test_old_names_still_work_and_say_the_new_ones():
    from oomph import planner
    from oomph.diagnosis import diagnosis

    with pytest.deprecated_call(match=r"oomph\.planner\.metrics"):
        assert planner.figures is planner.metrics
    with pytest.deprecated_call(match="CategoryTotal"):
        assert diagnosis.Share is diagnosis.CategoryTotal
    with pytest.raises(AttributeError, match="no attribute 'figure'"):
        planner.figure  # noqa: B018
