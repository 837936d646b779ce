"""Infers the mistake from what grows and what holds it.

Rules are asked in a fixed order, those with a sign of their own first: a cycle, a
traceback, a closure; what is left is kept outputs. The signs come from a search for who
holds a tensor, which looks at every object of the process: so a few tensors stand for a
group, at most 24 groups are looked at, and one search serves for all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch

from oomph.holders.chain import Chain
from oomph.holders.frames import running
from oomph.holders.lines import Line, line_of
from oomph.holders.search import Search
from oomph.leaks import clues, graphs
from oomph.leaks.findings import Finding
from oomph.leaks.inventory import Group, Seen
from oomph.leaks.lines import slots
from oomph.leaks.lines.allocated import Sites, allocated_at, longer, resolved
from oomph.leaks.lines.places import Places
from oomph.leaks.lines.uses import uses
from oomph.leaks.suspects import Suspect

_SEARCHED_MAX = 24  # groups of one scan, the most bytes first
_FOUND_MAX = 8  # places that are suspected at one scan
_CRUMBS_BYTES = 2048  # per round; numbers that hold no graph are not worth a word
_ROOTS_MAX = 16  # of graphs that go back through rounds, searched at one scan
_GRADIENTS_MAX = 4  # whose graphs are looked at
_LONGEST = 2  # of those that get longer
_JOINED_MAX = 2  # lines whose tensors get longer, searched at one scan
_CROWD = 3  # calls of one function that have not returned


class Judge:
    """Judges what one scan shows; the world must stand still meanwhile.

    Args:
        before: The round from which on it is seen to grow.
        now: The round that has ended.
        mark: Of when the scan began.
    """

    def __init__(self, before: int, now: int, mark: object) -> None:
        self._search: Search | None = None  # made when it is needed
        self._calls: dict[CodeType, list[Line]] | None = None  # likewise
        self._mark = mark
        self._before = before
        self._now = now

    def _chains(
        self,
        targets: list[torch.Tensor],
        avoid: Sequence[object] = (),
        far: bool = True,
    ) -> Iterator[Chain]:
        if not targets:
            return iter(())
        self._search = self._search or Search(self._mark)
        return self._search.chains(targets, avoid, far)

    # ---- More and more tensors

    def groups(self, groups: list[Group]) -> list[Suspect]:
        """The places that hold kinds of tensors of which there are ever more."""
        most = sorted(groups, key=lambda group: group.size_bytes, reverse=True)
        few = [
            (group, tensor, seen)
            for group in most[:_SEARCHED_MAX]
            for seen in _spread(group.kept)
            if (tensor := seen.ref()) is not None and _is_worth_a_word(tensor, group)
        ]
        chains = self._chains([tensor for _, tensor, seen in few if seen.is_held])
        found: dict[object, Suspect] = {}
        holders: dict[Hashable, set[Suspect | None]] = defaultdict(set)  # by kind
        for group, tensor, seen in few:
            chain = next(chains) if seen.is_held else Chain()
            if not chain.hops and _gradient_graph(tensor) is None:
                holders[group.kind].add(None)
                continue  # nothing in Python holds it: lines show more
            suspect = self._suspect(tensor, chain, group)
            suspect.members.append(seen)
            places = suspect.places.all
            inner: Hashable = places[0].place if places else suspect.finding.held_by
            if chain.circle:
                inner = "cycle", group.kind
            elif suspect.finding.verdict == "unfinished calls":
                inner = suspect.finding.line
            known = found.setdefault(inner, suspect)
            holders[group.kind].add(known)
            if known is not suspect:
                known.join(suspect)
            if len(found) == _FOUND_MAX:
                break
        for group in most[:_SEARCHED_MAX]:
            suspects = holders[group.kind]
            holder = next(iter(suspects)) if len(suspects) == 1 else None
            if holder is not None:  # all that were looked at are there
                holder.owned.add(group.kind)
        return list(found.values())

    def search_again(
        self, members: dict[Suspect, list[torch.Tensor | None]]
    ) -> list[Suspect]:
        """Who holds now what suspects hold; gives those of which nobody in Python does.

        In the midst of a request, say, a variable holds what is free at its end.

        Args:
            members: Some of each; None: Python holds it no more. Most of them count: a
                place may hold one for ever, and another place ever more.
        """
        free = []
        for far in (False, True):
            held = {s: few for s, few in members.items() if s.is_far is far}
            flat = [t for few in held.values() for t in few if t is not None]
            found = self._chains(flat, [flat, members, *members.values()], far)
            for suspect, few in held.items():
                chains = [Chain() if t is None else next(found) for t in few]
                there = [tensor for tensor in few if tensor is not None]
                chain = clues.that_holds_most(chains, there)
                if not chain.hops:
                    free.append(suspect)
                elif not chain.circle:
                    suspect.held_now(_places(chain, suspect.finding), chain.text)
                    if len(self._calls_of_same(chain)) >= _CROWD:
                        suspect.stands_at(self._usual_call(chain))
        return free

    def _suspect(self, tensor: torch.Tensor, chain: Chain, group: Group) -> Suspect:
        verdict = self._mistake(tensor, chain)
        line = clues.known_line(verdict, chain)
        if verdict == "unfinished calls":
            line = self._usual_call(chain)
        finding = Finding(
            verdict,
            line,
            growth_bytes=int(group.size_bytes),
            count=group.count,
            held_by=chain.text if chain.hops else None,
            allocated_at=allocated_at(tensor),
            advice=clues.advice(tensor, chain),
            **described(tensor),
        )
        suspect = Suspect(
            finding,
            {group.kind},
            self._before,
            self._now,
            _places(chain, finding) if finding.line is None else Places(),
            has_graph=tensor.grad_fn is not None,
            is_global=clues.fills_a_module(chain),
            is_limited=clues.limits_itself(chain),
            is_far=chain.is_far,
            is_doubted=verdict == "unfinished calls",
            held_at=next((hop.line for hop in chain.hops if hop.line), None),
        )
        if not suspect.is_searched and finding.line is None:
            suspect.suppose()
        return suspect

    def _mistake(self, tensor: torch.Tensor, chain: Chain) -> str:
        hops, kinds = chain.hops, chain.kinds()
        if not hops:
            return "create_graph"
        if chain.circle:
            return "cycle"
        if len(self._calls_of_same(chain)) >= _CROWD:
            return "unfinished calls"
        if clues.is_notebook(hops):
            return "notebook"
        if kinds & {"traceback", "exception"}:
            is_again = any(map(clues.raised_again, chain.exceptions()))
            return "raised again" if is_again else "traceback"
        name, _ = clues.first_name(hops)
        if name is not None and name.kind == "cell":
            return "closure"
        if tensor.dim() == 0 and tensor.grad_fn is not None:
            return "loss kept"
        return "outputs retained"

    def _calls_of_same(self, chain: Chain) -> list[Line]:
        """Where all calls stand of the function whose variable ends a chain."""
        if chain.frame is None or chain.hops[-1].kind != "local":
            return []
        if self._calls is None:
            self._calls = defaultdict(list)
            for frame in running():
                self._calls[frame.f_code].append(line_of(frame))
        return self._calls.get(chain.frame.f_code, [])

    def _usual_call(self, chain: Chain) -> Line:
        """Where most of these calls stand."""
        return Counter(self._calls_of_same(chain)).most_common(1)[0][0]

    # ---- Graphs that go back through several rounds

    def chained(
        self, tensors: list[torch.Tensor], starts: list[int], growth_bytes: int
    ) -> list[Suspect]:
        """Tensors whose graph goes back through several rounds.

        Of those whose graphs contain each other, the one is given from which the others
        were computed.

        Args:
            tensors: What there is.
            starts: The numbers of autograd's nodes at which the last rounds began.
            growth_bytes: What each round adds, as measured.
        """
        roots = _chained_graphs(tensors, starts)
        found: dict[str, Suspect] = {}
        newest = sorted(roots, key=lambda root: root._sequence_nr())[-_ROOTS_MAX:]
        held = self._chains([roots[root][0] for root in newest], [tensors])
        chains = dict(zip(newest, held, strict=True))
        kept = [root for root in newest if chains[root].hops]
        firm = [root for root in kept if not clues.is_bare_local(chains[root])]
        for root in graphs.sources(firm or kept, starts[0]):
            (tensor, is_gradient), chain = roots[root], chains[root]
            verdict = (
                "create_graph"
                if is_gradient
                else "loss kept"
                if tensor.dim() == 0
                else "graph retained"
            )
            finding = Finding(
                verdict,
                None,
                growth_bytes=growth_bytes,
                held_by=chain.text,
                allocated_at=allocated_at(tensor),
                note="its graph goes back through all steps so far",
                **described(tensor),
            )
            names = [] if is_gradient else slots.names(chain)
            places = Places([], names)
            suspect = Suspect(finding, set(), self._before, self._now, places)
            suspect.has_graph = True
            found.setdefault(verdict + (names[0].name if names else ""), suspect)
        return list(found.values())

    # ---- One tensor that gets longer

    def joined(
        self, scans: list[Sites], rounds: list[int], tensors: list[torch.Tensor]
    ) -> list[Suspect]:
        """Tensors that are replaced by longer ones.

        Args:
            scans: Blocks and bytes by site, at each scan.
            rounds: At whose ends the scans were.
            tensors: What there is.
        """
        over = rounds[-1] - rounds[0] if len(rounds) > 1 else 1
        found = []
        for number, grown_bytes in longer(scans)[:_JOINED_MAX]:
            line = resolved(number)
            if line is None or grown_bytes <= _CRUMBS_BYTES * over:
                continue
            made = [tensor for tensor in tensors if allocated_at(tensor) == (line,)]
            if not made:
                continue
            by_size = {tensor.numel(): tensor for tensor in made}
            longest = [by_size[size] for size in sorted(by_size)[-_LONGEST:]]
            chains = [*self._chains(longest, [made, tensors, by_size])]
            # The last one may be on its way yet, as a result that a call returns.
            known = [i for i, c in enumerate(chains) if c.hops and not c.is_open]
            if not known:
                continue
            tensor, chain = longest[known[-1]], chains[known[-1]]
            names = slots.names(chain, in_place=False)
            if not names or clues.limits_itself(chain):
                continue
            finding = Finding(
                "outputs retained",
                None,
                growth_bytes=grown_bytes // over,
                held_by=f"{chain.text}: everything that was joined so far",
                allocated_at=(line,),
                **described(tensor),
            )
            places = Places([], names)
            suspect = Suspect(finding, set(), rounds[0], self._now, places)
            suspect.site = number
            found.append(suspect)
        return found


def _spread(kept: list[Seen]) -> list[Seen]:
    """A few of a group's tensors: the oldest, the newest, and between."""
    places = dict.fromkeys((0, len(kept) // 2, len(kept) - 1))
    return [kept[place] for place in places]


def _places(chain: Chain, finding: Finding) -> Places:
    """What may grow by each tensor that is kept: containers, and names as well."""
    names = slots.names(chain, in_place=False) + slots.namespaces(chain)
    used = uses(chain, finding.allocated_at) if chain.is_open else None
    return Places(slots.containers(chain), names, used)


def _is_worth_a_word(tensor: torch.Tensor, group: Group) -> bool:
    """Whether it is more than a number, or has a graph, which goes to a GPU."""
    if tensor.grad_fn is None:
        return group.size_bytes > _CRUMBS_BYTES
    return tensor.is_cuda or graphs.has_copies(tensor.grad_fn)


def _gradient_graph(tensor: torch.Tensor) -> Any:
    """The graph of a leaf's gradient, which a pass with create_graph leaves."""
    if not tensor.is_leaf or not tensor.requires_grad or tensor.grad is None:
        return None
    return tensor.grad.grad_fn


def _chained_graphs(
    tensors: list[torch.Tensor], starts: list[int]
) -> dict[Any, tuple[torch.Tensor, bool]]:
    """The graphs that go back through all steps which began at these nodes.

    Gives what has each, and whether as its gradient: of those some are looked at, as
    they are as long as each other.
    """
    values: dict[Any, torch.Tensor] = {}
    gradients: dict[Any, torch.Tensor] = {}
    for tensor in tensors:
        root = tensor.grad_fn
        if root is None:
            root = _gradient_graph(tensor)
            if root is not None:
                gradients.setdefault(root, tensor)
        elif root._sequence_nr() >= starts[1]:  # else it is too old
            values.setdefault(root, tensor)
    spanned = graphs.steps_spanned(values, starts)
    newest = sorted(gradients, key=lambda root: root._sequence_nr())[-_GRADIENTS_MAX:]
    chained = {
        root: (tensor, False)
        for root, tensor in values.items()
        if spanned[root] >= len(starts)
    }
    back = (root for root in newest if graphs.goes_back(root, starts))
    return chained | {root: (gradients[root], True) for root in back}


def described(tensor: torch.Tensor) -> dict[str, Any]:
    """What a finding says of a tensor."""
    made_by = tensor.grad_fn
    return {
        "shape": tuple(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "made_by": type(made_by).__name__ if made_by is not None else None,
        "device": tensor.device.index or 0,
    }
