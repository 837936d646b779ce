"""The least time that a step can take on a card that is too small, by a linear program.

A schedule keeps, sends or recomputes the tensors that a step makes. The program finds
the best mixture for a step that was recorded without a limit (recorded.py), where each
may be done to a part of a tensor. No schedule of the same operators is faster, as each
constraint holds for all of them:

* The operators run one at a time, in the recorded order, and none takes less time than
  it did. What is computed a second time adds to that.
* Memory is looked at in some moments of forward and backward, each the start of an
  operator. In use are what that operator reads and writes, and all that was made
  before and is used later, but for the parts of it that are away.
* What is away in a moment was sent before it, or is recomputed after it. What was sent
  comes back before its next use. From one moment to the next a link carries no more
  than its rate allows. Copies overlap with operators and with each other.
* To recompute a tensor takes at least as long as the operators that wrote it took,
  whatever else must be there for it. So the bound holds for recomputing whole blocks
  and for recomputing any part of them. That of ``record.by_block()`` is higher; it
  holds where blocks are recomputed as a whole.
* What was there before the step (parameters, the optimizer's state) may be away, too.
  The optimizer writes all of it: so what is away in a moment went out since the last
  optimizer's step, and comes in before the next. What is not trained need not go out,
  and comes in once, at any time of the step.
* An operator may work on host memory itself. It then takes at least the time of the
  link for these bytes.

It is none for what changes the operators: smaller batches, an operator cut into pieces,
an optimizer that computes on the host. An optimizer that works piece by piece is within
it, as no moment lies in the optimizer's step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import inf, log

import numpy as np
from recorded import GIB, Record
from scipy.optimize import linprog
from scipy.sparse import coo_array

MOMENTS = 32
INFEASIBLE = 2  # linprog's status

Term = tuple[int, float]  # a variable and its factor


@dataclass(frozen=True)
class Movable:
    """A tensor, and in which moments it may be away.

    Attributes:
        gaps: First and last moment of each time from one use of it to the next.
        recompute_ms: Time of the operators that wrote it; infinite: it cannot be.
    """

    bytes: int
    gaps: tuple[tuple[int, int], ...]
    recompute_ms: float

    @property
    def ms_per_gib(self) -> float:
        """Of recomputing it."""
        return self.recompute_ms / self.bytes * GIB


@dataclass(frozen=True)
class Moment:
    """The start of an operator.

    Attributes:
        operator_ms: Time of the operator.
        touched_bytes: What it reads and writes, of what the step makes.
    """

    operator_ms: float
    touched_bytes: int


@dataclass(frozen=True)
class Problem:
    """What the bound is computed from.

    Attributes:
        windows_ms: Time of the operators up to each moment from the one before, and
            after the last.
        resident_bytes: What was in use before the step.
        frozen_bytes: Of these, what no step writes.
        out_bytes_per_ms: Rate of the link to the host.
        in_bytes_per_ms: Rate of the link to the device.
    """

    windows_ms: list[float]
    moments: list[Moment]
    movable: list[Movable]
    resident_bytes: int = 0
    frozen_bytes: int = 0
    out_bytes_per_ms: float = 0.0
    in_bytes_per_ms: float = 0.0


def problem_of(record: Record, moments: int = MOMENTS) -> Problem:
    """The problem of a recorded step.

    Args:
        record: A step without a limit.
        moments: How many to look at; with more the bound is closer.
    """
    starts_ms = np.cumsum([0.0, *record.operators_ms])
    chosen = _highest(record, starts_ms, moments)
    marks_ms = [0.0, *starts_ms[chosen], starts_ms[-1]]
    touched_bytes = Counter[int]()
    for storage in record.made:
        for operator in storage.touches:
            touched_bytes[operator] += storage.bytes
    gaps = ((storage, tuple(_gaps(storage.touches, chosen))) for storage in record.made)
    movable = [Movable(made.bytes, at, made.recompute_ms) for made, at in gaps if at]
    return Problem(
        [float(b - a) for a, b in pairwise(marks_ms)],
        [Moment(record.operators_ms[op], touched_bytes[op]) for op in chosen],
        _joined(movable),
        record.resident_bytes,
        record.frozen_bytes,
        record.out_bytes_per_ms,
        record.in_bytes_per_ms,
    )


def _highest(record: Record, starts_ms: np.ndarray, count: int) -> list[int]:
    """The operator with the most bytes in use, of each of so many equal times."""
    each_ms = starts_ms[record.optimizer] / count
    operators = range(record.optimizer)
    groups = groupby(operators, key=lambda op: starts_ms[op] // each_ms)
    return [max(ops, key=record.used_bytes.__getitem__) for _, ops in groups]


def _gaps(touches: list[int], chosen: list[int]) -> Iterator[tuple[int, int]]:
    """The moments between each use of a tensor and the next, if there are any."""
    for use, following in pairwise(touches):
        first, end = bisect_right(chosen, use), bisect_left(chosen, following)
        if first < end:
            yield first, end - 1


def _joined(tensors: list[Movable]) -> list[Movable]:
    """Makes one of tensors that are alike, which leaves fewer variables.

    Those take about the same time a byte, to which the least of them is set.
    """
    alike = defaultdict(list)
    for tensor in tensors:
        alike[tensor.gaps, _size_class(tensor.ms_per_gib)].append(tensor)
    joined = []
    for (gaps, _), group in alike.items():
        total_bytes = sum(tensor.bytes for tensor in group)
        least = min(tensor.ms_per_gib for tensor in group)
        joined.append(Movable(total_bytes, gaps, least * total_bytes / GIB))
    return joined


def _size_class(ms: float) -> float:
    """The same for times within 10 %."""
    return round(log(ms) / log(1.1)) if 0 < ms < inf else ms


class _Program:
    """Rows ``sum of terms <= limit`` over variables that are at least 0."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._entries: list[tuple[int, int, float]] = []
        self._limits: list[float] = []

    def variable(self, cost: float = 0.0) -> int:
        self._costs.append(cost)
        return len(self._costs) - 1

    def row(self, terms: Iterable[Term], limit: float = 0.0) -> None:
        row = len(self._limits)
        self._entries += [(row, variable, factor) for variable, factor in terms]
        self._limits.append(limit)

    def least(self) -> float:
        """The least cost; infinite if no values satisfy all rows."""
        rows, columns, factors = zip(*self._entries, strict=True)
        shape = len(self._limits), len(self._costs)
        found = linprog(
            self._costs,
            A_ub=coo_array((factors, (rows, columns)), shape=shape).tocsr(),
            b_ub=self._limits,
        )
        assert found.success or found.status == INFEASIBLE, found.message
        return float(found.fun) if found.success else inf


class _Windows:
    """The terms of each window and moment, while they are gathered."""

    def __init__(self, problem: Problem) -> None:
        count = len(problem.windows_ms)
        self.out: list[list[Term]] = [[] for _ in range(count)]  # GiB on the link
        self.back: list[list[Term]] = [[] for _ in range(count)]
        self.again: list[list[Term]] = [[] for _ in range(count)]  # ms
        self.away: list[list[Term]] = [[] for _ in range(count - 1)]  # GiB freed

    def add(self, program: _Program, tensor: Movable) -> None:
        """A tensor; its variables are parts of it, from 0 to 1."""
        gib = tensor.bytes / GIB
        start, end = tensor.gaps[0][0], tensor.gaps[-1][1]
        out = {window: program.variable() for window in range(start, end + 1)}
        for window, variable in out.items():
            self.out[window].append((variable, gib))
        for first, last in tensor.gaps:
            moments = range(first, last + 1)
            away = {moment: program.variable() for moment in moments}
            back = {moment + 1: program.variable() for moment in moments}
            again = {moment + 1: program.variable() for moment in moments}
            for moment in moments:
                after = moment + 1
                self.away[moment].append((away[moment], gib))
                self.back[after].append((back[after], gib))
                if tensor.recompute_ms < inf:
                    self.again[after].append((again[after], tensor.recompute_ms))
                else:
                    program.row([(again[after], 1.0)])
                program.row([(away[moment], 1.0)], 1.0)
                sent = [(v, -1.0) for window, v in out.items() if window <= moment]
                later = [(v, -1.0) for window, v in again.items() if window > moment]
                program.row([(away[moment], 1.0), *sent, *later])
                stays = [(away[after], -1.0)] if after in away else []
                returns = [(back[after], -1.0), (again[after], -1.0)]
                program.row([(away[moment], 1.0), *stays, *returns])


class _Residents:
    """The variables of what was there before the step, in GiB."""

    def __init__(self, program: _Program, problem: Problem, windows: _Windows) -> None:
        def moved(link: list[list[Term]]) -> list[int]:
            for terms in link:
                terms.append((program.variable(), 1.0))
            return [terms[-1][0] for terms in link]

        self._out, self._back = moved(windows.out), moved(windows.back)
        self._trained_gib = (problem.resident_bytes - problem.frozen_bytes) / GIB
        self.frozen = program.variable()  # of it, away in all moments
        program.row([(self.frozen, 1.0)], problem.frozen_bytes / GIB)
        back = [(variable, -1.0) for variable in moved(windows.back)]
        program.row([(self.frozen, 1.0), *back])

    def away_in(self, program: _Program, moment: int) -> int:
        """The variable of what is trained and away in a moment."""
        away = program.variable()
        before = [*self._out[: moment + 1], self._out[-1]]  # since the last optimizer
        for moved in (before, self._back[moment + 1 :]):
            program.row([(away, 1.0), *((variable, -1.0) for variable in moved)])
        program.row([(away, 1.0)], self._trained_gib)
        return away


def bound_ms(problem: Problem, limit_bytes: int) -> float:
    """The least time of a step with no more than that in use on the device.

    Returns:
        Milliseconds; infinite if no mixture will do.
    """
    program, windows = _Program(), _Windows(problem)
    for tensor in problem.movable:
        windows.add(program, tensor)
    residents = _Residents(program, problem, windows)
    rates = problem.out_bytes_per_ms / GIB, problem.in_bytes_per_ms / GIB
    longer = [program.variable(cost=1.0) for _ in problem.windows_ms]  # ms
    for i, window_ms in enumerate(problem.windows_ms):
        program.row([*windows.again[i], (longer[i], -1.0)])
        for link, rate in zip((windows.out, windows.back), rates, strict=True):
            program.row([*link[i], (longer[i], -rate)], rate * window_ms)
    for i, moment in enumerate(problem.moments):
        on_host = [program.variable() for _ in rates]  # GiB written there, and read
        program.row([(v, 1.0) for v in on_host], moment.touched_bytes / GIB)
        for variable, rate in zip(on_host, rates, strict=True):
            slower = [(variable, 1.0), (longer[i + 1], -rate)]
            program.row(slower, rate * moment.operator_ms)
        needed_bytes = problem.resident_bytes + moment.touched_bytes - limit_bytes
        others = (*on_host, residents.frozen, residents.away_in(program, i))
        gone = [*windows.away[i], *((v, 1.0) for v in others)]
        room = needed_bytes / GIB + sum(gib for _, gib in windows.away[i])
        program.row([(variable, -gib) for variable, gib in gone], -room)
    return sum(problem.windows_ms) + program.least()
