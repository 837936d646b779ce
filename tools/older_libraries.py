"""Lets what is built with a new glibc and libstdc++ run with those of 2018.

The linker binds a function to the newest version of it that this machine's library has.
An archive, linked before the library, has in the place of each function that was given
a version after glibc 2.28 a jump to the version before, which the library still has.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

NEWEST = (2, 28)  # of glibc: manylinux_2_28

BUFFER = "St7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE"
STREAM = "_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEE"

# What has no older version under its own name, and what does the same: in C++ what the
# compiler's newer headers no longer have inline.
OTHERS = {
    f"_ZNKR{BUFFER}3strEv": f"""
    jmp _ZNK{BUFFER}3strEv@PLT
""",
    f"_ZNO{BUFFER}3strEv": f"""
    jmp _ZNK{BUFFER}3strEv@PLT
""",
    "_ZSt28__throw_bad_array_new_lengthv": """
    jmp _ZSt17__throw_bad_allocv@PLT
""",
    # With the mode that is the default, ios_base::out.
    f"{STREAM}C1Ev": f"""
    movl $16, %esi
    jmp {STREAM}C1ESt13_Ios_Openmode@PLT
""",
    # A destructor releases, and a copy that nobody destroys adds a reference: those of
    # the library, as the compiler's own call what is here.
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv": """
    .symver library_D1, _ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3
    jmp library_D1@PLT
""",
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv": """
    subq $24, %rsp
    movq %rdi, %rsi
    leaq 8(%rsp), %rdi
    .symver library_C1, _ZNSt15__exception_ptr13exception_ptrC1ERKS0_@CXXABI_1.3.3
    call library_C1@PLT
    addq $24, %rsp
    ret
""",
    # Until 2.33 a function with the version of the structure as first argument.
    "fstat": """
    movq %rsi, %rdx
    movl %edi, %esi
    movl $1, %edi
    jmp __fxstat@PLT
""",
    # Whether the process has one thread alone: never said here.
    "__libc_single_threaded": """
    .byte 0
""",
}

SOURCE = """
    .section .note.GNU-stack, "", @progbits
    .text
    .globl {name}
    .hidden {name}
{name}:
"""
JUMP = """
    .symver before_{name}, {name}@GLIBC_{version}
    jmp before_{name}@PLT
"""


def number(version: str) -> tuple[int, ...]:
    """Such as (2, 2, 5)."""
    return tuple(map(int, version.split(".")))


def renewed() -> dict[str, str]:
    """The functions of glibc that have a newer version, and the one before it."""
    library = subprocess.check_output(["cc", "-print-file-name=libc.so.6"], text=True)
    command = ["readelf", "--wide", "--dyn-syms", library.strip()]
    listed = subprocess.check_output(command, text=True)
    pattern = re.compile(r" I?FUNC .* ([a-z]\w*)(@@?)GLIBC_([\d.]+)", re.MULTILINE)
    newest, older = {}, {}
    for name, at, version in pattern.findall(listed):
        if at == "@@":
            newest[name] = number(version)
        elif number(version) <= NEWEST:
            before = older.get(name, "0")
            older[name] = max(before, version, key=number)
    return {n: v for n, v in older.items() if newest.get(n, (0,)) > NEWEST}


def make(folder: Path) -> list[str]:
    """Makes the archive; gives the linker's arguments for what is written in C++."""
    sources = {n: JUMP.format(name=n, version=v) for n, v in renewed().items()} | OTHERS
    parts = folder / "older"
    parts.mkdir()
    objects = []
    for name, text in sources.items():
        source, out = parts / f"{name}.s", parts / f"{name}.o"
        source.write_text(SOURCE.format(name=name) + text)
        subprocess.run(["as", str(source), "-o", str(out)], check=True)
        objects.append(str(out))
    archive, script = folder / "libolder.a", folder / "exports.map"
    subprocess.run(["ar", "rcs", str(archive), *objects], check=True)
    # Else the destructor that is asked of the library would be the one beside.
    script.write_text("{ global: *; local: _ZNSt15__exception_ptr*; };\n")
    return [str(archive), f"-Wl,--version-script={script}"]
