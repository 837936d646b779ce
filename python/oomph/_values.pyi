"""The values of the simulated GPU (csrc/sim/values)."""

built_for: str

def install(compute: int | None, dry: int | None) -> int: ...
