"""Gets the headers of a PyTorch and of its CUDA packages, without the libraries.

A wheel of PyTorch has half a GiB, its headers 10 MB, which lie together in it: they are
read from the wheel where it is by requests for a range of bytes. Which wheels those are
pip says, by the package index that it is configured for.

    python tools/torch_headers.py 2.13 build/torch
"""

from __future__ import annotations

import json
import re
import struct
import sys
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from make_venv import missing_headers
from pip._internal.commands import create_command
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.tags import sys_tags
from pip._vendor.packaging.utils import canonicalize_name, parse_wheel_filename

HERE = frozenset(sys_tags())

END_BYTES = 1 << 16  # in which the end of a wheel's table of contents is
GAP_MAX = 1 << 18  # bytes that are read and not wanted, sooner than asked for anew
CUDA_PACKAGES = re.compile(
    r"cuda-toolkit|nvidia-(cuda-(runtime|cupti)|cublas|cusparse(lt)?|cusolver|cufft|cudnn"
    r"|nccl)\b"
)


@dataclass(frozen=True)
class Member:
    """A file of a wheel: where it is, and how it is packed."""

    name: str
    offset: int
    packed_bytes: int
    method: int


@dataclass(frozen=True)
class Headers:
    """The headers of one PyTorch."""

    torch: str  # such as 2.13.0
    cuda: str  # such as 13.0
    includes: list[Path]  # PyTorch's, then CUDA's
    runtime: Path  # the CUDA runtime library


class Wheel:
    """A wheel that stays where it is."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.members = list(self._contents())

    def _get(self, range_: str) -> bytes:
        request = urllib.request.Request(self.url, headers={"Range": f"bytes={range_}"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            if answer.status != 206:
                raise SystemExit(f"{self.url}: its server gives no part of a file")
            return bytes(answer.read())

    def _contents(self) -> Iterator[Member]:
        end = self._get(f"-{END_BYTES}")
        at = end.rindex(b"PK\5\6")
        size, offset = struct.unpack("<LL", end[at + 12 : at + 20])
        table = self._get(f"{offset}-{offset + size - 1}")
        at = 0
        while at < size:
            fields = struct.unpack("<4s6H3L5H2L", table[at : at + 46])
            name_size, extra_size, comment_size = fields[10:13]
            name = table[at + 46 : at + 46 + name_size].decode()
            yield Member(name, fields[16], fields[8], fields[4])
            at += 46 + name_size + extra_size + comment_size

    def read(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
        """The wanted files: names and contents."""
        chosen = sorted(
            (m for m in self.members if wanted(m.name) and not m.name.endswith("/")),
            key=lambda member: member.offset,
        )
        group: list[Member] = []
        for member in chosen:
            if group and member.offset - _end(group[-1]) > GAP_MAX:
                yield from self._unpack(group)
                group = []
            group.append(member)
        if group:
            yield from self._unpack(group)

    def _unpack(self, group: list[Member]) -> Iterator[tuple[str, bytes]]:
        first = group[0].offset
        data = self._get(f"{first}-{_end(group[-1])}")
        for member in group:
            at = member.offset - first
            name_size, extra_size = struct.unpack("<2H", data[at + 26 : at + 30])
            begin = at + 30 + name_size + extra_size
            packed = data[begin : begin + member.packed_bytes]
            whole = zlib.decompress(packed, -15) if member.method else packed
            yield member.name, whole


def _end(member: Member) -> int:
    """Behind the last byte of a file, or a little later."""
    return member.offset + 30 + len(member.name) + 64 + member.packed_bytes


class Index:
    """The package index that pip is configured for."""

    def __init__(self) -> None:
        options, _ = create_command("download").parse_args([])
        self.url = options.index_url.rstrip("/")

    def newest(self, requirement: Requirement) -> tuple[str, str]:
        """The version and the address of the newest wheel that fits this machine."""
        request = urllib.request.Request(
            f"{self.url}/{canonicalize_name(requirement.name)}/",
            headers={"Accept": "application/vnd.pypi.simple.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            files, base = json.load(answer)["files"], answer.geturl()
        found = {}
        for file in files:
            if not file["filename"].endswith(".whl") or file.get("yanked"):
                continue
            _, version, _, tags = parse_wheel_filename(file["filename"])
            fits = tags & HERE and requirement.specifier.contains(version)
            if fits and not version.is_prerelease:
                found[version] = urllib.parse.urljoin(base, file["url"])
        if not found:
            raise SystemExit(f"{self.url} has no wheel for {requirement}")
        return str(max(found)), found[max(found)]

    def wheels(self, text: str) -> Iterator[tuple[str, str, str]]:
        """Name, version and address of a wheel, and of the CUDA packages it needs."""
        requirement = Requirement(text)
        version, url = self.newest(requirement)
        yield requirement.name, version, url
        read = Wheel(url).read(lambda name: name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(next(read)[1].decode())
        needs = metadata.get_all("Requires-Dist")
        extras = [{"extra": extra} for extra in ("", *requirement.extras)]
        for need in map(Requirement, needs or []):
            wanted = need.marker is None or any(map(need.marker.evaluate, extras))
            if wanted and CUDA_PACKAGES.match(need.name):
                yield from self.wheels(str(need))


def _is_header(name: str) -> bool:
    return "/include/" in name or name == "torch/version.py"


def _save(url: str, folder: Path) -> None:
    """Puts the headers of a wheel below a folder, and the library of CUDA's runtime."""
    wanted = [_is_header]
    if "cuda_runtime" in url:
        wanted.append(lambda name: "/libcudart.so." in name)
    for name, content in Wheel(url).read(lambda name: any(w(name) for w in wanted)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def cuda_of(version_file: str) -> str:
    """The CUDA version that a PyTorch is built for."""
    match = re.search(r"^cuda\b[^=]*= '([\d.]+)'", version_file, re.M)
    if match is None:
        raise SystemExit("this PyTorch is built for the CPU alone")
    return match.group(1)


def get(minor: str, root: Path) -> Headers:
    """The headers of the newest PyTorch of a minor version, from a folder or the index.

    Args:
        minor: Such as ``2.13``.
        root: Where they are kept, in a folder for each minor version.
    """
    folder = root / minor
    done = folder / "done.json"
    if not done.exists():
        index = Index()
        _, torch, url = next(index.wheels(f"torch=={minor}.*"))
        print(f"getting the headers of PyTorch {torch}", flush=True)
        _save(url, folder)
        cuda = cuda_of((folder / "torch/version.py").read_text())
        for needed in (f"torch=={torch}", missing_headers(cuda)):
            for name, _, url in index.wheels(needed):
                if name != "torch":
                    _save(url, folder)
        done.write_text(json.dumps({"torch": torch, "cuda": cuda}))
    said = json.loads(done.read_text())
    cuda_includes = sorted((folder / "nvidia").glob("*/include"))
    runtime = next((folder / "nvidia").glob("*/lib/libcudart.so.*"))
    includes = [folder / "torch/include", *cuda_includes]
    return Headers(said["torch"], said["cuda"], includes, runtime)


if __name__ == "__main__":
    print(get(sys.argv[1], Path(sys.argv[2])))
