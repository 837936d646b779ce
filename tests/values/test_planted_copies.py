"""A planner that reads host pages before the copy there has ended is caught."""

from __future__ import annotations

import pytest
from support import run

PROGRAM = """
import ctypes
import sys
import torch
from torch import nn
import oomph
from oomph.offload import transfer

fetch = transfer.OffloadedStorage._fetch

def fetch_at_once(self):
    # As it is written, but for the wait for the copy to the host.
    out = self.link.out
    self.link.out = self.link.back
    try:
        return fetch(self)
    finally:
        self.link.out = out

if sys.argv[1] == "planted":
    transfer.OffloadedStorage._fetch = fetch_at_once
x = torch.ones(4 << 18, device="cuda", requires_grad=True)
nn.Sequential(nn.Sigmoid(), nn.Sigmoid())(x).sum().backward()
torch.cuda.synchronize()
assert oomph.stats()["fetched_bytes"] > 0
driver = ctypes.CDLL("libcuda.so.1")
driver.oomph_sim_misuse.restype = ctypes.c_char_p
print(driver.oomph_sim_misuse(0))
"""
CARD = "64MiB,context=0,memory=values,cc=8.6"
CONF = "reserve:0,host_ahead:0,host_limit:256MiB,offload:always"


@pytest.mark.parametrize("plan", ["honest", "planted"])
def test_a_host_page_read_before_its_copy_has_ended_is_caught(plan):
    result = run(PROGRAM, plan, card=CARD, conf=CONF)
    assert result.code == 0, result.said
    if plan == "honest":
        assert result.out.endswith("None\n")
    else:
        assert "does not wait for a pending cuMemcpyAsync" in result.out
