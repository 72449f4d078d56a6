"""Host memory in the emulator, and launches that are known."""

from __future__ import annotations

import mmap
import resource
import sys

import numpy as np
import pytest
import torch

from sparsekit.check.placement import place_inputs
from sparsekit.discover import Catalog
from sparsekit.emulator import CHECKS, HostMemory, Launches, Memory, Piece, Schedule
from sparsekit.emulator.memory import GLOBAL_BASE, INITIALISED, sparse_zeros
from sparsekit.errors import TooLargeError
from sparsekit.runtime.tensors import placement

PTX = """.version 8.0
.target {target}
.address_size 64
.visible .entry add(.param .u64 x, .param .u64 y, .param .u32 step)
{{
	.reg .b32 %r<5>; .reg .b64 %rd<6>;
	ld.param.u64 %rd1, [x];
	ld.param.u64 %rd2, [y];
	ld.param.u32 %r1, [step];
	mov.u32 %r2, %tid.x;
	mul.wide.u32 %rd3, %r2, 4;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
	ld.global.u32 %r3, [%rd4];
	add.u32 %r4, %r3, %r1;
	st.global.u32 [%rd5], %r4;
	ret;
}}
"""
OPTIONS = {"shared_bytes": 0, "cluster": (1, 1, 1), "schedule": Schedule(), "checks": None}


def piece(name: str, array: np.ndarray, first: int, count: int, written: bool) -> Piece:
    return Piece(name, array.ctypes.data, 4 * first, 4 * count, written)


def run(
    memory: Memory, host: HostMemory, launches: Launches, target: str = "sm_80", step: int = 5,
    **options,
):  # fmt: skip
    params = b"".join(host.addresses[n].to_bytes(8, "little") for n in ("x", "y"))
    return launches.launch(
        PTX.format(target=target), "add", (1, 1, 1), 32, params + step.to_bytes(4, "little"),
        memory, **{**OPTIONS, **options},
    )  # fmt: skip


def test_in_and_out():
    source, target = np.arange(64, dtype=np.uint32), np.full(64, 99, np.uint32)
    memory = Memory()
    host = HostMemory(memory, [piece("x", source, 10, 32, False), piece("y", target, 3, 40, True)])
    report, reused = run(memory, host, Launches())
    assert report.ok
    assert not reused
    assert (target == 99).all()  # nothing is written before it is asked for
    host.copy_out()
    assert target[3:35].tolist() == (source[10:42] + 5).tolist()
    assert (target[:3] == 99).all()
    assert (target[35:] == 99).all()  # what the kernel did not write, bounds or not


def test_outputs_come_back_whatever_is_checked():
    source = np.arange(32, dtype=np.uint32)
    for checks in ((), *((n,) for n in CHECKS), *(tuple(set(CHECKS) - {n}) for n in CHECKS)):
        target, memory = np.full(40, 99, np.uint32), Memory()
        pieces = [piece("x", source, 0, 32, False), piece("y", target, 0, 40, True)]
        host = HostMemory(memory, pieces)
        assert run(memory, host, Launches(), checks=checks)[0].ok
        host.copy_out()
        assert target.tolist() == [*range(5, 37), *[99] * 8]


BY_BLOCK = """.version 8.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 x, .param .u64 y)
{
	.reg .b32 %r<3>; .reg .b64 %rd<6>; .reg .pred %p;
	ld.param.u64 %rd1, [x];
	ld.param.u64 %rd2, [y];
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %tid.x;
	setp.eq.u32 %p, %r1, 0;
	selp.b64 %rd3, %rd1, %rd2, %p;
	mad.wide.u32 %rd4, %r2, 4, %rd3;
	st.global.u32 [%rd4], %r1;
	ret;
}
"""


def fill(pieces: list[Piece], **options):
    memory = Memory()
    host = HostMemory(memory, pieces)
    params = b"".join(host.addresses[n].to_bytes(8, "little") for n in ("x", "y"))
    report, _ = Launches().launch(
        BY_BLOCK, "fill", (2, 1, 1), 32, params, memory, **{**OPTIONS, **options}
    )
    host.copy_out()
    return report


@pytest.mark.parametrize("first", [0, 8, 40])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_neighbours_in_one_buffer_do_not_race(first, order):
    """Two outputs less than 256 bytes apart, each filled by a block of its own."""
    array = np.full(200, 99, np.uint32)
    pieces = [piece("x", array, first, 33, True), piece("y", array, first + 33, 32, True)]
    assert fill([pieces[i] for i in order]).faults == ()
    assert array[first : first + 65].tolist() == [*[0] * 32, 99, *[1] * 32]
    pieces[1] = piece("y", array, first + 31, 33, True)  # the last of x is the first of y
    (fault,) = fill([pieces[i] for i in order]).faults
    assert fault.kind == "global-race"


def test_races_without_bounds():
    """Where nobody checks bounds, what lies outside of them is not lost on the way."""
    array = np.zeros(200, np.uint32)
    pieces = [piece("x", array, 0, 10, True), piece("y", array, 100, 10, True)]
    assert fill(pieces, checks=tuple(set(CHECKS) - {"bounds"})).faults == ()
    assert array[110:132].tolist() == [0] * 22


def test_an_address_keeps_its_place_in_the_buffer():
    array = np.zeros(1000, np.uint32)
    host = HostMemory(Memory(), [piece("x", array, 70, 5, False), piece("y", array, 300, 5, True)])
    assert (host.addresses["x"] - 4 * 70) % 256 == 0
    assert host.addresses["y"] - host.addresses["x"] == 4 * 230


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_pieces_may_overlap(order):
    """In place: x is read, y is the same memory and may be written."""
    array = np.arange(40, dtype=np.uint32)
    pieces = [piece("x", array, 0, 32, False), piece("y", array, 0, 32, True)]
    memory = Memory()
    host = HostMemory(memory, [pieces[i] for i in order])
    report, _ = run(memory, host, Launches())
    assert report.faults == ()
    host.copy_out()
    assert array.tolist() == [*range(5, 37), *range(32, 40)]


def test_the_bounds_are_those_of_the_piece():
    array, out = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    for short in ("x", "y"):
        memory = Memory()
        counts = {"x": 32, "y": 32, short: 31}
        host = HostMemory(
            memory,
            [piece("x", array, 0, counts["x"], False), piece("y", out, 0, counts["y"], True)],
        )
        report, _ = run(memory, host, Launches())
        (fault,) = report.faults
        assert fault.kind == "bounds"
        assert f"0 bytes past the end of {short}" in fault.message
        assert report.stopped


def test_too_large():
    for size, lines, told in (
        ((1 << 31) + 4, None, "hold"), (1 << 40, (1 << 10, 4, 1 << 30), "span"),
        (1 << 32, (1 << 20, 4096, 8191), "hold"),
    ):  # fmt: skip
        with pytest.raises(TooLargeError, match=f"the call's tensors {told} .* the emulator takes"):
            HostMemory(Memory(), [Piece("x", 0, 0, size, False, lines)])


FAR = (5, 128, 1 << 30)  # lines of 32 words, the last one beyond 2^32 bytes


def far_lines() -> tuple[np.ndarray, Piece]:
    """Words of memory, and the piece that is five lines of them."""
    count, size, stride = FAR
    pages = mmap.mmap(-1, (count - 1) * stride + size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    words = np.frombuffer(pages, np.uint32)
    for line in range(count):
        words[line * stride // 4 :][:32] = 100 * line + np.arange(32)
    return words, Piece("x", words.ctypes.data, 0, words.nbytes, False, FAR)


def test_lines_far_apart_are_read_where_they_are_and_take_no_memory_between():
    words, lines = far_lines()
    target, memory = np.zeros(32, np.uint32), Memory()
    host = HostMemory(memory, [lines, piece("y", target, 0, 32, True)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    x = host.addresses["x"] + 4 * FAR[2]
    params = x.to_bytes(8, "little") + host.addresses["y"].to_bytes(8, "little")
    report, reused = Launches().launch(
        PTX.format(target="sm_80"), "add", (1, 1, 1), 32, params + (5).to_bytes(4, "little"),
        memory, **OPTIONS,
    )  # fmt: skip
    assert report.ok, report.faults
    assert not reused
    host.copy_out()
    assert target.tolist() == (words[-32:] + 5).tolist() == list(range(405, 437))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KB


def test_what_lies_between_lines_far_apart_is_out_of_bounds():
    words, lines = far_lines()
    memory = Memory()
    host = HostMemory(memory, [lines, piece("y", np.zeros(32, np.uint32), 0, 32, True)])
    x = host.addresses["x"] + FAR[2] - 4
    params = x.to_bytes(8, "little") + host.addresses["y"].to_bytes(8, "little")
    report, _ = Launches().launch(
        PTX.format(target="sm_80"), "add", (1, 1, 1), 32, params + (5).to_bytes(4, "little"),
        memory, **OPTIONS,
    )  # fmt: skip
    (fault,) = report.faults
    assert fault.kind == "bounds"
    assert "between its lines" in fault.message
    assert words[-1] == 431  # they live until here


def test_no_room_for_so_many_addresses_is_a_lack_of_memory():
    """As numpy tells it; `verify` then skips the case."""
    with pytest.raises(MemoryError, match="can be mapped"):
        sparse_zeros(1 << 60)


def resident_kb() -> int:
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize(
    ("op", "name", "case"),
    [
        ("sparse_prefill", "kv", "far_rows"), ("sparse_attn_paged", "window_pool", "far_window_m2"),
        ("sparse_attn_paged", "cmp_pool", "far_cmp_m1"),
    ],
)  # fmt: skip
def test_far_rows_of_the_ops_lie_beyond_32_bits_and_take_little_memory(op, name, case):
    """The last row's address is beyond 2^31 elements and 2^32 bytes, in the input and emulated."""
    of_op = next(c.op for c in Catalog().resolve([op]))
    (far,) = (c for c in of_op.cases if c.name == case)
    rows = next(n for t in of_op.tensors if t.name == name for n in t.shape)
    row = torch.ones(far.dims["d_qk" if op == "sparse_prefill" else "d"], dtype=torch.bfloat16)
    value = row.expand(far.dims[rows], *[1] * (op == "sparse_prefill"), -1)
    before = resident_kb()
    pool = place_inputs({name: value}, far, torch.device("cpu"))[name]
    last = (pool.shape[0] - 1) * pool.stride(0)
    assert last > 1 << 31
    assert pool[-1].flatten().tolist() == row.tolist()
    assert pool.untyped_storage().nbytes() > 1 << 32
    place = placement(pool)
    piece = Piece(
        name, place.storage_address, place.offset_bytes, place.span_bytes, False, place.lines
    )
    memory = Memory()
    host = HostMemory(memory, [piece])
    start = host.addresses[name] - GLOBAL_BASE + 2 * last
    assert memory.content()[start : start + 2 * row.numel()].view(np.uint16).tolist() == (
        row.view(torch.int16).tolist()
    )
    assert resident_kb() - before < 2_000_000


@pytest.mark.parametrize(
    ("shape", "strides", "lines"),
    [
        ((3, 4), (4, 1), None), ((3, 4), (10, 1), (3, 8, 20)), ((3, 1, 4), (10, 4, 1), (3, 8, 20)),
        ((2, 3, 4), (30, 10, 1), (6, 8, 20)), ((2, 3, 4), (12, 4, 1), None),
        ((2, 3, 4), (50, 4, 1), (2, 24, 100)), ((2, 3, 4), (50, 10, 1), None),
        ((3, 4), (0, 1), None), ((1, 4), (9, 1), None),
    ],
)  # fmt: skip
def test_lines_of_a_tensor(shape, strides, lines):
    """Counts, and bytes of bf16."""
    tensor = torch.empty(200, dtype=torch.bfloat16).as_strided(shape, strides)
    assert placement(tensor).lines == lines


def prepared(source: np.ndarray, target: np.ndarray) -> tuple[Memory, HostMemory]:
    memory = Memory()
    return memory, HostMemory(
        memory, [piece("x", source, 0, 32, False), piece("y", target, 0, 32, True)]
    )


def test_the_same_launch_is_known_whatever_the_target():
    launches = Launches()
    source = np.arange(32, dtype=np.uint32)
    results = []
    for target in ("sm_80", "sm_90a"):
        out = np.zeros(32, np.uint32)
        memory, host = prepared(source, out)
        report, reused = run(memory, host, launches, target)
        host.copy_out()
        start = host.addresses["y"] - GLOBAL_BASE
        written = (memory.state()[start : start + 4 * 32] & INITIALISED) != 0
        results.append((report, reused, out.tolist(), written.all()))
    (first, _, out, _), (second, reused, again, written) = results
    assert reused
    assert second is first
    assert again == out == (source + 5).tolist()
    assert written


def test_another_launch_is_not():
    launches = Launches()
    source = np.arange(32, dtype=np.uint32)
    differing = [
        {}, {"step": 6}, {"checks": tuple(sorted(set(CHECKS) - {"race"}))},
        {"schedule": Schedule("random", 3)}, {"shared_bytes": 16},
    ]  # fmt: skip
    for options in differing:
        assert not run(*prepared(source, np.zeros(32, np.uint32)), launches, **options)[1]
    changed = source.copy()
    changed[7] = 1
    assert not run(*prepared(changed, np.zeros(32, np.uint32)), launches)[1]
    assert run(*prepared(source, np.zeros(32, np.uint32)), launches)[1]
