"""All mutations, those first that are found soonest."""

from __future__ import annotations

from mutations import core, python, simulator

MUTATIONS = python.MUTATIONS | core.MUTATIONS | simulator.MUTATIONS
