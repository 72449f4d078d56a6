"""Rules no-partner and beyond-arch: what is said, and what healthy code is spared."""

from __future__ import annotations

import pytest

from sparsekit.aot.record import check_ptx
from sparsekit.errors import CompileError
from sparsekit.ptx import BEYOND_ARCH, NO_PARTNER, lint, parse
from sparsekit.ptx.limits import BLOCK_REGISTERS, block_registers, most_registers

HEAD = ".version 8.6\n.target sm_100a\n.address_size 64\n"
COPY = "cp.async.cg.shared.global [%r1], [%rd1], 16;"
LOOP_START, LOOP_END = "L:", "@%p1 bra L;"
BULK_IN = (
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r2];"
)
BULK_OUT = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16;"
INIT = "mbarrier.init.shared::cta.b64 [%r2], 1;"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 %rd2, [%r2], 16;"
ARRIVE = "mbarrier.arrive.shared::cta.b64 %rd2, [%r2];"
TRY_WAIT = "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;"
NOINC = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r2];"
WGMMA = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd3, %rd4, 1, 1, 1,"
    " 0, 0;"
)


def entry(*body: str, header: str = "", shared: str = "") -> str:
    return (
        f"{HEAD}.entry k(.param .u64 p) {header} {{\n.reg .pred %p<9>; .reg .b32 %r<9>;"
        f" .reg .b64 %rd<9>; .reg .f32 %f<9>; {shared}\nmov.b32 %r1, 0; mov.b32 %r2, 64;"
        " mov.b64 %rd1, 0; mov.b64 %rd3, 0; mov.b64 %rd4, 0; mov.pred %p1, 0;"
        " mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;\n"
        + "\n".join(body)
        + "\nret;\n}\n"
    )


def told(*body: str) -> list[str]:
    """The missing halves, each by the words behind the instruction."""
    found = lint(parse(entry(*body)))
    assert all(f.rule == NO_PARTNER and f.severity == "warning" for f in found)
    return [f.message.split("`: ")[1] for f in found]


COMMIT, WAIT = "cp.async.commit_group;", "cp.async.wait_group 0;"
HEALTHY = {
    "copies": (COPY, COMMIT, WAIT),
    "copies in a ring": (COPY, COMMIT, LOOP_START, WAIT, COPY, COMMIT, LOOP_END, WAIT),
    "the wait stands before the commit, in a loop": (LOOP_START, WAIT, COPY, COMMIT, LOOP_END),
    "wait_all": (COPY, "cp.async.wait_all;"),
    "copies that arrive at an mbarrier": (INIT, COPY, NOINC, TRY_WAIT),
    "a bulk copy in": (INIT, EXPECT, BULK_IN, TRY_WAIT),
    "a bulk copy out": (
        BULK_OUT, "cp.async.bulk.commit_group;", "cp.async.bulk.wait_group.read 0;",
    ),
    "named barriers": ("bar.arrive 1, 64;", "bar.sync 1, 64;"),
    "a barrier by register": ("bar.arrive %r1, 64;", "bar.sync %r2, 64;"),
    "wgmma": (WGMMA, "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(name):
    assert told(*HEALTHY[name]) == []


LONELY = {
    "a copy without commit": ((COPY, WAIT), "nothing commits the copy"),
    "a commit without wait": ((COPY, COMMIT), "nothing waits for the group"),
    "a wait that stands only before": ((WAIT, COPY, COMMIT), "nothing waits for the group"),
    "a bulk store without commit": ((BULK_OUT,), "nothing commits the bulk copy"),
    "a bulk commit without wait": (
        (BULK_OUT, "cp.async.bulk.commit_group;"), "nothing waits for the bulk group",
    ),
    "a wait without arrival": ((INIT, TRY_WAIT), "nothing arrives at an mbarrier"),
    "an arrival without wait": ((INIT, ARRIVE), "nothing waits on an mbarrier"),
    "an expect without bytes": ((INIT, EXPECT, TRY_WAIT), "nothing brings the bytes"),
    "bytes without an expect": ((INIT, BULK_IN, TRY_WAIT), "no mbarrier expects the bytes"),
    "no init": ((ARRIVE, TRY_WAIT), "no mbarrier is initialised"),
    "an arrival at a barrier": (("bar.arrive 2, 64;", "bar.sync 1, 64;"), "waits at barrier 2"),
    "wgmma without commit": ((WGMMA,), "nothing commits the wgmma"),
    "wgmma without wait": (
        (WGMMA, "wgmma.commit_group.sync.aligned;"), "nothing waits for the wgmma group",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LONELY)
def test_lonely(name):
    body, missing = LONELY[name]
    (found,) = told(*body)
    assert missing in found


def test_a_partner_in_a_called_function_counts():
    text = entry(COPY, COMMIT, "call drain;").replace(
        ".entry", ".func drain() {\ncp.async.wait_all;\nret;\n}\n.entry", 1
    )
    assert lint(parse(text)) == ()


def test_the_place_is_told():
    (finding,) = lint(parse(entry(COPY, COMMIT)))
    assert finding.entry == "k"
    assert entry(COPY, COMMIT).splitlines()[finding.line - 1] == COMMIT


def beyond(text: str) -> list[tuple[str, str]]:
    return [(f.severity, f.message) for f in lint(parse(text)) if f.rule == BEYOND_ARCH]


def test_shared_memory_beyond_the_arch():
    limit = 227 * 1024
    assert beyond(entry(shared=f".shared .align 16 .b8 a[{limit}];")) == []
    ((severity, message),) = beyond(
        entry(shared=f".shared .align 16 .b8 a[{limit}]; .shared .b8 b[1];")
    )
    assert severity == "error"
    assert message == f"{limit + 1} bytes of static shared memory, and sm_100a has {limit}"
    smaller = entry(shared=f".shared .align 16 .b8 a[{100 * 1024}];").replace("sm_100a", "sm_120a")
    assert beyond(smaller)
    with pytest.raises(CompileError, match="bytes of static shared memory"):
        check_ptx(smaller)


def test_threads_and_registers_beyond_the_arch():
    assert beyond(entry(header=".maxntid 1024")) == []
    assert beyond(entry(header=".reqntid 32, 64"))[0][0] == "error"
    assert beyond(entry(header=".maxntid 512 .maxnreg 128")) == []
    assert beyond(entry(header=".maxntid 512 .maxnreg 136"))[0][0] == "warning"
    assert beyond(entry(header=".maxntid 32 .maxnreg 300"))[0][0] == "error"


def test_more_registers_than_there_are_cannot_be_given_up():
    fewer, more = "setmaxnreg.dec.sync.aligned.u32 128;", "setmaxnreg.dec.sync.aligned.u32 136;"
    assert beyond(entry(fewer, header=".maxntid 512")) == []
    told = "setmaxnreg.dec to 136 registers, and a thread has at most"
    assert beyond(entry(more, header=".maxntid 512")) == [("error", f"{told} 128")]
    assert beyond(entry(fewer, header=".maxntid 384 .maxnreg 120"))[0][0] == "error"
    assert beyond(entry(more)) == []
    assert beyond(entry(more.replace("dec", "inc"), header=".maxntid 512")) == []


def test_registers_are_given_out_by_warps():
    assert [most_registers(threads) for threads in (32, 384, 512, 544)] == [256, 168, 128, 120]
    assert block_registers(128, 512) == BLOCK_REGISTERS
    assert block_registers(129, 512) > BLOCK_REGISTERS
    assert block_registers(33, 33) == 2 * 5 * 256


def test_an_unknown_arch_has_no_limits():
    assert beyond(entry(shared=".shared .b8 a[999999];").replace("sm_100a", "sm_75")) == []
