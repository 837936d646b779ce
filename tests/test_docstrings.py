"""The docstrings in docs/api.md: they are complete, and their examples are true."""

import dataclasses
import functools
import importlib
import inspect
import json
import re
from typing import Any

import pytest
from support import ROOT, run

ENTRY = re.compile(r"^::: (\S+)(?:\n +options: \{([^\n]*)\})?", re.MULTILINE)
# Runs examples, each docstring's in names of its own. The first one installs oomph.
RUN = """
import doctest, json, sys
import oomph, torch
from oomph_pytest.benchmark import CudaMemory

def assumed():
    torch.manual_seed(0)
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Linear(2048, 2048, bias=False)
            self.head = torch.nn.Linear(2048, 8192, bias=False)
        def forward(self, x):
            return self.head(self.body(x))
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters())
    batch = torch.zeros(64, 2048, device="cuda")
    def train(steps):
        for _ in range(steps):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    with oomph.leaks.watch() as watched:
        train(5)
    found = oomph.fit(["-m", "this"], "1GiB")
    return {"json": json, "torch": torch, "oomph": oomph, "model": model,
            "batch": batch, "batches": [batch, batch], "train": train, "found": found,
            "watched": watched, "cuda_memory": CudaMemory()}

parser, names = doctest.DocTestParser(), None
runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
for name, text in json.loads(sys.argv[1]):
    test = parser.get_doctest(text, dict(names or {}), name, None, 0)
    runner.run(test)
    names = names or assumed()
sys.exit(runner.summarize(verbose=False).failed)
"""


def find(path: str) -> Any:
    """What a dotted path names."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(find(module), name)


@functools.cache
def documented() -> dict[str, Any]:
    """What the reference shows: names of functions, classes, methods and properties."""
    found = {}
    for path, options in ENTRY.findall((ROOT / "docs" / "api.md").read_text()):
        found[path] = shown = find(path)
        if not inspect.isclass(shown):
            continue
        members = re.search(r"members: \[([^]]*)\]", options)
        public = [name for name in vars(shown) if not name.startswith("_")]
        for name in re.findall(r"\w+", members[1]) if members else public:
            member = vars(shown)[name]
            if inspect.isfunction(member) or isinstance(member, property):
                found[f"{path}.{name}"] = member
    assert len(found) > 50
    return found


def lacks(path: str, shown: Any) -> list[str]:
    """What a docstring does not say although it should."""
    text = inspect.getdoc(shown) or ""
    wanted = [r"^\S.*[.:]$"]  # a sentence, or one that goes on in a list
    if inspect.isclass(shown):
        names = (
            [field.name for field in dataclasses.fields(shown)]
            if (dataclasses.is_dataclass(shown))
            else list(getattr(shown, "_fields", ()))
        )
        wanted += [r"^Attributes:$"] * bool(names)
        wanted += [rf"^    {name}: \S" for name in names]
    elif not isinstance(shown, property):
        signature = inspect.signature(shown)
        names = [name for name in signature.parameters if name != "self"]
        wanted += [r"^Example:$"]
        wanted += [rf"^    \*{{0,2}}{name}: \S" for name in names]
        wanted += [r"^Returns:$"] * (signature.return_annotation != "None")
    return [w for w in wanted if not re.search(w, text, re.MULTILINE)]


def test_a_docstring_tells_arguments_results_and_attributes_and_shows_an_example():
    found = {path: lacks(path, shown) for path, shown in documented().items()}
    assert {path: gaps for path, gaps in found.items() if gaps} == {}


@pytest.mark.long
def test_examples_are_true():
    texts = [
        (path, inspect.getdoc(shown) or "") for path, shown in documented().items()
    ]
    assert texts[0][0] == "oomph.install"
    result = run(RUN, json.dumps(texts), card="12GiB", cwd=ROOT)
    assert result.code == 0, result.out
