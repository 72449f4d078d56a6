"""The barrier graph of kernels_cu/sparse_prefill_sm120, every interleaving of 0 to 7 tiles.

The model has two warps of a role: those of one role do the same, and what could go wrong between
two of them shows with two.
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
    Use,
    Violation,
    Write,
    meeting,
    without_wait,
)

from sparsekit.discover import Catalog
from sparsekit.model import Instance
from sparsekit.model.arch import parse_arch

MOST_TILES = 7
INDEX_TILES = 8  # kIndexTiles of shape.cuh
VALUES = SCORES = 2


def stages(variant: str, d_qk: int) -> int:
    kernel = next(k for k in Catalog().kernels if k.name == "sparse_prefill_sm120")
    instance = Instance(constants={"d_qk": d_qk})
    return kernel.variant_at(variant, parse_arch("sm_120"), instance).constant("STAGES")


def sm120_graph(tiles: int, slots: int, *, ahead: int = 0, index_tiles: int = INDEX_TILES) -> Graph:
    """ahead: tiles that are gathered sooner than the kernel does, which is a fault."""
    graph = Graph()
    graph.barriers |= {f"full{s}": VALUES for s in range(slots)}
    graph.barriers |= {"tile_done": VALUES + SCORES, "p_ready": VALUES}
    flight = min(slots - 1 + ahead, tiles)  # tiles gathered before the loop
    for v in range(VALUES):
        graph.processes[f"value{v}"] = value_steps(v, tiles, slots, flight, ahead, index_tiles)
    for w in range(SCORES):
        graph.processes[f"score{w}"] = score_steps(w, tiles, slots, index_tiles)
    return graph


def landed(tile: int, slots: int) -> tuple[str, int]:
    return f"full{tile % slots}", tile // slots


def slot(tile: int, slots: int, v: int) -> str:
    """What one value warp brings of a tile."""
    return f"slot{tile % slots}.{v}"


def gather(tile: int, slots: int, v: int, uses: tuple[Use, ...] = ()) -> Step:
    """Brings its part, which all warps read."""
    part = Write(slot(tile, slots, v), tile, VALUES + SCORES)
    full = landed(tile, slots)[0]
    copy = Operation(f"copy{tile}.{v}", (part,), (Arrive(full, 0, bytes=1),))
    return Step((), uses, (copy,), (Arrive(full, expect=1),))


def value_steps(
    v: int, tiles: int, slots: int, flight: int, ahead: int, index_tiles: int
) -> list[Step]:
    steps = [gather(tile, slots, v) for tile in range(flight)]
    steps += meeting("tile_done", 0, (landed(0, slots),) if tiles else ())
    for tile in range(tiles):
        steps += meeting(
            "tile_done", tile + 1, (landed(tile + 1, slots),) if tile + 1 < tiles else ()
        )
        following = tile + slots - 1 + ahead
        if following < tiles:
            row = Read(f"index{following % index_tiles}", following)
            steps.append(gather(following, slots, v, (row,)))
        softmax = (
            Read(f"index{tile % index_tiles}", tile),
            *(Read(f"S{tile % 2}.{w}", tile) for w in range(SCORES)),
            Write(f"P.{v}", tile, VALUES),
        )
        steps.append(Step((), softmax))
        products = (
            *(Read(f"P.{other}", tile) for other in range(VALUES)),
            *(Read(slot(tile, slots, other), tile) for other in range(VALUES)),
        )
        steps += meeting("p_ready", tile, (), products)
    # O goes out through the first slot: every part has been read by all.
    staged = tuple(Write(slot(0, slots, other), tiles + slots, 0) for other in range(VALUES))
    steps += meeting("p_ready", tiles)
    return [*steps, Step((), staged[v : v + 1])]


def score_steps(w: int, tiles: int, slots: int, index_tiles: int) -> list[Step]:
    def indices(tile: int) -> tuple[Use, ...]:
        """Of a tile, by one warp; the value warps gather by those that are not the first."""
        if w or tile >= tiles:
            return ()
        reads = VALUES * (2 if tile >= slots - 1 else 1)
        return (Write(f"index{tile % index_tiles}", tile, reads),)

    steps = [Step((), indices(tile)) for tile in range(slots - 1)]
    for tile in range(tiles):
        steps += meeting("tile_done", tile, (), indices(tile + slots - 1))
        parts = (Read(slot(tile, slots, v), tile) for v in range(VALUES))
        steps.append(Step((), (*parts, Write(f"S{tile % 2}.{w}", tile, VALUES))))
    return [*steps, *meeting("tile_done", tiles)]


@pytest.mark.parametrize("tiles", [0, 1, 4])
def test_every_interleaving_in_short(tiles):
    Checker(sm120_graph(tiles, stages("skip", 576))).run()


@pytest.mark.slow
@pytest.mark.parametrize("tiles", range(MOST_TILES + 1))
@pytest.mark.parametrize(("variant", "d_qk"), [("skip", 576), ("skip", 512), ("skip_heads32", 576)])
def test_every_interleaving(variant, d_qk, tiles):
    Checker(sm120_graph(tiles, stages(variant, d_qk))).run()


def violation(graph: Graph) -> str:
    try:
        Checker(graph).run()
    except Violation as found:
        return str(found)
    return ""


def test_every_wait_is_needed():
    """The checker sees each of them missing; without it a clean run would say little. That a stage
    has landed one value warp must wait for: they meet before anybody reads."""
    graph = sm120_graph(4, 3)
    changed = [(what, one) for what, one in without_wait(graph) if "full" not in what]
    changed += [(f"no {full}", nobody_waits(graph, full)) for full in ("full0", "full1", "full2")]
    assert len(changed) == VALUES * 2 + SCORES + 3
    for what, without in changed:
        assert violation(without), what


def nobody_waits(graph: Graph, barrier: str) -> Graph:
    processes = {
        name: [replace(s, waits=tuple(w for w in s.waits if w[0] != barrier)) for s in steps]
        for name, steps in graph.processes.items()
    }
    return Graph(graph.barriers, processes)


def test_faults_of_the_graph():
    assert "is written over" in violation(sm120_graph(5, 3, ahead=1))
    assert "is written over" in violation(sm120_graph(5, 3, index_tiles=3))
    graph = sm120_graph(2, 3)
    graph.barriers["full0"] += 1
    assert re.search("deadlock", violation(graph))


def scan_graph(rounds: int, places: int = 2) -> Graph:
    """The search for a row's end, before the tiles: every warp writes, all meet, all read."""
    warps = VALUES + SCORES
    graph = Graph({"scan_done": warps})
    for w in range(warps):
        steps: list[Step] = []
        for n in range(rounds):
            steps.append(Step((), (Write(f"end{n % places}.{w}", n, warps),)))
            reads = tuple(Read(f"end{n % places}.{other}", n) for other in range(warps))
            steps += meeting("scan_done", n, (), reads)
        graph.processes[f"warp{w}"] = steps
    return graph


def test_the_rounds_of_the_scan():
    Checker(scan_graph(4)).run()
    assert "is written over" in violation(scan_graph(2, places=1))


def test_the_tiles_of_indices_are_the_kernel_s():
    from conftest import ROOT

    shape = ROOT / "kernels_cu" / "include" / "sparsekit" / "sparse_prefill" / "shape.cuh"
    assert f"kIndexTiles = {INDEX_TILES}," in shape.read_text()
