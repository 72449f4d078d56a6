"""Where code comes from: an argument's specialisation, or one part of a toolchain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparsekit.aot.assemble import triton_options
from sparsekit.aot.plan import Plan, Refusal, target_of
from sparsekit.cli.checks import Results
from sparsekit.cli.inspected import Inspected, Looker
from sparsekit.cli.native import requested_archs
from sparsekit.codegen import audit as audits
from sparsekit.codegen.audit import Audited, Specialisation, audit_findings, audited
from sparsekit.codegen.blame import Source, blame
from sparsekit.codegen.inspect import name_of
from sparsekit.codegen.ledger import Ledger, Name
from sparsekit.codegen.verdict import Comparison
from sparsekit.discover import Choice
from sparsekit.errors import CompileError, UsageError
from sparsekit.model.arch import Arch
from sparsekit.model.artifact import Artifact, CompileJob
from sparsekit.report.causes import audit_document, blame_document
from sparsekit.toolchain.tools import tool_release


def audit(
    results: Results, looker: Looker, references: Sequence[str], toolchains: Sequence[str],
    arch: str | None,
) -> None:  # fmt: skip
    """Every run-time argument of the Triton kernels, aligned and not."""
    choices = looker.session.catalog.resolve(references, toolchains)
    chosen = [c for c in choices if c.kernel.lang == "triton"]
    if not chosen:
        raise UsageError("--audit is for Triton kernels, whose code depends on argument values")
    found: list[Audited] = []
    for choice in chosen:
        for target in _targets(looker, choice, arch):
            for variant in choice.variants:
                found += _audited(looker, choice, variant, target)
    results.add(audit_document(found), audit_findings(found))


def _targets(looker: Looker, choice: Choice, arch: str | None) -> Iterator[Arch]:
    toolchain = looker.session.planner.toolchain(choice)
    for request in requested_archs(arch):
        target = target_of(choice.kernel, request, toolchain)
        if not isinstance(target, Refusal):
            yield target


def _audited(looker: Looker, choice: Choice, variant: str, target: Arch) -> list[Audited]:
    """The default instances of one variant on one target."""
    planner, found = looker.session.planner, []
    for instance in choice.kernel.instances:
        if not instance.default:
            continue
        listed = audits.specialisations(choice.kernel, instance)
        jobs = {planner.job(choice, variant, s.instance, target).key: s for s in listed}
        plan = Plan(tuple(planner.job(choice, variant, s.instance, target) for s in listed), ())
        seen = looker.look_at(plan)
        if seen.failed:
            raise CompileError(f"{seen.failed[0].job}: {seen.failed[0].error}")
        by_key = _by_key(seen)
        (base_key, _), *others = jobs.items()
        pairs: list[tuple[Specialisation, list[Ledger]]] = [
            (specialisation, by_key[key]) for key, specialisation in others
        ]
        found += audited(by_key[base_key], pairs)
    return found


def _by_key(seen: Inspected) -> dict[str, list[Ledger]]:
    """The ledgers of each artifact: they come in the order of the artifacts' entries."""
    found: dict[str, list[Ledger]] = {}
    ledgers = iter(seen.ledgers)
    for artifact, job in seen.built:
        found[job.key] = [next(ledgers) for _ in artifact.manifest.entries]
    return found


def blamed(
    results: Results, looker: Looker, comparisons: Sequence[Comparison],
    built: Sequence[tuple[Artifact, CompileJob]],
) -> None:  # fmt: skip
    """Each pair's PTX assembled by each other's ptxas."""
    origin: dict[Name, tuple[Artifact, CompileJob]] = {}
    for artifact, job in built:
        origin |= {name_of(artifact, r): (artifact, job) for r in artifact.manifest.entries}
    found = []
    for comparison in comparisons:
        if comparison.base is None:
            continue
        sides = []
        for ledger in (comparison.base, comparison.ours):
            if ledger.name not in origin or origin[ledger.name][1].kernel.lang != "triton":
                raise UsageError(
                    f"--blame compares what two Tritons build, and {ledger.name} is not of them"
                )
            artifact, job = origin[ledger.name]
            fusion = bool(job.compiler["options"]["enable_fp_fusion"])
            ptxas = job.toolchain.assembler_for(job.arch.compute_capability)
            sides.append(
                Source(
                    ledger, artifact.ptx(ledger.name.entry), job.toolchain,
                    triton_options(job.toolchain, fp_fusion=fusion), tool_release(ptxas),
                )
            )  # fmt: skip
        found.append(blame(sides[0], sides[1], looker.inspector.sass))
    results.add(blame_document(found))
