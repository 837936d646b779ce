"""How much is left free, as steps that fell short have taught."""

from __future__ import annotations

from oomph.offload.headroom import EXTRA_SHARE, Headroom

CAPACITY = 1000 * EXTRA_SHARE


def test_what_was_missing_is_left_free_from_then_on():
    headroom = Headroom()
    headroom.grow(300, 100, CAPACITY)
    assert (headroom.extra_bytes, headroom.fetch_bytes) == (300, 100)
    headroom.grow(5000, 0, CAPACITY)
    assert headroom.extra_bytes == 300 + 1000  # a fiftieth at a time


def test_what_is_missing_whatever_is_left_free_takes_no_room_for_long():
    headroom = Headroom()
    headroom.grow(300, 100, CAPACITY)
    for _ in range(8):
        headroom.grow(20_000, 0, CAPACITY)
    assert headroom.extra_bytes == 300 + 8 * 1000
    for _ in range(20):
        headroom.grow(20_100, 0, CAPACITY)
        assert (headroom.extra_bytes, headroom.fetch_bytes) == (300, 100)


def test_another_shortage_is_met_though_one_could_not_be():
    headroom = Headroom()
    for _ in range(20):
        headroom.grow(20_000, 0, CAPACITY)
    headroom.grow(400, 0, CAPACITY)
    assert headroom.extra_bytes == 400
