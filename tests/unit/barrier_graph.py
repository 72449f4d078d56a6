"""Explicit-state checking of the barrier graph of a warp-specialised kernel.

A graph has processes (warps), each a fixed list of steps; what a step starts runs on its own
(copies, products, commits) and ends at any later time. Every interleaving is followed. A violation
is: a deadlock; a wait that sees the parity it asks for in another phase than the one it means; a
phase that ends before all have seen the one before; a place that is written while it is read, or
before all reads of what it held; a read of what is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Arrive:
    """An arrival at a barrier, or bytes there: `expect` more to come, `bytes` that have come."""

    barrier: str
    count: int = 1
    expect: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Read:
    place: str
    version: int


@dataclass(frozen=True)
class Write:
    """Version `version` of a place; it may be written again after `reads` reads."""

    place: str
    version: int
    reads: int


Use = Read | Write


@dataclass(frozen=True)
class Operation:
    """Uses places from its start to its end, then arrives. after: operations that it starts behind,
    those of them that have been started."""

    name: str
    uses: tuple[Use, ...] = ()
    arrivals: tuple[Arrive, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """Waits for phases (barrier, number) to end; uses places; starts operations; arrives."""

    waits: tuple[tuple[str, int], ...] = ()
    uses: tuple[Use, ...] = ()
    starts: tuple[Operation, ...] = ()
    arrivals: tuple[Arrive, ...] = ()


@dataclass
class Graph:
    """barriers: arrivals that end a phase, by name."""

    barriers: dict[str, int] = field(default_factory=dict)
    processes: dict[str, list[Step]] = field(default_factory=dict)


class Violation(Exception):
    """What is wrong, and where every process stands."""


# State of a barrier: (phases ended, arrivals pending, bytes to come); of a place: (version, reads
# to come, being read, being written).
Barrier = tuple[int, int, int]
Place = tuple[int, int, int, int]


class State(NamedTuple):
    position: tuple[int, ...]
    queued: frozenset[str]
    running: frozenset[str]
    ended: frozenset[str]
    barriers: tuple[Barrier, ...]
    places: tuple[Place, ...]


class Checker:
    """Follows every interleaving of a graph. states: how many there are."""

    def __init__(self, graph: Graph) -> None:
        self._counts = list(graph.barriers.values())
        self._barrier = {name: i for i, name in enumerate(graph.barriers)}
        self._names = list(graph.processes)
        self._steps = [graph.processes[name] for name in self._names]
        every = [step for steps in self._steps for step in steps]
        self._operations = {o.name: o for step in every for o in step.starts}
        uses = [u for s in every for u in (*s.uses, *(u for o in s.starts for u in o.uses))]
        self._place = {name: i for i, name in enumerate(dict.fromkeys(u.place for u in uses))}
        self.states = 0

    def run(self) -> None:
        """Raises Violation for the first one found."""
        first = State(
            (0,) * len(self._steps), frozenset(), frozenset(), frozenset(),
            tuple((0, count, 0) for count in self._counts),
            tuple((-1, 0, 0, 0) for _ in self._place),
        )  # fmt: skip
        seen, pending = {first}, [first]
        while pending:
            state = pending.pop()
            followers = list(self._followers(state))
            if not followers and not self._is_end(state):
                raise Violation(f"deadlock: {self._told(state)}")
            for follower in followers:
                if follower not in seen:
                    seen.add(follower)
                    pending.append(follower)
        self.states = len(seen)

    def _is_end(self, state: State) -> bool:
        done = all(p == len(s) for p, s in zip(state.position, self._steps, strict=True))
        return done and not state.running and not state.queued

    def _followers(self, state: State) -> Iterator[State]:
        for number, steps in enumerate(self._steps):
            at = state.position[number]
            if at < len(steps) and self._may_pass(state, number, steps[at]):
                yield self._after_step(state, number, steps[at])
        for name in state.running:
            yield self._after_end(state, self._operations[name])

    def _may_pass(self, state: State, number: int, step: Step) -> bool:
        """The hardware's rule: the phase of that parity is not the one that runs."""
        for name, phase in step.waits:
            ended = state.barriers[self._barrier[name]][0]
            if ended > phase + 1:
                self._fail(state, f"{self._names[number]} has missed phase {phase} of {name}")
            if ended % 2 == phase % 2:
                return False
            if ended != phase + 1:
                self._fail(state, f"{self._names[number]} mistakes phase {ended - 1} of {name}")
        return True

    def _after_step(self, state: State, number: int, step: Step) -> State:
        places = list(state.places)
        for use in step.uses:
            self._begin(state, places, use)
            self._end(places, use)
        position = list(state.position)
        position[number] += 1
        return self._begun(
            State(
                tuple(position), state.queued | {o.name for o in step.starts}, state.running,
                state.ended, self._arrived(state, step.arrivals), tuple(places),
            )
        )  # fmt: skip

    def _begun(self, state: State) -> State:
        """With all started that wait for none any more: the sooner, the more they meet."""
        ready = [
            name for name in state.queued
            if all(before in state.ended for before in self._operations[name].after)
        ]  # fmt: skip
        places = list(state.places)
        for name in sorted(ready):
            for use in self._operations[name].uses:
                self._begin(state, places, use)
        return state._replace(
            queued=state.queued - set(ready), running=state.running | set(ready),
            places=tuple(places),
        )  # fmt: skip

    def _after_end(self, state: State, operation: Operation) -> State:
        places = list(state.places)
        for use in operation.uses:
            self._end(places, use)
        return self._begun(
            State(
                state.position, state.queued, state.running - {operation.name},
                state.ended | {operation.name}, self._arrived(state, operation.arrivals),
                tuple(places),
            )
        )  # fmt: skip

    def _begin(self, state: State, places: list[Place], use: Use) -> None:
        version, left, reading, writing = places[self._place[use.place]]
        if isinstance(use, Read):
            if writing or version != use.version or not left:
                self._fail(state, f"a read of {use.place} {use.version}, which holds {version}")
            new = (version, left, reading + 1, writing)
        else:
            if reading or writing or left:
                self._fail(state, f"{use.place} {use.version} is written over {version}")
            new = (use.version, use.reads, 0, 1)
        places[self._place[use.place]] = new

    def _end(self, places: list[Place], use: Use) -> None:
        version, left, reading, writing = places[self._place[use.place]]
        if isinstance(use, Read):
            places[self._place[use.place]] = (version, left - 1, reading - 1, writing)
        else:
            places[self._place[use.place]] = (version, left, reading, 0)

    def _arrived(self, state: State, arrivals: Sequence[Arrive]) -> tuple[Barrier, ...]:
        barriers = list(state.barriers)
        for arrival in arrivals:
            index = self._barrier[arrival.barrier]
            ended, pending, to_come = barriers[index]
            pending -= arrival.count
            to_come += arrival.expect - arrival.bytes
            if pending < 0:
                self._fail(state, f"{arrival.barrier} gets an arrival too many")
            if pending == 0 and to_come == 0:
                ended, pending = ended + 1, self._counts[index]
            barriers[index] = (ended, pending, to_come)
        return tuple(barriers)

    def _fail(self, state: State, what: str) -> None:
        raise Violation(f"{what}: {self._told(state)}")

    def _told(self, state: State) -> str:
        pairs = zip(self._names, state.position, self._steps, strict=True)
        where = [f"{name} {at}/{len(steps)}" for name, at, steps in pairs]
        return f"{', '.join(where)}; running {sorted(state.running)}"


def meeting(
    barrier: str, number: int, waits: tuple[tuple[str, int], ...] = (), uses: tuple[Use, ...] = ()
) -> list[Step]:
    """A barrier of threads, whose n-th use is phase n: arrives behind `waits`, and uses places once
    all have come."""
    return [Step(waits, (), (), (Arrive(barrier),)), Step(((barrier, number),), uses)]


def without_wait(graph: Graph) -> Iterable[tuple[str, Graph]]:
    """The graph with one barrier never waited for by one process, for each such pair."""
    for name, steps in graph.processes.items():
        for barrier in dict.fromkeys(b for step in steps for b, _ in step.waits):
            changed = [
                Step(
                    tuple(w for w in s.waits if w[0] != barrier), s.uses, s.starts, s.arrivals
                )
                for s in steps
            ]  # fmt: skip
            yield (
                f"{name} without {barrier}",
                Graph(graph.barriers, {**graph.processes, name: changed}),
            )
