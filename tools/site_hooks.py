"""The hooks of mkdocs.yml: pages that lie elsewhere, and links out of docs/.

README.md is the first page and CHANGELOG.md the last. A link to a file of the
repository that is no page becomes one to the source, as pyproject.toml names it.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}  # outside docs/
LINK = re.compile(r"\]\(([\w./-]+)(#[\w-]+)?\)")


def source_url() -> str:
    """Where the repository is at home."""
    found = re.search(r'^Source = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert found is not None, "pyproject.toml names no Source"
    return found.group(1)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie outside docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Turns links between files of the repository into links of the site."""
    names = {page: name for name, page in PAGES.items()}
    own = PurePosixPath(names.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def turned(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        target = normpath(own.parent / path)
        inside = PAGES.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(inside) is None:
            inside = f"{source_url()}/blob/main/{target}"
        return f"]({inside}{anchor})"

    return LINK.sub(turned, markdown)
