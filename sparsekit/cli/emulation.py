"""What `--device cpu` means for a command: which archs, which checks, and how to emulate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparsekit.cli.options import say
from sparsekit.cli.session import Session
from sparsekit.discover import Choice
from sparsekit.errors import GpuError, ToolchainError
from sparsekit.model.arch import Arch, parse_archs

if TYPE_CHECKING:
    from sparsekit.check.emulated_campaign import EmulationPlan

Target = tuple[Choice, Arch]


def emulation_plan(
    session: Session, *, build: bool, only_built: bool, lineinfo: bool, strict: bool,
    without: Sequence[str], seeds: int = 0,
) -> EmulationPlan:  # fmt: skip
    """only_built: nothing is built, and a case that needs what is not is skipped.

    Raises UsageError for a check that does not exist.
    """
    from sparsekit.check.emulated import schedules_of
    from sparsekit.check.emulated_campaign import EmulationPlan
    from sparsekit.emulator import chosen_checks

    checks = chosen_checks(strict=strict, without=without)
    return EmulationPlan(
        session.settings, build and not only_built, only_built, lineinfo, checks,
        schedules_of(seeds), session.planner.store_options,
    )  # fmt: skip


def emulated_targets(session: Session, choices: Sequence[Choice], arch: str | None) -> list[Target]:
    """The choices with the archs that `--arch` names; without it, those that are built.

    Raises ToolchainError when nothing has a target that was named, GpuError when nothing is built.
    """
    from sparsekit.check.emulated_campaign import built_targets, requested_targets

    if arch is None:
        targets = built_targets(choices, session.planner, session.store)
        if not targets:
            raise GpuError(
                "without a GPU, or with --device cpu, what is built is emulated, and nothing is: "
                "sparsekit build --arch all, or name an --arch; see sparsekit doctor for GPUs"
            )
        return targets
    targets, refused = requested_targets(choices, parse_archs(arch), session.planner)
    for refusal in refused:
        if refusal.named:
            say(refusal.reason)
    if not targets:
        raise ToolchainError(f"no kernel has a target that --arch {arch} means")
    return targets
