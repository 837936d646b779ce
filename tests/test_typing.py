"""What type checkers say of programs that use oomph."""

from __future__ import annotations

import sys
from pathlib import Path

import oomph
import pytest
from oomph import settings
from support import Result, execute

USES = """
import oomph

oomph.install(host_limit="32GiB")
with oomph.no_offload(), oomph.batch_finder():
    usage: oomph.simulate.Usage = oomph.simulate.usage()

@oomph.no_offload()
def evaluate(count: int) -> int:
    return count

watch: oomph.leaks.Watch = oomph.leaks.watch("raise")
"""


def check(program: str, folder: Path) -> Result:
    (folder / "program.py").write_text(program)
    config = "[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n"  # a minute of work
    (folder / "mypy.ini").write_text(config)
    words = ["-m", "mypy", "--strict", "--python-executable", sys.executable]
    return execute(sys.executable, *words, "program.py", cwd=folder)


@pytest.mark.long
def test_typed_programs_may_use_all_public_names(tmp_path):
    names = "".join(f"reveal_type(oomph.{name})\n" for name in oomph.__all__)
    done = check(USES + names, tmp_path)
    assert done.code == 0, done.said
    assert "Any" not in {line.split('"')[1] for line in done.out.splitlines()[:-1]}


@pytest.mark.long
def test_a_setting_that_there_is_not_is_an_error_before_the_program_runs(tmp_path):
    done = check("import oomph\noomph.install(hostlimit='2GiB')\n", tmp_path)
    assert 'Unexpected keyword argument "hostlimit" for "install"' in done.out
    assert settings.Options.__annotations__.keys() == settings.SETTINGS.keys()
