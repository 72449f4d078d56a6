"""The barrier graph of kernels_cu/sparse_prefill_sm100, every interleaving of small walks.

The model has fewer warps of a role than the kernel: those of one role do the same, and what could
go wrong between two of them shows with two. A pair of blocks has one of each role a block.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from barrier_graph import (
    Arrive,
    Checker,
    Graph,
    Operation,
    Read,
    Step,
    Violation,
    Write,
    meeting,
    without_wait,
)

from sparsekit.discover import Catalog
from sparsekit.model import Instance
from sparsekit.model.arch import parse_arch


def stages(variant: str, d_qk: int) -> int:
    kernel = next(k for k in Catalog().kernels if k.name == "sparse_prefill_sm100")
    instance = Instance(constants={"d_qk": d_qk})
    return kernel.variant_at(variant, parse_arch("sm_100a"), instance).constant("STAGES")


def sm100_graph(items: list[int], *, ctas: int, slots: int, gathers: int, softmaxes: int) -> Graph:
    """items: how many tiles each emits. gathers, softmaxes: warps of a block.

    A gather warp stands for those of one half of the rows, or of all where there is one.
    """
    blocks = range(ctas)
    graph = Graph()
    graph.barriers |= {f"full{s}": gathers for s in range(slots)}
    graph.barriers |= {
        f"empty{s}.{g}.{b}": 1 for s in range(slots) for g in range(gathers) for b in blocks
    }
    graph.barriers |= {f"s_full.{b}": 1 for b in blocks} | {f"pv_done.{b}": 1 for b in blocks}
    graph.barriers |= {"s_free": softmaxes * ctas, "p_full": softmaxes * ctas}

    # Positions in the ring, in order: parts of Q and tiles, with how often each is read.
    positions: list[tuple[str, int, int]] = []
    for item, tiles in enumerate(items):
        parts = [("q", item, 1)] * ctas if tiles else []
        positions += [*parts, *[("tile", item, 2)] * tiles]

    for b in blocks:
        for g in range(gathers):
            graph.processes[f"gather{g}.{b}"] = [
                gather_step(p, positions[p], slots, b, g, ctas) for p in range(len(positions))
            ]
        for w in range(softmaxes):
            graph.processes[f"softmax{w}.{b}"] = softmax_steps(sum(items), b, w)
    graph.processes["tensor"] = tensor_steps(items, ctas, slots, gathers, softmaxes)
    return graph


def gather_step(
    p: int, position: tuple[str, int, int], slots: int, b: int, g: int, ctas: int
) -> Step:
    slot = p % slots
    waits = ((f"empty{slot}.{g}.{b}", p // slots - 1),) if p >= slots else ()
    place = Write(f"slot{slot}.{b}.{g}", p, position[2])
    copy = Operation(f"copy{p}.{b}.{g}", (place,), (Arrive(f"full{slot}", 0, bytes=1),))
    # The first block expects the bytes of both.
    arrivals = (Arrive(f"full{slot}", expect=ctas),) if b == 0 else ()
    return Step(waits, (), (copy,), arrivals)


def softmax_steps(tiles: int, b: int, w: int) -> list[Step]:
    steps = []
    for n in range(tiles):
        steps.append(
            Step(((f"s_full.{b}", n),), (Read(f"S.{b}", n),), arrivals=(Arrive("s_free"),))
        )
        waits = ((f"pv_done.{b}", n - 1),) if n else ()
        o_before = (Read(f"O.{b}", n - 1),) if n else ()
        uses = (*o_before, Write(f"P.{b}.{w}", n, 1))
        steps.append(Step(waits, uses, arrivals=(Arrive("p_full"),)))
    if tiles:
        steps.append(Step(((f"pv_done.{b}", tiles - 1),), (Read(f"O.{b}", tiles - 1),)))
    return steps


def tensor_steps(
    items: list[int], ctas: int, slots: int, gathers: int, softmaxes: int
) -> list[Step]:
    blocks, steps, started = range(ctas), [], []
    position = tile = 0

    def part(p: int, g: int) -> list[Read]:
        return [Read(f"slot{p % slots}.{b}.{g}", p) for b in blocks]

    def parts(p: int) -> list[Read]:
        return [read for g in range(gathers) for read in part(p, g)]

    def commit(barrier: str, number: int, behind: list[str] | None = None) -> Operation:
        arrivals = tuple(Arrive(f"{barrier}.{b}") for b in blocks)
        after = tuple(started if behind is None else behind)
        return Operation(f"commit {barrier} {number}", (), arrivals, after)

    def pv(n: int, p: int) -> Step:
        weights = [Read(f"P.{b}.{w}", n) for b in blocks for w in range(softmaxes)]
        out = [Write(f"O.{b}", n, softmaxes) for b in blocks]
        # Products with one accumulator are in order: this one holds it, and P, to its end.
        before = (f"PV{n - 1}",) if n else ()
        product = Operation(f"PV{n}", (*weights, *out), after=before)
        started.append(product.name)
        operations = []
        for g in range(gathers):
            operations.append(Operation(f"PV{n} rows {g}", tuple(part(p, g)), after=before))
            started.append(operations[-1].name)
            half = [s for s in started if s != product.name]
            operations.append(commit(f"empty{p % slots}.{g}", p, half))
        return Step((("p_full", n),), (), (product, *operations, commit("pv_done", n)))

    pending: tuple[int, int] | None = None
    for tiles in items:
        for first in (True, *[False] * (tiles - 1)) if tiles else ():
            free = (("s_free", tile - 1),) if tile else ()
            copies = []
            if first:
                for number in range(ctas):
                    q = [Write(f"Q{number}.{b}", position, tiles) for b in blocks]
                    copy = Operation(f"cp{position}", (*parts(position), *q))
                    started.append(copy.name)
                    copies.append(copy.name)
                    landed = ((f"full{position % slots}", position // slots),)
                    emptied = [
                        commit(f"empty{position % slots}.{g}", position) for g in range(gathers)
                    ]
                    waits = (*(free if number == 0 else ()), *landed)
                    steps.append(Step(waits, (), (copy, *emptied)))
                    position += 1
                q_at = position - ctas
                free = ()
            landed = ((f"full{position % slots}", position // slots),)
            q_reads = [Read(f"Q{i}.{b}", q_at + i) for i in range(ctas) for b in blocks]
            scores = [Write(f"S.{b}", tile, softmaxes) for b in blocks]
            before = tuple(c for c in copies) + ((f"QK{tile - 1}",) if tile else ())
            product = Operation(f"QK{tile}", (*parts(position), *q_reads, *scores), after=before)
            started.append(product.name)
            steps.append(Step((*free, *landed), (), (product, commit("s_full", tile))))
            if pending:
                steps.append(pv(*pending))
            pending = (tile, position)
            position, tile = position + 1, tile + 1
    if pending:
        steps.append(pv(*pending))
    return steps


def exchange_graph(items: list[int]) -> Graph:
    """What the two softmax warps of one half of the heads hand each other through shared memory,
    and where they meet. items: as above."""
    graph = Graph({"halves": 2})
    for w in range(2):
        steps: list[Step] = []
        met = written = 0

        def meet(uses=(), steps=steps):
            nonlocal met
            steps += meeting("halves", met, (), uses)
            met += 1

        def hand_over(place: str, w=w, steps=steps, meet=meet):
            """To the other warp, which reads it once both have met."""
            nonlocal written
            steps.append(Step((), (Write(f"{place}.{w}", written, 1),)))
            meet((Read(f"{place}.{1 - w}", written),))
            written += 1

        def finish(hand_over=hand_over, meet=meet):
            hand_over("exchange")
            meet()

        started = 0
        for tiles in items:
            for tile in range(tiles):
                hand_over("exchange")  # half of the sums
                meet()
                hand_over("exchange")  # the others
                hand_over("maxima")
                if tile == 0 and started:
                    finish()
                hand_over("exchange")  # P
                meet()
                started += 1
        if started:
            finish()
        graph.processes[f"softmax{w}"] = steps
    return graph


MOST_TILES = 7


def walks(most: int) -> list[list[int]]:
    """Walks of 0 to so many tiles: in one item, in two with an empty one between, an item each."""
    found = [[n] for n in range(most + 1)]
    found += [[1, 0, n - 1] for n in range(2, most + 1)] + [[1] * n for n in range(2, most + 1)]
    return found


@pytest.mark.parametrize("items", [[n] for n in range(MOST_TILES + 1)], ids=str)
def test_one_block_in_short(items):
    slots = stages("skip", 576)
    Checker(sm100_graph(items, ctas=1, slots=slots, gathers=1, softmaxes=2)).run()


@pytest.mark.slow
@pytest.mark.parametrize("items", walks(MOST_TILES), ids=str)
def test_one_block(items):
    slots = stages("skip", 576)
    Checker(sm100_graph(items, ctas=1, slots=slots, gathers=2, softmaxes=2)).run()


@pytest.mark.parametrize("items", [[0], [2]], ids=str)
def test_a_pair_of_blocks_in_short(items):
    slots = stages("skip_pair", 576)
    Checker(sm100_graph(items, ctas=2, slots=slots, gathers=1, softmaxes=1)).run()


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize(
    "items", [*([n] for n in range(MOST_TILES + 1)), [1, 0, 2], [1, 1, 1]], ids=str
)
def test_a_pair_of_blocks(items, d_qk):
    slots = stages("skip_pair", d_qk)
    Checker(sm100_graph(items, ctas=2, slots=slots, gathers=1, softmaxes=1)).run()


@pytest.mark.parametrize("tiles", range(MOST_TILES + 1))
def test_what_two_softmax_warps_exchange(tiles):
    Checker(exchange_graph([tiles])).run()
    Checker(exchange_graph([1, 0, tiles])).run()


def violation(graph: Graph) -> str:
    try:
        Checker(graph).run()
    except Violation as found:
        return str(found)
    return ""


def test_every_wait_is_needed():
    """The checker sees each of them missing; without it a clean run would say little."""
    graph = sm100_graph([2, 1, 1, 2], ctas=1, slots=stages("skip", 576), gathers=1, softmaxes=2)
    changed = list(without_wait(graph))
    assert len(changed) == 12
    for what, without in changed:
        assert violation(without), what


def test_every_meeting_of_two_softmax_warps_is_needed():
    """But for the last, behind which nothing is written any more."""
    graph = exchange_graph([2])
    (steps, _) = graph.processes.values()
    bare = [i for i, step in enumerate(steps) if step.waits and not step.uses]
    assert len(bare) == 5
    for at in bare[:-1]:
        less = {
            name: renumbered([s for i, s in enumerate(own) if i not in (at - 1, at)])
            for name, own in graph.processes.items()
        }
        assert "is written over" in violation(Graph(graph.barriers, less)), at


def renumbered(steps: list[Step]) -> list[Step]:
    """Its meetings counted anew, one of them being gone."""
    found, met = [], 0
    for step in steps:
        waits = step.waits
        if waits:
            waits, met = (("halves", met),), met + 1
        found.append(replace(step, waits=waits))
    return found


FAULTS = {
    "a ring of two slots": ({"slots": 2}, "deadlock"),
    "an arrival too few": ({"s_free": 3}, "deadlock"),
    "an arrival too many": ({"p_full": 1}, "which holds|missed|too many"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_graph(fault):
    change, told = FAULTS[fault]
    slots = change.get("slots", stages("skip", 576))
    graph = sm100_graph([2, 2], ctas=1, slots=slots, gathers=1, softmaxes=2)
    graph.barriers |= {k: v for k, v in change.items() if k in graph.barriers}
    assert re.search(told, violation(graph))
