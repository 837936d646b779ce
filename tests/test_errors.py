"""docs/errors.md: each text that it explains stands in the code, and the reverse."""

import ast
import re
from pathlib import Path

import pytest
from support import ROOT

PAGE = ROOT / "docs" / "errors.md"
GAP = "…"
PYTHON = [*sorted(ROOT.glob("python/oomph*/**/*.py")), ROOT / "setup.py"]
C = sorted([*ROOT.glob("csrc/**/*.c"), *ROOT.glob("csrc/**/*.[ch]pp")])
LITERAL = r'"(?:[^"\\]|\\.)*"'
CHECKS = "TORCH_CHECK(?:_WITH|_VALUE)?"
# What no user meets: oomph_check(), which tests call, and mistakes of a caller in C.
INTERNAL_FILES = {"check.c"}
INTERNAL = {
    "a list of …",  # arguments of oomph._C
    "instances() takes types",
    "module 'oomph' has no attribute …",
    "module … has no attribute …",
    "no buffer has … bytes",
    "there is no site …",
    "there is no such ban",
    "a stream may be gone",
    "only a tensor has an outline",
    "only a tensor has a storage",
    "expected a node of PyTorch's own",
    "expected as many gradients as roots",
    "expected tensors",
    "this PyTorch leaves out no action, such as …",  # of which 2.10 is never told
    "… names no MemAvailable",
    "backward of what an earlier step made",  # in a forked child, which tells nobody
    "backward where nothing was recorded",  # likewise
    "open …",
    "oomph: …",  # another error's text, as are those that follow
    "--cuda-memory-fail: …",
}


def explained() -> list[str]:
    """The first cells of the tables: texts of errors."""
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.M)
    assert len(rows) > 100
    return rows


def words_of_python(node: ast.expr) -> str | None:
    """A text in Python with a gap for what is put into it; None: it is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[-+.\d]*[a-z]", GAP, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(words_of_python(part) or GAP for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return "".join(words_of_python(n) or GAP for n in (node.left, node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return words_of_python(node.func.value)  # such as .rstrip()
    return None


def words_of_c(literals: str) -> str:
    """Literals that follow each other, with a gap for what printf puts into them."""
    text = "".join(found[1:-1] for found in re.findall(LITERAL, literals))
    return re.sub(r"%[-+#.\d]*(?:ll|l|z)?[a-zA-Z]", GAP, text).replace('\\"', '"')


def texts_of_python(path: Path) -> list[str]:
    tree = ast.walk(ast.parse(path.read_text()))
    found = [words_of_python(node) for node in tree if isinstance(node, ast.expr)]
    return [text for text in found if text]


def texts_of_c(path: Path) -> list[str]:
    found = re.findall(rf"(?:{LITERAL}\s*)+", path.read_text())
    return [words_of_c(literals) for literals in found]


def raised_by_python(path: Path) -> list[str]:
    """Texts of the exceptions that a module raises."""
    nodes = ast.walk(ast.parse(path.read_text()))
    raised = [node.exc for node in nodes if isinstance(node, ast.Raise)]
    calls = [call for call in raised if isinstance(call, ast.Call) and call.args]
    found = [words_of_python(call.args[0]) for call in calls]
    return [text for text in found if text and text.strip(GAP)]


def raised_by_c(path: Path) -> list[str]:
    """Texts of oomph_fail(), and of what the classes raise."""
    ways = rf"oomph_fail\(\s*\w+,|{CHECKS}\([^;\"]*?,|PyErr_\w+\(\s*\w+,"
    found = re.findall(rf"(?:{ways})\s*((?:{LITERAL}\s*)+)", path.read_text())
    return [t for t in map(words_of_c, found) if t.strip(GAP) not in ("", "oomph: ")]


def matches(explained: str, text: str) -> bool:
    """Whether a text of the code says what the page says; it may say more."""
    place = 0
    for part in explained.split(GAP):
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


@pytest.mark.long
def test_each_text_that_is_explained_stands_in_the_code():
    code = [text for path in PYTHON for text in texts_of_python(path)]
    code += [text for path in C for text in texts_of_c(path)]
    lost = [row for row in explained() if not any(matches(row, text) for text in code)]
    assert lost == []


@pytest.mark.parametrize("language", ["python", "c"])
def test_each_error_of_the_code_is_explained(language):
    if language == "python":
        texts = {text for path in PYTHON for text in raised_by_python(path)}
    else:
        own = [p for p in C if "sim" not in p.parts and p.name not in INTERNAL_FILES]
        texts = {text for path in own for text in raised_by_c(path)}
    assert len(texts) > 30
    known = [*explained(), *INTERNAL]
    texts = {text for text in texts if re.search(r"\w", text)}  # not gaps alone
    assert {t for t in texts if not any(matches(row, t) for row in known)} == set()
