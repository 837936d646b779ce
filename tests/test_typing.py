"""What type checkers say of programs that use oomph."""

from __future__ import annotations

import sys

import oomph
from support import execute

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


def test_typed_programs_may_use_all_public_names(tmp_path):
    names = "".join(f"reveal_type(oomph.{name})\n" for name in oomph.__all__)
    (tmp_path / "program.py").write_text(USES + names)
    config = "[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n"  # a minute of work
    (tmp_path / "mypy.ini").write_text(config)
    words = ["-m", "mypy", "--strict", "--python-executable", sys.executable]
    done = execute(sys.executable, *words, "program.py", cwd=tmp_path)
    assert done.code == 0, done.said
    assert "Any" not in {line.split('"')[1] for line in done.out.splitlines()[:-1]}
