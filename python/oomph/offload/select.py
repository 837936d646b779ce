"""Selects which of the storages that a step saves leave the device in the next."""

from __future__ import annotations

from collections.abc import Iterable

Save = tuple[int, int]  # its place in the step, and its bytes


def select(saves: Iterable[Save], target_bytes: float) -> list[Save]:
    """Chooses storages of one forward that take as many bytes as asked for, or more.

    The earliest first, since backward needs them last. Where they do not fill the
    target to the full, the smallest that does is chosen too; and where that is more
    than was wanted, the latest stay that are not needed with it.

    Args:
        saves: What may leave, in the order of its places.
        target_bytes: The bytes that must be away at one time.

    Returns:
        What is to leave, in any order; all if that is not enough.

    Example:
        >>> select([(0, 30), (1, 30), (2, 100)], target_bytes=110)
        [(2, 100), (0, 30)]
    """
    chosen: list[Save] = []
    larger: list[Save] = []  # than what was left to fill when they came
    gap = target_bytes
    for save in saves:
        if save[1] <= gap:
            chosen.append(save)
            gap -= save[1]
        elif gap > 0:
            larger.append(save)
    if gap <= 0 or not larger:
        return chosen
    last = min(larger, key=lambda save: save[1])
    surplus = last[1] - gap
    kept = [last]
    for save in reversed(chosen):
        if save[1] <= surplus:
            surplus -= save[1]
        else:
            kept.append(save)
    return kept
