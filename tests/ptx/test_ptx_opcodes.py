"""Which registers instructions write and read, one or more of every family of the PTX ISA."""

import pytest

from sparsekit.ptx import PtxError, parse
from sparsekit.ptx.opcodes import BASES

HEADER = """.version 9.4
.target sm_100a
.address_size 64
.global .texref tex;
.global .surfref surf;
.visible .entry k()
{
.reg .pred %p<4>;
.reg .b8 %b<2>;
.reg .b16 %h<9>;
.reg .b32 %r<17>;
.reg .b64 %l<9>;
.reg .f32 %f<17>;
.reg .f64 %d<9>;
.reg .b128 %x<3>;
.shared .align 16 .b8 buf[64];
"""

# instruction | registers written | registers read, both in operand order
CASES = """
add.s32 %r1, %r2, 5                        | %r1 | %r2
add.cc.u32 %r1, %r2, %r3                   | %r1 | %r2 %r3
addc.u32 %r1, %r2, %r3                     | %r1 | %r2 %r3
subc.cc.u32 %r1, %r2, %r3                  | %r1 | %r2 %r3
mul.wide.u32 %l1, %r2, %r3                 | %l1 | %r2 %r3
mad.lo.s32 %r1, %r2, %r3, %r4              | %r1 | %r2 %r3 %r4
madc.hi.u32 %r1, %r2, %r3, %r4             | %r1 | %r2 %r3 %r4
sad.s32 %r1, %r2, %r3, %r4                 | %r1 | %r2 %r3 %r4
div.s32 %r1, %r2, %r3                      | %r1 | %r2 %r3
rem.u64 %l1, %l2, %l3                      | %l1 | %l2 %l3
abs.s32 %r1, %r2                           | %r1 | %r2
popc.b64 %r1, %l2                          | %r1 | %l2
clz.b32 %r1, %r2                           | %r1 | %r2
bfind.shiftamt.u32 %r1, %r2                | %r1 | %r2
fns.b32 %r1, %r2, %r3, 1                   | %r1 | %r2 %r3
brev.b32 %r1, %r2                          | %r1 | %r2
bfe.u32 %r1, %r2, %r3, 8                   | %r1 | %r2 %r3
bfi.b32 %r1, %r2, %r3, %r4, %r5            | %r1 | %r2 %r3 %r4 %r5
szext.clamp.s32 %r1, %r2, %r3              | %r1 | %r2 %r3
bmsk.wrap.b32 %r1, %r2, %r3                | %r1 | %r2 %r3
dp4a.u32.u32 %r1, %r2, %r3, %r4            | %r1 | %r2 %r3 %r4
dp2a.lo.s32.u32 %r1, %r2, %r3, %r4         | %r1 | %r2 %r3 %r4
clmad.lo.u64 %l1, %l2, %l3, %l4            | %l1 | %l2 %l3 %l4
testp.normal.f32 %p1, %f2                  | %p1 | %f2
copysign.f32 %f1, %f2, %f3                 | %f1 | %f2 %f3
fma.rn.f32 %f1, %f2, %f3, 0f3F800000       | %f1 | %f2 %f3
fma.rn.f32x2 %l1, %l2, %l3, %l4            | %l1 | %l2 %l3 %l4
add.rn.f32x2 %l1, %l2, %l3                 | %l1 | %l2 %l3
fma.rn.f64 %d1, %d2, %d3, 0d3FF0000000000000 | %d1 | %d2 %d3
max.f32 %f1, %f2, %f3, %f4                 | %f1 | %f2 %f3 %f4
rcp.approx.ftz.f32 %f1, %f2                | %f1 | %f2
ex2.approx.ftz.bf16x2 %r1, %r2             | %r1 | %r2
tanh.approx.f32 %f1, %f2                   | %f1 | %f2
fma.rn.bf16x2 %r1, %r2, %r3, %r4           | %r1 | %r2 %r3 %r4
set.eq.u32.f32 %r1, %f2, %f3               | %r1 | %f2 %f3
setp.lt.s32 %p1, %r2, %r3                  | %p1 | %r2 %r3
setp.lt.and.s32 %p1|%p2, %r2, %r3, !%p3    | %p1 %p2 | %r2 %r3 %p3
setp.lt.s32 %p1|_, %r2, %r3                | %p1 | %r2 %r3
selp.b32 %r1, %r2, %r3, %p1                | %r1 | %r2 %r3 %p1
slct.f32.s32 %f1, %f2, %f3, %r4            | %f1 | %f2 %f3 %r4
lop3.b32 %r1, %r2, %r3, %r4, 0x80          | %r1 | %r2 %r3 %r4
lop3.or.b32 %r1|%p1, %r2, %r3, %r4, 0x80, %p2 | %r1 %p1 | %r2 %r3 %r4 %p2
shf.l.wrap.b32 %r1, %r2, %r3, %r4          | %r1 | %r2 %r3 %r4
not.pred %p1, %p2                          | %p1 | %p2
mov.u32 %r1, %tid.x                        | %r1 |
mov.b64 %l1, {%r1, %r2}                    | %l1 | %r1 %r2
mov.b64 {%r1, %r2}, %l1                    | %r1 %r2 | %l1
mov.b64 {_, %r2}, %l1                      | %r2 | %l1
mov.b128 {%l1, %l2}, %x1                   | %l1 %l2 | %x1
mov.u32 %r1, buf+4                         | %r1 |
shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1 | %r1 %p1 | %r2
shfl.sync.idx.b32 %r1, %r2, %r3, 31, %r4   | %r1 | %r2 %r3 %r4
prmt.b32 %r1, %r2, %r3, 0x5410U            | %r1 | %r2 %r3
ld.global.b32 %r1, [%l1+16]                | %r1 | %l1
ld.shared.v4.b32 {%r1, %r2, _, %r4}, [buf+16] | %r1 %r2 %r4 |
ld.global.nc.L1::no_allocate.L2::cache_hint.v2.b32 {%r1, %r2}, [%l1], %l2 | %r1 %r2 | %l1 %l2
ld.global.v8.b32 {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}, [%l1]
    | %r1 %r2 %r3 %r4 %r5 %r6 %r7 %r8 | %l1
ldu.global.b32 %r1, [%l1]                  | %r1 | %l1
st.global.b32 [%l1+-8], %r1                | | %l1 %r1
st.shared.v2.b32 [buf], {%r1, 0}           | | %r1
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3] | | %r1 %r2 %r3
st.bulk.weak.shared::cta [%l1], %l2, 0     | | %l1 %l2
multimem.ld_reduce.relaxed.sys.global.add.u32 %r1, [%l1] | %r1 | %l1
multimem.st.relaxed.sys.global.u32 [%l1], %r1 | | %l1 %r1
multimem.red.relaxed.sys.global.add.u32 [%l1], %r1 | | %l1 %r1
prefetch.global.L2 [%l1]                   | | %l1
prefetchu.L1 [%l1]                         | | %l1
applypriority.global.L2::evict_normal [%l1], 128 | | %l1
discard.global.L2 [%l1], 128               | | %l1
createpolicy.fractional.L2::evict_last.b64 %l1, 0f3F800000 | %l1 |
isspacep.shared %p1, %l1                   | %p1 | %l1
cvta.to.shared.u64 %l1, %l2                | %l1 | %l2
cvt.rn.bf16x2.f32 %r1, %f1, %f2            | %r1 | %f1 %f2
cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2  | %h1 | %f1 %f2
cvt.pack.sat.u8.s32.b32 %r1, %r2, %r3, %r4 | %r1 | %r2 %r3 %r4
mapa.shared::cluster.u32 %r1, %r2, %r3     | %r1 | %r2 %r3
getctarank.shared::cluster.u32 %r1, %r2    | %r1 | %r2
cp.async.cg.shared.global [%r1], [%l1], 16, %r2 | | %r1 %l1 %r2
cp.async.commit_group                      | |
cp.async.wait_group 1                      | |
cp.async.mbarrier.arrive.noinc.shared.b64 [%r1] | | %r1
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%l1], %r2, [%r3]
    | | %r1 %l1 %r2 %r3
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%l1], [%r1], %r2 | | %l1 %r1 %r2
cp.async.bulk.prefetch.L2.global [%l1], %r2 | | %l1 %r2
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%l1,
    {%r2, %r3}], [%r4]
    | | %r1 %l1 %r2 %r3 %r4
cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%l1, {%r2, %r3}], [%r1]
    | | %l1 %r2 %r3 %r1
cp.async.bulk.wait_group.read 0            | |
tensormap.replace.tile.global_address.global.b1024.b64 [%l1], %l2 | | %l1 %l2
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%l1],
    [%r1], 128
    | | %l1 %r1
fabric.try_get.async.shared::cta.mbarrier::complete_tx::bytes.mbarrier::report::fabric.relaxed.sys.b128
    [%l1], [%r1, %l2], %r2, [%l3]
    | | %l1 %r1 %l2 %r2 %l3
fabric.submit                              | |
tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [tex, {%f5, %f6}] | %f1 %f2 %f3 %f4 | %f5 %f6
tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}|%p1, [tex, {%f5, %f6}] | %f1 %f2 %f3 %f4 %p1 | %f5 %f6
tld4.r.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [tex, {%f5, %f6}] | %f1 %f2 %f3 %f4 | %f5 %f6
txq.width.b32 %r1, [tex]                   | %r1 |
suld.b.1d.b32.trap %r1, [surf, {%r2}]      | %r1 | %r2
sust.b.1d.b32.trap [surf, {%r2}], %r1      | | %r2 %r1
sured.b.add.1d.u32.trap [surf, {%r2}], %r1 | | %r2 %r1
suq.width.b32 %r1, [surf]                  | %r1 |
istypep.texref %p1, %l1                    | %p1 | %l1
bar.sync 0                                 | |
bar.arrive %r1, %r2                        | | %r1 %r2
bar.red.popc.u32 %r1, 0, %p1               | %r1 | %p1
barrier.cta.red.and.pred %p1, 0, !%p2      | %p1 | %p2
bar.warp.sync %r1                          | | %r1
barrier.cluster.arrive.release.aligned     | |
barrier.cluster.wait.acquire.aligned       | |
membar.gl                                  | |
fence.proxy.async.shared::cta              | |
fence.proxy.tensormap::generic.acquire.gpu [%l1], 128 | | %l1
atom.global.add.f32 %f1, [%l1], %f2        | %f1 | %l1 %f2
atom.global.cas.b32 %r1, [%l1], %r2, %r3   | %r1 | %l1 %r2 %r3
atom.global.v2.f32.add {%f1, %f2}, [%l1], {%f3, %f4} | %f1 %f2 | %l1 %f3 %f4
atom.global.exch.b128 %x1, [%l1], %x2      | %x1 | %l1 %x2
red.global.add.f32 [%l1], %f1              | | %l1 %f1
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.inc.u32 [%r1], %r2, [%r3]
    | | %r1 %r2 %r3
vote.sync.ballot.b32 %r1, %p1, -1          | %r1 | %p1
match.any.sync.b32 %r1, %r2, -1            | %r1 | %r2
match.all.sync.b32 %r1|%p1, %r2, -1        | %r1 %p1 | %r2
activemask.b32 %r1                         | %r1 |
redux.sync.add.s32 %r1, %r2, -1            | %r1 | %r2
griddepcontrol.wait                        | |
elect.sync _|%p1, -1                       | %p1 |
elect.sync %r1|%p1, %r2                    | %r1 %p1 | %r2
mbarrier.init.shared::cta.b64 [%r1], 1     | | %r1
mbarrier.inval.shared.b64 [%r1]            | | %r1
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], %r2 | | %r1 %r2
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 16 | | %r1
mbarrier.arrive.shared::cta.b64 %l1, [%r1] | %l1 | %r1
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r2 | | %r1 %r2
mbarrier.arrive_drop.shared.b64 %l1, [%r1], %r2 | %l1 | %r1 %r2
mbarrier.test_wait.shared.b64 %p1, [%r1], %l1 | %p1 | %r1 %l1
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2, %r3 | %p1 | %r1 %r2 %r3
mbarrier.try_wait.parity.phase_type::primary.shared::cta.b64 %p1|%p2, %b1, [%r1], %r2
    | %p1 %p2 %b1 | %r1 %r2
mbarrier.pending_count.b64 %r1, %l1        | %r1 | %l1
mbarrier.check_layout.layout::v1.shared::cta.b64 %p1, [%r1] | %p1 | %r1
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2]
    | | %r1 %r2
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %x1 | %p1 | %x1
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2, %r3, _}, %x1
    | %r1 %r2 %r3 | %x1
wmma.load.a.sync.aligned.row.m8n8k4.f64 {%d1}, [%l1], %r1 | %d1 | %l1 %r1
wmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f64 {%d1, %d2}, {%d3}, {%d4}, {%d5, %d6}
    | %d1 %d2 | %d3 %d4 %d5 %d6
wmma.store.d.sync.aligned.row.m8n8k4.f64 [%l1], {%d1, %d2}, %r1 | | %l1 %d1 %d2 %r1
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4},
    {%r5,%r6}, {%f1,%f2,%f3,%f4}
    | %f1 %f2 %f3 %f4 | %r1 %r2 %r3 %r4 %r5 %r6 %f1 %f2 %f3 %f4
ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r1, %r2}, [%r3] | %r1 %r2 | %r3
stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r3], {%r1, %r2} | | %r3 %r1 %r2
movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2 | %r1 | %r2
wgmma.fence.sync.aligned                   | |
wgmma.commit_group.sync.aligned            | |
wgmma.wait_group.sync.aligned 0            | |
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1,%f2,%f3,%f4}, %l1, %l2, 0, 1, 1, 0, 0
    | %f1 %f2 %f3 %f4 | %l1 %l2
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1,%f2,%f3,%f4}, %l1, %l2, 1, 1, 1, 0, 0
    | %f1 %f2 %f3 %f4 | %l1 %l2 %f1 %f2 %f3 %f4
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, %l2,
    %p1, 1, 1, 0
    | %f1 %f2 %f3 %f4 | %r1 %r2 %r3 %r4 %l2 %p1 %f1 %f2 %f3 %f4
wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%f1,%f2,%f3,%f4}, %l1, %l2, %r1, 0, 0, 1,
    1, 0, 0
    | %f1 %f2 %f3 %f4 | %l1 %l2 %r1
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 128 | | %r1
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 128 | | %r1
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned | |
tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r3] | %r1 %r2 | %r3
tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {%r1, %r2}, [%r3], 4 | %r1 %r2 | %r3
tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%f1, %f2}, %f3, [%r3] | %f1 %f2 %f3 | %r3
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r3], {%r1, %r2} | | %r3 %r1 %r2
tcgen05.wait::ld.sync.aligned              | |
tcgen05.fence::before_thread_sync          | |
tcgen05.cp.cta_group::1.128x256b [%r1], %l1 | | %r1 %l1
tcgen05.shift.cta_group::1.down [%r1]      | | %r1
tcgen05.mma.cta_group::1.kind::f16 [%r1], %l1, %l2, %r2, %p1 | | %r1 %l1 %l2 %r2 %p1
tcgen05.mma.cta_group::1.kind::f16 [%r1], [%r3], %l2, %r2, {%r4, %r5, %r6, %r7}, %p1
    | | %r1 %r3 %l2 %r2 %r4 %r5 %r6 %r7 %p1
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1] | | %r1
alloca.u64 %l1, %l2, 16                    | %l1 | %l2
stacksave.u64 %l1                          | %l1 |
stackrestore.u64 %l1                       | | %l1
vadd.u32.u32.u32 %r1.b0, %r2.h1, %r3.b2, %r4 | %r1 | %r2 %r3 %r4
vabsdiff4.u32.u32.u32.add %r1, %r2, %r3, %r4 | %r1 | %r2 %r3 %r4
vset.s32.u32.lt %r1, %r2, %r3              | %r1 | %r2 %r3
spcompress.b8.b2.sp::2:4.x1 {%r1}, {%r2}, {%r3, %r4}, %r5 | %r1 %r2 | %r3 %r4 %r5
spdecompress.b8.b2.sp::2:4.x2 {%r1, %r2}, {%r3}, {%r4} | %r1 %r2 | %r3 %r4
setmaxnreg.inc.sync.aligned.u32 232        | |
nanosleep.u32 %r1                          | | %r1
pmevent 1                                  | |
brkpt                                      | |
trap                                       | |
exit                                       | |
ret                                        | |
"""


def _cases(text: str) -> list[tuple[str, list[str], list[str]]]:
    """One row a case; a row that begins with blanks continues the one above."""
    rows = text.replace("\n    ", " ").strip().splitlines()
    parts = [row.rsplit("|", 2) for row in rows]
    return [(text.strip(), writes.split(), reads.split()) for text, writes, reads in parts]


@pytest.mark.parametrize(("instruction", "writes", "reads"), _cases(CASES))
def test_registers(instruction: str, writes: list[str], reads: list[str]) -> None:
    (found,) = parse(f"{HEADER}{instruction};\n}}").entries[0].instructions
    assert [register.name for register in found.writes] == writes
    assert [register.name for register in found.reads] == reads
    assert found.opcode.text == instruction.split()[0]


def test_every_base_opcode_has_a_case() -> None:
    tried = {text.split()[0].split(".")[0] for text, _, _ in _cases(CASES)}
    # tested elsewhere or of the same kind as one that is
    transfers = {"bra", "brx", "call"}
    like_cos = {"cos", "lg2", "rsqrt", "sin", "sqrt"}
    like_and = {"and", "cnot", "mad24", "min", "mul24", "neg", "or", "shl", "shr", "sub", "xor"}
    video = {base for base in BASES if base.startswith("v") and base != "vote"}
    assert BASES - tried == (transfers | like_cos | like_and | video) - tried


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ("frobnicate.b32 %r1, %r2", "unknown opcode frobnicate"),
        ("mbarrier.frob.b64 [%r1]", "unknown operation frob of mbarrier"),
        ("tcgen05", "unknown operation (none) of tcgen05"),
        ("add..s32 %r1, %r2, %r3", "an empty modifier"),
        ("add.s32 5, %r2, %r3", "add cannot write to 5"),
        ("ld.global.b32 [%l1], %r1", "ld cannot write to [%l1]"),
        ("mov.b64 {%r1, 3}, %l1", "mov cannot write to {%r1, 3}"),
        ("add.s32", "add needs a destination"),
        ("mbarrier.try_wait.parity.shared.b64 %p1, %r1", "mbarrier.try_wait without an address"),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1}, %l1, %l2", "without scale-d"),
    ],
)
def test_refused(instruction: str, message: str) -> None:
    with pytest.raises(PtxError) as caught:
        parse(f"{HEADER}{instruction};\n}}")
    assert message in caught.value.message
    assert caught.value.line == HEADER.count("\n") + 1
    assert instruction in caught.value.text
