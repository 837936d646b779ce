"""Who may call and include whom in csrc, and what ``import oomph`` brings along."""

import ast
import functools
import graphlib
import os
import re
import runpy
import subprocess
import sysconfig
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import oomph
import pytest
from oomph import settings
from support import ROOT, build_description, run

CSRC = ROOT / "csrc"
SIM = CSRC / "sim"

# The folders from the bottom up: a call and an include go to the own folder, or to one
# further down. The parts of the public header, in oomph, know each other alone.
FLOORS = [
    *("oomph", "core/base", "core/heap", "core/layout", "driver", "core/stream"),
    *("core/memory", "core/device", "core/alloc", "core/control", "."),
    *("python/interpreter", "python"),
]
# Those of the simulated libraries; one that is not named here has a single folder.
SEVERAL = {
    "libcuda": ("base", "session", "memory", "objects", "engine", "execution", "api"),
    "libnccl": ("base", "ranks", "operations", "api"),
}
LIBRARIES = sorted({path.relative_to(SIM).parts[0] for path in SIM.rglob("*.c")})
LIBRARY_FLOORS = {
    name: [f"sim/{name}/{part}" for part in SEVERAL.get(name, ())] or [f"sim/{name}"]
    for name in LIBRARIES
}
# What binds the core to others sees its public header alone, files of its own, and two
# tools.
FACE = {"oomph.h"}
PARTS = "oomph"
TOOLS = {"core/base/lock.h", "core/base/map.h"}
# Those of PyTorch's side, from the bottom up.
TORCH_FLOORS = ["torch/base", "torch/allocator", "torch/tensors", "torch"]
BINDINGS = (".", "python/interpreter", "python", *TORCH_FLOORS)
# Headers that are not ours, and who alone may include them.
FOREIGN = {
    r"cuda\.h|cudaTypedefs\.h": {"driver/cuda.h"},
    r"dlfcn\.h": {"driver/cuda.c", "torch/allocator/workspaces.hpp"},
    r"Python\.h": {"python/interpreter/beyond.h", "torch/base/python.hpp"},
    r"(torch|c10|ATen)/.*|cuda_runtime.*": {"torch/"},
}
# Blocks and plans know of nothing that acts.
PURE = ("core/base", "core/heap", "core/layout")
PURE_ARE_NOT = ("core/base/lock.h",)

SUFFIXES = {".c", ".h", ".cpp", ".hpp"}
OURS = sorted(
    str(path.relative_to(CSRC))
    for path in CSRC.rglob("*")
    if path.suffix in SUFFIXES and SIM not in path.parents
)
IN_LIBRARIES = {
    library: sorted(
        str(path.relative_to(CSRC))
        for path in (SIM / library).rglob("*")
        if path.suffix in SUFFIXES
    )
    for library in LIBRARIES
}
DRIVER = IN_LIBRARIES["libcuda"]
STUBS = (SIM / "stubs.py").read_text()
# docs/folders_*.svg
PICTURES = runpy.run_path(str(ROOT / "tools" / "draw_folders.py"))
REDRAW = "python tools/draw_folders.py"
# What the libraries of the simulation know of each other.
SHARED = {f"sim/{path.name}" for path in SIM.glob("*.h")}


def folder(name: str) -> str:
    return str(Path(name).parent)


def includes(path: Path) -> tuple[set[str], set[str]]:
    """The names that a file includes: ours, in quotes, and others."""
    found = re.findall(r'^\s*#\s*include\s+(["<])([^">]+)[">]', path.read_text(), re.M)
    ours = {name for mark, name in found if mark == '"'}
    return ours, {name for mark, name in found if mark == "<"}


def reached(path: Path) -> set[str]:
    """What a file of the simulation includes of ours, by its place below csrc."""
    beside = path.parent.relative_to(CSRC)
    return {
        str(beside / name if (path.parent / name).exists() else Path("sim", name))
        for name in includes(path)[0]
    }


def included(names: list[str]) -> dict[str, set[str]]:
    """Which of these files each includes; the public header is that of the bindings."""
    found = {}
    for name in names:
        headers = includes(CSRC / name)[0]
        headers -= FACE if folder(name) not in BINDINGS else set()
        found[name] = {*names} & (headers | {f"sim/{header}" for header in headers})
    return found


def order_of(graph: dict[str, set[str]]) -> list[str]:
    """A graph's nodes from the bottom up; fails on a circle, and names it."""
    try:
        return list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(reversed(error.args[1]))}")


# ---- calls in csrc


class Symbols(NamedTuple):
    """What a file and others know of each other."""

    defined: set[str]  # for others
    wanted: set[str]  # of others
    hidden: set[str]  # of the defined: for files of its library alone


def symbols(source: Path, out: Path) -> Symbols:
    """Those of a C file."""
    made = out / (str(source.relative_to(CSRC)).replace("/", "-") + ".o")
    python = sysconfig.get_paths()["include"]
    build = build_description()
    folders = [CSRC, SIM, python, *build["cuda_includes"]()]
    flags = ["-std=c17", "-D_GNU_SOURCE", build["LIMITED_API"], "-O0"]
    flags += ["-fvisibility=hidden", *(f"-I{f}" for f in folders)]
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, *flags, "-c", str(source), "-o", str(made)], check=True)
    listed = subprocess.run(
        ["readelf", "--symbols", "--wide", str(made)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    found = Symbols(set(), set(), set())
    row = r" (GLOBAL|WEAK) +(\w+) +(\w+) (\w+)$"
    for bind, visibility, section, name in re.findall(row, listed.stdout, re.M):
        if section != "UND":
            found.defined.add(name)
            if visibility == "HIDDEN":
                found.hidden.add(name)
        elif bind == "GLOBAL":
            found.wanted.add(name)
    return found


@functools.cache
def declared(header: Path) -> set[str]:
    """The names in a header, but for its comments; none if there is no such header."""
    text = header.read_text() if header.exists() else ""
    return {*re.findall(r"\w+", re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S))}


def symbols_of(sources: list[Path], out: Path) -> dict[str, Symbols]:
    """Those of each C file."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda source: symbols(source, out), sources))
    names = [str(source.relative_to(CSRC)) for source in sources]
    return dict(zip(names, found, strict=True))


def calls(found: dict[str, Symbols]) -> dict[str, dict[str, set[str]]]:
    """Which files each file needs, and which symbols of theirs."""
    home = {symbol: name for name, own in found.items() for symbol in own.defined}
    used: dict[str, dict[str, set[str]]] = {name: {} for name in found}
    for name, own in found.items():
        for symbol in own.wanted & home.keys():
            used[name].setdefault(home[symbol], set()).add(symbol)
    return used


class House(NamedTuple):
    """The core or a simulated library."""

    name: str
    floors: list[str]
    symbols: dict[str, Symbols]
    calls: dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module", params=["core", *LIBRARIES])
def house(request, tmp_path_factory) -> House:
    """Its floors, and which files call which."""
    floors = FLOORS if request.param == "core" else LIBRARY_FLOORS[request.param]
    sources = [path for floor in floors for path in sorted((CSRC / floor).glob("*.c"))]
    found = symbols_of(sources, tmp_path_factory.mktemp("objects"))
    return House(request.param, floors, found, calls(found))


def test_no_files_call_each_other_in_a_circle(house):
    assert len(order_of(house.calls)) >= len(house.floors)


def test_no_folder_calls_a_higher_one(house):
    up = [
        (name, called)
        for name, others in house.calls.items()
        for called in others
        if house.floors.index(folder(called)) > house.floors.index(folder(name))
    ]
    assert up == []


def test_what_no_other_file_uses_is_static(house):
    wanted = {symbol for own in house.symbols.values() for symbol in own.wanted}
    alone = {
        (name, symbol)
        for name, own in house.symbols.items()
        for symbol in own.hidden - wanted
        if symbol not in STUBS  # which call it
    }
    assert alone == set()


def read(pattern: str, path: Path) -> str:
    """The first group of a pattern that a file has once."""
    (found,) = re.findall(pattern, path.read_text(), re.S)
    return found


def test_each_setting_of_the_core_has_one_name_wherever_it_is_passed_on():
    struct = read(r"struct oomph_config \{(.*?)\n\}", CSRC / PARTS / "start.h")
    members = re.findall(r"^ +\w+ (\w+);", struct, re.M)
    stub = read(r"def configure\((.*?)\) -> None", PYTHON / "oomph" / "_C.pyi")
    names = read(r"char \*names\[\] = \{(.*?)NULL\}", CSRC / "python" / "module.c")
    assert len(members) > 10
    assert {*re.findall(r"(\w+):", stub)} == {*members}
    assert {*re.findall(r'"(\w+)"', names)} == {*members}
    assert settings.for_core(settings.complete({})).keys() == {*members}


# What oomph._C has for tests alone, and what for.
FOR_TESTS = {
    "check": "walks all records, in tests with the real PyTorch",
    "call_site": "reads a frame where there is neither PyTorch nor a driver",
    "sites_stop": "gives the benchmark of call sites its other side",
}


def test_a_function_of_the_extension_module_is_used():
    stub = ast.parse((PYTHON / "oomph" / "_C.pyi").read_text())
    functions = {f.name for f in stub.body if isinstance(f, ast.FunctionDef)}
    text = "".join(path.read_text() for path in PYTHON.glob("oomph*/**/*.py"))
    used = {f for f in functions if re.search(rf"\b(_C|core)\.{f}\b", text)}
    assert functions - used == FOR_TESTS.keys()


@pytest.mark.parametrize("house", ["core", "libcuda"], indirect=True, scope="module")
def test_the_picture_of_the_folders_is_that_of_the_code(house):
    kind, names = ("core", OURS) if house.name == "core" else ("driver", DRIVER)
    drawn = PICTURES["of_files"](house.calls, included(names))
    assert PICTURES["picture"](kind).read_text() == drawn, REDRAW


def test_a_circle_is_found_and_named(tmp_path):
    graph = {"a.c": {"b.c"}, "b.c": {"c.c"}, "c.c": {"a.c"}}
    with pytest.raises(pytest.fail.Exception, match="a circle: .*b.c"):
        order_of(graph)


def public_headers(symbols: set[str]) -> set[str]:
    """The parts of the public header that declare one of these."""
    return {
        str(path.relative_to(CSRC))
        for path in (CSRC / PARTS).glob("*.h")
        if declared(path) & symbols
    }


def test_what_a_file_has_for_others_is_in_the_header_of_its_name(house):
    # Or in the public one. What a library exports is in that of who invented it.
    elsewhere = [
        (name, symbol)
        for name, own in house.symbols.items()
        for symbol in sorted(own.hidden - declared((CSRC / name).with_suffix(".h")))
        if not public_headers({symbol})
    ]
    assert elsewhere == []


@pytest.mark.parametrize("house", ["core"], indirect=True)
def test_a_file_says_which_public_header_it_implements_if_the_names_differ(house):
    silent = {}
    for name, own in house.symbols.items():
        source = CSRC / name
        openings = [
            path.read_text().partition("#")[0]
            for path in (source, source.with_suffix(".h"))
            if path.exists()
        ]
        headers = public_headers(own.hidden - declared(source.with_suffix(".h")))
        unsaid = {
            header
            for header in headers - {f"{PARTS}/{source.stem}.h"}
            if not any(header in opening for opening in openings)
        }
        if unsaid:
            silent[name] = unsaid
    assert silent == {}


def test_a_library_in_cpp_is_one_file_and_its_headers():
    files = Counter(path.parent for path in CSRC.rglob("*.cpp"))
    assert {*files.values()} == {1}


# ---- includes in csrc


def test_every_folder_has_its_floor():
    assert {folder(name) for name in OURS} == {*FLOORS, *TORCH_FLOORS}
    for library, names in IN_LIBRARIES.items():
        assert {folder(name) for name in names} == {*LIBRARY_FLOORS[library]}


@pytest.mark.parametrize("name", OURS)
def test_a_file_includes_only_what_lies_below_it(name):
    ours, _ = includes(CSRC / name)
    if name in FACE:
        wrong = {h for h in ours if folder(h) != PARTS}
    elif folder(name) in BINDINGS:
        floors = TORCH_FLOORS if folder(name) in TORCH_FLOORS else FLOORS
        own = {*floors[: floors.index(folder(name)) + 1]} & {*BINDINGS}
        wrong = {h for h in ours - FACE - TOOLS if folder(h) not in own}
    else:
        floor = FLOORS.index(folder(name))
        wrong = {h for h in ours - FACE if FLOORS.index(folder(h)) > floor}
    assert wrong == set()


def test_only_the_public_header_includes_its_parts():
    for name in OURS:
        if name not in FACE and folder(name) != PARTS:
            assert PARTS not in map(folder, includes(CSRC / name)[0]), name
    parts = {name for name in OURS if folder(name) == PARTS}
    assert includes(CSRC / "oomph.h")[0] == parts


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_file_of_a_library_includes_only_what_lies_below_it(library):
    floors = LIBRARY_FLOORS[library]
    up = [
        (name, header)
        for name in IN_LIBRARIES[library]
        for header in reached(CSRC / name) - SHARED
        if folder(header) not in floors[: floors.index(folder(name)) + 1]
    ]
    assert up == []


def test_no_header_includes_itself_in_the_end():
    headers = [name for name in OURS if name.endswith((".h", ".hpp"))]
    order_of({name: includes(CSRC / name)[0] for name in headers})
    headers = [str(path.relative_to(CSRC)) for path in SIM.rglob("*.h")]
    order_of({name: reached(CSRC / name) for name in headers})
    headers = [path.name for path in (SIM / "values").glob("*.hpp")]
    order_of({name: includes(SIM / "values" / name)[0] for name in headers})


@pytest.mark.parametrize("name", [n for n in OURS if folder(n) in PURE])
def test_what_is_pure_includes_nothing_that_acts(name):
    ours, foreign = includes(CSRC / name)
    assert {h for h in ours - FACE if folder(h) not in PURE} == set()
    if folder(name) != "core/base":
        assert not {*PURE_ARE_NOT} & ours
        assert "pthread.h" not in foreign


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_foreign_header_is_included_in_its_place_alone(foreign):
    users = {
        name
        for name in OURS
        if any(re.fullmatch(foreign, header) for header in includes(CSRC / name)[1])
    }
    allowed = tuple(FOREIGN[foreign])
    assert users  # or else the pattern is wrong
    assert {name for name in users if not name.startswith(allowed)} == set()


# ---- contracts in csrc


def test_every_function_with_a_status_names_its_errors():
    text = "".join(path.read_text() for path in (CSRC / PARTS).glob("*.h"))
    declared = r"((?://[^\n]*\n)*)((?:oomph_status_t oomph_\w+\([^;]*;\n)+)"
    found = re.findall(declared, text)
    assert len(found) > 30
    silent = [names for said, names in found if not re.search("rrors:|fails?\\b", said)]
    assert silent == []


# ---- csrc/sim


def test_the_simulation_and_the_core_do_not_know_each_other():
    for name in OURS:
        assert includes(CSRC / name)[0] <= {*OURS}, name


# ---- imports in python


PYTHON = ROOT / "python"


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(PYTHON).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {  # and the extension modules
    "oomph._C",
    *(module_of(path) for path in PYTHON.glob("oomph*/**/*.py")),
}


# Where what oomph itself gives lies: it imports that when it is first used.
FACED = {
    name: f"oomph.{home}" for home, names in oomph._HOMES.items() for name in names
}
FACED |= {name: f"oomph.{name}" for name in oomph._MODULES}


class Imports(ast.NodeVisitor):
    """What a module imports, inside functions too; not what only types need."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.unread: list[str] = []  # imports by name that do not say which

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0 and node.module
        for alias in node.names:
            self._take(node.module, alias.name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == "oomph":
            self._take("oomph", node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else None
        name = called.id if isinstance(called, ast.Name) else name
        if name in ("import_module", "__import__") and node.args:
            self._read(node.args[0])
        self.generic_visit(node)

    def _take(self, module: str, name: str) -> None:
        """A name of a module: another module, or what one has."""
        full = f"{module}.{name}"
        home = FACED.get(name) if module == "oomph" else None
        self.found.add(home or (full if full in MODULES else module))

    def _read(self, argument: ast.expr) -> None:
        """The modules that an import by name may mean: each text in its argument."""
        texts = [
            node.value
            for node in ast.walk(argument)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        is_open = isinstance(argument, ast.JoinedStr) and texts[0].startswith("oomph")
        if not texts or is_open:
            self.unread.append(ast.unparse(argument))
        self.found |= {*texts}


def read_imports(path: Path) -> Imports:
    imports = Imports()
    imports.visit(ast.parse(path.read_text()))
    return imports


def packages_of(name: str) -> set[str]:
    """A module and all packages that it lies in, which are imported with it."""
    parts = name.split(".")
    return {".".join(parts[: i + 1]) for i in range(len(parts))}


def python_imports() -> dict[str, set[str]]:
    """Which modules each module imports, with their packages.

    A module's own packages come first, so it imports them only where it says so.
    """
    graph = {}
    for path in PYTHON.glob("oomph*/**/*.py"):
        name, found = module_of(path), read_imports(path).found
        brought = {p for other in found for p in packages_of(other)}
        graph[name] = (found | (brought - packages_of(name))) - {name}
    return {name: found & graph.keys() for name, found in graph.items()}


def test_no_modules_import_each_other_in_a_circle():
    assert len(order_of(python_imports())) > 60


def test_the_picture_of_the_packages_is_that_of_the_code():
    drawn = PICTURES["of_python"](python_imports())
    assert PICTURES["picture"]("python").read_text() == drawn, REDRAW


def test_an_import_by_name_says_which_module_of_ours_it_means():
    face = PYTHON / "oomph" / "__init__.py"  # whose names are read where they are used
    unread = {
        path.name: found
        for path in PYTHON.glob("oomph*/**/*.py")
        if path != face and (found := read_imports(path).unread)
    }
    assert unread == {}


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("import oomph_pytest", "oomph_pytest"),
        ("from oomph_pytest import FIXTURE, gpu", "oomph_pytest"),
        ("from oomph_pytest import FIXTURE, gpu", "oomph_pytest.gpu"),
        ("from oomph import install", "oomph.setup.installation"),
        ("import oomph\ndef f(): oomph.last_oom()", "oomph.diagnosis.oom_error"),
        ("importlib.import_module('oomph._torch')", "oomph._torch"),
        ("import_module('oomph.cli' if a else 'oomph.guard')", "oomph.guard"),
    ],
)
def test_an_import_is_read(line, module):
    imports = Imports()
    imports.visit(ast.parse(line))
    assert module in imports.found


@pytest.mark.parametrize("argument", ["f'oomph.{name}'", "name"])
def test_an_import_that_cannot_be_read_is_found(argument):
    imports = Imports()
    imports.visit(ast.parse(f"import_module({argument})"))
    assert imports.unread == [argument]


# With the name of a module of ours: in, .get(), [] and their like.
LOOKUP = r"""[\"']oomph[^\n]*sys\.modules|sys\.modules[^\n]*[\"']oomph"""


@pytest.mark.parametrize(
    "line",
    [
        "if 'oomph.leaks' in sys.modules:",
        'sys.modules.get("oomph.leaks")',
        'sys.modules["oomph"]',
    ],
)
def test_a_look_up_of_a_module_of_ours_is_found(line):
    assert re.search(LOOKUP, line)


def test_no_module_of_ours_is_looked_up_where_modules_are_kept():
    lookups = [
        (path.name, line)
        for path in PYTHON.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(LOOKUP, line)
    ]
    assert lookups == []


# The packages and public modules of oomph, from the bottom up.
ROOMS = [
    *(
        "base",
        "_torch",
        "_values",
        "_extensions",
        "simulate",
        "steps",
        "memory",
        "holders",
        "settings",
        "recompute",
    ),
    *("offload", "forked", "replay", "diagnosis", "leaks", "guard", "planner"),
    *("traces", "setup", "doctor", "job", "fitting", "cli", "__main__"),
]


def test_no_package_imports_a_higher_one():
    up = [
        (name, other)
        for name, others in python_imports().items()
        for other in others
        if name.startswith("oomph.") and other.startswith("oomph.")
        if ROOMS.index(name.split(".")[1]) < ROOMS.index(other.split(".")[1])
    ]
    assert up == []


# ---- what one can survey

# Headers and stubs of types count, too.
WRITTEN = [
    path.relative_to(ROOT)
    for below in (CSRC, PYTHON)
    for path in below.rglob("*")
    if path.suffix in {*SUFFIXES, ".py", ".pyi"}
]


def test_no_folder_has_many_files():
    folders = Counter(path.parent for path in WRITTEN)
    assert {str(f): count for f, count in folders.items() if count > 20} == {}


def test_no_file_has_many_lines():
    lines = {str(path): (ROOT / path).read_text().count("\n") for path in WRITTEN}
    assert len(lines) > 400  # or else they lie elsewhere
    assert {path: count for path, count in lines.items() if count > 400} == {}


# ---- import oomph


def added_modules(statement: str) -> set[str]:
    """The modules that a statement imports."""
    result = run(
        f"import sys; had = set(sys.modules); {statement}\n"
        "print(*(sys.modules.keys() - had))"
    )
    assert result.code == 0, result.err
    return set(result.out.split())


def test_import_oomph_imports_neither_pytorch_nor_a_driver():
    added = added_modules("import oomph")
    assert "oomph" in added
    assert not added & {"torch", "numpy", "ctypes", "json", "argparse", "logging"}
    assert not added & {"oomph._C", "oomph._torch", "oomph.base.log", "oomph.cli"}


@pytest.mark.parametrize("name", ["guard", "leaks", "planner", "simulate"])
def test_a_public_module_is_there_after_import_oomph(name):
    result = run(f"import oomph; print(oomph.{name}.__name__)")
    assert result.out == f"oomph.{name}\n"


def test_import_oomph_adds_few_modules():
    assert len(added_modules("import oomph")) <= 10


def test_the_entry_point_imports_nothing_where_nothing_is_asked_for():
    added = added_modules("import oomph_autoload; oomph_autoload.main()")
    assert not added & {"oomph.setup.environment", "json"}
