"""The documentation as a site: it builds strictly, and nothing comes from elsewhere."""

import importlib
import re
from html.parser import HTMLParser

import pytest
from support import ROOT, run

BUILD = """
import socket, sys

def refuse(self, address):
    raise AssertionError(f"the build asks {address}")

socket.socket.connect = refuse
from mkdocs.__main__ import cli
cli(["build", "--strict", "--quiet", "--site-dir", sys.argv[1]])
"""
LOADS = {"src", "srcset", "poster", "data", "action"}
FOREIGN = re.compile(r"^\s*(?:\w+:)?//")
QUIET = {"NO_MKDOCS_2_WARNING": "1"}


class Loads(HTMLParser):
    """What a page loads when it is opened, and what makes its script load more."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.asks: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        names = LOADS | ({"href"} if tag == "link" else set())
        self.found += [values[name] for name in names & values.keys()]
        self.found += styled(values.get("style", ""))
        if values.get("data-md-component") == "source":  # stars, of the repository
            self.asks.append("source")
        if "mermaid" in values.get("class", "").split():  # draws with a library
            self.asks.append("mermaid")


def styled(css: str) -> list[str]:
    """What a style sheet loads."""
    return [
        a or b
        for a, b in re.findall(
            r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", css
        )
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    built = run(BUILD, out, cwd=ROOT, **QUIET)
    assert built.code == 0, built.err
    return out


def test_no_page_loads_anything_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert len(loads.found) > 2
        assert [url for url in loads.found if FOREIGN.match(url)] == [], page.name
        assert loads.asks == [], page.name


def test_no_style_sheet_loads_anything_from_elsewhere(site):
    sheets = sorted(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        loads = styled(sheet.read_text())
        assert [url for url in loads if FOREIGN.match(url)] == [], sheet.name


def test_what_is_loaded_from_elsewhere_is_found():
    loads = Loads()
    loads.feed('<link href="https://a.b/c.css"><img src="//a.b/c"><a href="//a.b">')
    assert loads.found == ["https://a.b/c.css", "//a.b/c"]
    assert styled("@import 'https://a.b'; x { y: url(//a.b) }") == [
        "https://a.b",
        "//a.b",
    ]


@pytest.mark.parametrize("package", ["oomph", "oomph.leaks"])
def test_every_public_name_is_in_the_reference(package, site):
    text = (site / "api.html").read_text()
    names = [f"{package}.{name}" for name in importlib.import_module(package).__all__]
    assert [name for name in names if name not in text] == []


def test_the_reference_shows_examples_and_no_roles_of_sphinx(site):
    text = (site / "api.html").read_text()
    assert text.count("Examples:") > 15
    assert not re.search(r":(?:func|class|data|meth):", text)
