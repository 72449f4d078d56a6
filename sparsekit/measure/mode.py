"""How a case is timed: graph or events, how many calls, how many sets of inputs."""

from __future__ import annotations

from collections.abc import Sequence

from sparsekit.measure.engine import Clock
from sparsekit.measure.protocol import Protocol
from sparsekit.measure.timer import Call, Timer
from sparsekit.model.bench import Mode

# A launch shorter than this is timed in a graph: the host could not keep up with it.
GRAPH_BELOW_S = 200e-6
MOST_CALLS = 4096  # in one graph: tens of thousands are known to crash the driver
MOST_COPIES = 512  # each costs a capture's time and an allocation
_COPIES_FOR_EVENTS = 2
_LONGEST_WINDOWS = 10  # that the slowest candidate's sample may take
_SHORTEST_S = 1e-7  # taken for an estimate that is 0


def choose_mode(
    protocol: Protocol, l2: str, estimates_s: Sequence[float], input_bytes: int, budget_bytes: int
) -> Mode:
    """How to time calls of about these durations.

    input_bytes: of one set of inputs; budget_bytes: what copies of them may take. A cold graph has
    a set for each call, so that none is read twice between two flushes.
    """
    cold = (protocol.l2 or l2) == "cold"
    method = protocol.method or ("graph" if max(estimates_s) < GRAPH_BELOW_S else "events")
    affordable = max(1, budget_bytes // max(input_bytes, 1))
    calls, copies = 1, min(_COPIES_FOR_EVENTS, affordable) if cold else 1
    if method == "graph":
        shortest, longest = max(min(estimates_s), _SHORTEST_S), max(*estimates_s, _SHORTEST_S)
        wanted = round(
            min(protocol.window_s / shortest, _LONGEST_WINDOWS * protocol.window_s / longest)
        )
        calls = max(1, min(wanted, min(affordable, MOST_COPIES) if cold else MOST_CALLS))
        copies = calls if cold else 1
    return Mode(
        protocol.name, method, "cold" if cold else "warm", calls, copies, protocol.rounds,
        protocol.iterations,
    )  # fmt: skip


def make_clock(
    timer: Timer, mode: Mode, callers: Sequence[Sequence[Call]], names: Sequence[str]
) -> Clock:
    """The clock of the candidates. callers: of each, one per set of inputs, taken in turn.

    Cold: L2 is flushed before every sample, outside the timed window. Raises NotCapturable.
    """
    works = [list(own) for own in callers]
    if mode.method == "graph":
        works = [
            [timer.recorded([own[n % len(own)] for n in range(mode.calls)], name)]
            for own, name in zip(callers, names, strict=True)
        ]
    flush = timer.flusher() if mode.l2 == "cold" else None
    taken = [0] * len(works)

    def clock(candidate: int) -> float:
        own = works[candidate]
        work = own[taken[candidate] % len(own)]
        taken[candidate] += 1
        return timer.elapsed_s(work, flush) / mode.calls

    return clock
