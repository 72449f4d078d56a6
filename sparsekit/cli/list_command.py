"""`sparsekit list`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sparsekit.cli.emit import emit
from sparsekit.cli.options import output_options, place_options
from sparsekit.cli.session import Session, open_session
from sparsekit.discover import Choice
from sparsekit.errors import EXIT_OK, SparsekitError
from sparsekit.kernel_folders import Broken
from sparsekit.model.arch import ALL_CAPABILITIES, ArchRequest
from sparsekit.model.kernel import LANG_PREFIXES
from sparsekit.model.op import Op
from sparsekit.report.build import broken_data, broken_tables
from sparsekit.report.document import Document, Lines, Table
from sparsekit.report.ops import op_data, op_parts


@click.command()
@click.argument("references", metavar="[REF]...", nargs=-1)
@place_options
@output_options
@click.pass_context
def command(
    ctx: click.Context, references: tuple[str, ...], kernel_dirs: tuple[Path, ...],
    cache_dir: Path | None, form: str, output: Path | None,
) -> None:  # fmt: skip
    """Kernels, ops, variants, archs, and what is built.

    With a REF, an op or a kernel: what the op takes and gives, what run --set takes, and the cases.

    Kernel folders that cannot be used are listed with the reason, and make the exit code 3; what
    stops a kernel from being compiled is listed too, with that reason's code.

    \b
    sparsekit list
    sparsekit list gated_pool
    sparsekit list --kernels ./mykernels --format json
    """
    session = open_session(cache_dir, kernel_dirs)
    catalog = session.catalog
    choices = catalog.resolve(references)
    listed = [_kernel(session, choice) for choice in choices]
    kernels = [kernel for kernel, _ in listed]
    if references:
        ops = list({choice.op.name: choice.op for choice in choices}.values())
        emit(_document(kernels, ops, (), in_full=True), form, output)
        broken: Sequence[Broken] = ()
    else:
        broken = catalog.broken
        emit(_document(kernels, list(catalog.ops.values()), broken), form, output)
    codes = [b.exit_code for b in broken] + [p.exit_code for _, p in listed if p]
    ctx.exit(max(codes, default=EXIT_OK))


def _kernel(session: Session, choice: Choice) -> tuple[dict[str, Any], SparsekitError | None]:
    """One kernel with, per variant, the archs whose default instances are all in the store; and
    what stops it from being compiled."""
    kernel = choice.kernel
    requests = [ArchRequest(c, named=False) for c in ALL_CAPABILITIES]
    built: dict[str, list[str]] = {name: [] for name in choice.variants}
    plan = session.planner.plan([choice], requests, every_instance=False)
    for name in choice.variants:
        compiled_as = kernel.compiled_as(name)
        jobs = [job for job in plan.jobs if job.variant.name == compiled_as]
        archs = dict.fromkeys(str(job.arch) for job in jobs)
        built[name] = [
            arch
            for arch in archs
            if all(session.store.has(j.key) for j in jobs if str(j.arch) == arch)
        ]
    problem = plan.unplanned[0].error if plan.unplanned else None
    data = {
        "kernel": kernel.name,
        "lang": kernel.lang,
        "op": kernel.op,
        "folder": str(kernel.folder),
        "targets": list(kernel.targets),
        "proven_on": None if kernel.proven_on is None else list(kernel.proven_on),
        "variants": [
            {
                "name": v.name, "same_bits_as": v.same_bits_as, "built": built[v.name],
            }
            for v in kernel.variants
            if v.name in choice.variants
        ],
        "instances": [{"name": i.name, "default": i.default} for i in kernel.instances],
        "problem": str(problem) if problem else None,
    }  # fmt: skip
    return data, problem


def _document(
    kernels: list[dict[str, Any]], ops: Sequence[Op], broken: Sequence[Broken], *,
    in_full: bool = False,
) -> Document:  # fmt: skip
    """in_full: the ops with all that they take."""
    columns = ("op", "kernel", "variant", "same bits as", "ran on", "default targets", "built")
    rows = [
        (
            k["op"], f"{LANG_PREFIXES[k['lang']]}/{k['kernel']}", v["name"],
            v["same_bits_as"], _ran_on(k["proven_on"]), " ".join(_plain(k["targets"])),
            " ".join(v["built"]) or "nothing",
        )
        for k in kernels
        for v in k["variants"]
    ]  # fmt: skip
    parts: list[Table | Lines] = [Table("", columns, rows)]
    parts += [Lines((f"{k['kernel']}: {k['problem']}",)) for k in kernels if k["problem"]]
    parts += broken_tables(broken)
    parts += [part for op in ops for part in op_parts(op)] if in_full else []
    data = {
        "schema": 1,
        "kernels": kernels,
        "ops": [
            op_data(op)
            if in_full
            else {"op": op.name, "summary": op.summary, "cases": [c.name for c in op.cases]}
            for op in ops
        ],
        "broken": broken_data(broken),
    }
    return Document(data, tuple(parts))


def _ran_on(proven_on: list[str] | None) -> str | None:
    """The compute capabilities; elsewhere it was emulated only."""
    return None if proven_on is None else " ".join(proven_on) or "nothing yet"


def _plain(targets: list[str]) -> list[str]:
    """The default target of each capability: the first that the spec gives for it."""
    first: dict[str, str] = {}
    for target in targets:
        first.setdefault(target.rstrip("af"), target)
    return list(first.values())
