"""A fork of the process that imported PyTorch begins as a Python does that starts."""

import json
import sys

import pytest
from support import execute

TELLS = """
import json, os, sys
ours = sorted(name for name in sys.modules if name.partition(".")[0] == "oomph")
known = [__name__, globals().get("__file__"), sys.argv, sys.path, ours]
print(json.dumps(["forkserver" in sys.modules, "torch" in sys.modules, known]))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", TELLS],
        ["-m", "told"],
        ["told.py"],
        ["-m", "oomph", "run", "--simulate", "1GiB", "-m", "told"],
        ["-m", "oomph", "run", "--simulate", "1GiB", "told.py"],
        ["-m", "torch.distributed.run", "--standalone", "told.py"],
    ],
    ids=lambda arguments: " ".join(arguments).replace(TELLS, "CODE"),
)
def test_a_program_finds_what_it_finds_in_a_python_that_starts(arguments, tmp_path):
    (tmp_path / "told.py").write_text(TELLS)
    command = (sys.executable, *arguments, "a", "-b")
    card = None if "oomph" in arguments else "1GiB"
    path = str(tmp_path / "theirs")
    forked, anew = (
        json.loads(
            execute(*command, card=card, cwd=tmp_path, PYTHONPATH=path, anew=anew).out
        )
        for anew in (False, True)
    )
    assert forked == [True, False, anew[2]]
    assert anew[:2] == [False, False]


ENDS = """
import atexit, weakref
import torch, told

class Tells:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("gone:", self.name)

tensor = torch.ones(8, device="cuda")
weakref.finalize(tensor, print, "the tensor")
atexit.register(print, "at exit")
kept, told.kept = Tells("the program's"), Tells("a module's")
raise SystemExit(3)
"""


def test_a_program_ends_as_in_a_python_that_ends(tmp_path):
    (tmp_path / "told.py").write_text("")
    (tmp_path / "ends.py").write_text(ENDS)
    forked, anew = (
        execute(sys.executable, "ends.py", card="1GiB", conf="", cwd=tmp_path, anew=a)
        for a in (False, True)
    )
    for ended in (forked, anew):
        assert ended.code == 3
        # Which of the two goes first depends on when the collector last ran.
        assert ended.out.splitlines()[:2] == ["at exit", "the tensor"]
        gone = ["gone: a module's", "gone: the program's"]
        assert sorted(ended.out.splitlines()[2:]) == gone
