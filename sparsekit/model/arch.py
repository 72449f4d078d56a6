"""Architectures: what we compile for, and which devices run it.

An arch (`sm_90a`) is a compiler target; a compute capability (9.0) is a property of a device.
Sources: CUDA C++ Programming Guide, "Compute Capabilities" and "Family-Specific Features".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from sparsekit.errors import UsageError

Capability = tuple[int, int]

ALL_CAPABILITIES: tuple[Capability, ...] = (
    (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1),
)  # fmt: skip
TEGRA_CAPABILITIES = frozenset({(8, 7), (8, 8), (11, 0)})
# A cubin for a family ("f") runs on the members of its own family with an equal or higher minor.
FAMILIES: tuple[frozenset[Capability], ...] = (
    frozenset({(10, 0), (10, 3), (10, 7)}),
    frozenset({(11, 0)}),
    frozenset({(12, 0), (12, 1)}),
)
RENAMED: dict[Capability, str] = {
    (10, 1): "sm_101 was Thor's name before CUDA 13; it is sm_110 (11.0) now",
}

_KIB = 1024
# Dynamic plus static shared memory that one block may ask for (opt-in), per capability.
SHARED_BYTES_OPTIN: dict[Capability, int] = {
    (8, 0): 163 * _KIB, (8, 6): 99 * _KIB, (8, 7): 163 * _KIB, (8, 8): 99 * _KIB,
    (8, 9): 99 * _KIB, (9, 0): 227 * _KIB, (10, 0): 227 * _KIB, (10, 3): 227 * _KIB,
    (10, 7): 227 * _KIB, (11, 0): 227 * _KIB, (12, 0): 99 * _KIB, (12, 1): 99 * _KIB,
}  # fmt: skip


# Known, and targets of no kernel that ships, so that `all` leaves them out.
OTHER_CAPABILITIES = tuple(sorted(set(SHARED_BYTES_OPTIN) - set(ALL_CAPABILITIES)))


@dataclass(frozen=True, order=True)
class Arch:
    """One exact compiler target, `sm_90`, `sm_90a` or `sm_100f`."""

    major: int
    minor: int
    feature: str = ""

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}{self.feature}"

    @property
    def compute_capability(self) -> Capability:
        return (self.major, self.minor)

    @property
    def shared_bytes_optin(self) -> int:
        """Shared memory that one block may have, in bytes."""
        return SHARED_BYTES_OPTIN[self.compute_capability]

    def runs_on(self, device: Capability) -> bool:
        """Whether a cubin of this arch loads on a device of that compute capability."""
        own = self.compute_capability
        if own == device or self.feature == "a":
            return own == device
        if self.feature == "f":
            return any(own in f and device in f for f in FAMILIES) and device >= own
        if own in TEGRA_CAPABILITIES or device in TEGRA_CAPABILITIES:
            return False
        return own[0] == device[0] and own[1] <= device[1]

    def ptx_runs_on(self, device: Capability) -> bool:
        """Whether the driver can compile this arch's PTX for a device of that capability."""
        if self.feature:
            return self.runs_on(device)
        return self.compute_capability <= device


@dataclass(frozen=True)
class ArchRequest:
    """One item of `--arch`: a capability, or an exact target, with or without loadable PTX."""

    capability: Capability
    exact: Arch | None = None
    ptx: bool = False
    named: bool = True  # the target was typed, so a refusal counts; False from `all` and `native`

    def __str__(self) -> str:
        text = str(self.exact) if self.exact else format_capability(self.capability)
        return text + ("+PTX" if self.ptx else "")


def format_capability(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


_NAMED = re.compile(r"(?:sm_?)?(\d{1,2})\.?(\d)([a-z]?)", re.IGNORECASE)


@cache
def parse_arch(text: str) -> Arch:
    """An exact target from `sm_90a`, `sm90a`, `90a` or `9.0a`; raises UsageError by name."""
    match = _NAMED.fullmatch(text)
    if whole := _meant(text):
        raise UsageError(f"unknown arch {text!r}: did you mean {whole}?")
    if not match:
        hint = ""
        if text.lower().startswith("compute_"):
            hint = f"; for PTX write {text[len('compute_') :]}+PTX"
        raise UsageError(
            f"unknown arch {text!r}: expected sm_80 to sm_121, 9.0a, native or all{hint}"
        )
    capability, feature = (int(match[1]), int(match[2])), match[3].lower()
    if capability in RENAMED:
        raise UsageError(f"unknown arch {text!r}: {RENAMED[capability]}")
    if capability not in SHARED_BYTES_OPTIN:
        raise UsageError(
            f"unknown arch {text!r}: the nearest is {format_capability(_nearest(capability))}; all "
            f"are {_listed(ALL_CAPABILITIES)}, and {_listed(OTHER_CAPABILITIES)} for kernels that "
            "have them among their targets"
        )
    if feature not in features_of(capability):
        allowed = " ".join(str(Arch(*capability, f)) for f in features_of(capability))
        raise UsageError(f"unknown arch {text!r}: NVIDIA defines {allowed}")
    return Arch(*capability, feature)


def _meant(text: str) -> str | None:
    """`9.0a` for `9a`: a major number alone, which no arch is spelt as."""
    match = re.fullmatch(r"(?:sm_?)?(\d{1,2})([a-z]?)", text, re.IGNORECASE)
    if match is None or (int(match[1]), 0) not in ALL_CAPABILITIES:
        return None
    return f"{match[1]}.0{match[2].lower()}"


def _nearest(capability: Capability) -> Capability:
    """The known capability whose number is nearest, of those that `all` means."""
    number = 10 * capability[0] + capability[1]
    number *= 10 if number < 20 else 1  # `13` alone is a major number
    return min(ALL_CAPABILITIES, key=lambda known: abs(10 * known[0] + known[1] - number))


def _listed(capabilities: Iterable[Capability]) -> str:
    return " ".join(map(format_capability, capabilities))


def features_of(capability: Capability) -> tuple[str, ...]:
    """The suffixes that a capability has: none before 9.0, `a` there, `a` and `f` from 10.0."""
    if capability < (9, 0):
        return ("",)
    return ("", "a") if capability == (9, 0) else ("", "a", "f")


def parse_archs(
    text: str, native: Callable[[], Iterable[Capability]] = tuple
) -> tuple[ArchRequest, ...]:
    """The value of `--arch`: `native`, `all`, or targets separated by `;`, `,` or spaces.

    `+PTX` behind an item asks for its PTX to be loadable. `native()` is called only when asked for.
    Raises UsageError naming the item that is not an arch; no item is ever dropped.
    """
    requests: list[ArchRequest] = []
    for item in re.split(r"[;,\s]+", text.strip()):
        name, plus, tail = item.partition("+")
        if plus and tail.upper() != "PTX":
            raise UsageError(f"unknown arch {item!r}: only +PTX may follow a target")
        requests.extend(_expand(name, bool(plus), native))
    return tuple(dict.fromkeys(requests))


def _expand(
    name: str, ptx: bool, native: Callable[[], Iterable[Capability]]
) -> Iterable[ArchRequest]:
    if name.lower() == "all":
        return [ArchRequest(c, ptx=ptx, named=False) for c in ALL_CAPABILITIES]
    if name.lower() == "native":
        found = sorted(set(native()))
        if not found:
            raise UsageError("--arch native: the driver shows no GPU; name an arch or use all")
        return [ArchRequest(c, ptx=ptx, named=False) for c in found]
    arch = parse_arch(name)
    return [ArchRequest(arch.compute_capability, arch if arch.feature else None, ptx)]
