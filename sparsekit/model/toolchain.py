"""A compiler as found: what it is, where it lies, and the digest of all that it consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sparsekit.model.arch import Arch, Capability, format_capability
from sparsekit.model.kernel import Lang

# The first release that has the target. Sources: release notes; tried on Triton 3.6 to 3.9.
_FIRST_WITH: dict[Lang, dict[Capability, tuple[int, ...]]] = {
    "cuda": {(10, 3): (12, 9), (10, 7): (13, 4), (11, 0): (13, 0), (12, 1): (12, 9)},
    "triton": {(10, 3): (3, 5), (10, 7): (3, 9), (11, 0): (3, 7), (12, 1): (3, 5)},
}
# The CUDA release whose ptxas has the target that Triton makes for it. Source: PTX ISA, "Release
# Notes".
FIRST_PTXAS: dict[Capability, str] = {
    (8, 0): "11.0", (8, 6): "11.1", (8, 7): "11.4", (8, 8): "13.0", (8, 9): "11.8", (9, 0): "12.0",
    (10, 0): "12.8", (10, 3): "12.9", (10, 7): "13.4", (11, 0): "13.0", (12, 0): "12.8",
    (12, 1): "12.9",
}  # fmt: skip
_FIRST_WITH_ONE_NEW_PTXAS = (3, 9)  # Triton that assembles sm_90 too with ptxas-blackwell
AssemblerRole = Literal["ptxas", "ptxas-blackwell"]
COMPILER_NAMES: dict[Lang, str] = {"cuda": "nvrtc", "triton": "triton"}


@dataclass(frozen=True)
class Toolchain:
    """One compiler.

    id: `nvrtc-13.0.88`, `triton-3.8.0`. site: the folder that holds its packages. fingerprint:
    sha256 over the digests of all its files. tools: files by role (`library`, `include`, `ptxas`,
    `ptxas-blackwell`); overrides: the environment that makes it use others than its own. recorded:
    the files that decide the bytes, with the sha256 that they were installed with; altered: those
    that were looked at and are no longer so, which counts in the fingerprint. compiles: whether it
    is here; else only artifacts that it made elsewhere are.
    """

    lang: Lang
    version: str
    site: Path
    fingerprint: str
    tools: dict[str, Path] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    recorded: tuple[tuple[Path, str], ...] = field(default=(), repr=False)
    altered: tuple[Path, ...] = ()
    compiles: bool = True

    @property
    def id(self) -> str:
        return f"{COMPILER_NAMES[self.lang]}-{self.version}"

    def assembler(self, arch: Arch) -> Path | None:
        """The ptxas that a Triton uses for the target; None for a compiler that needs none."""
        return self.assembler_for(arch.compute_capability) if self.lang == "triton" else None

    def assembler_for(self, capability: Capability) -> Path:
        """The ptxas that this Triton uses for targets of that capability."""
        return self.tools[assembler_role(self.version, capability)]

    @property
    def newest_assembler(self) -> Path:
        """The newest ptxas of this Triton: it knows every target and the newest PTX."""
        return self.tools["ptxas-blackwell"]

    def lacks(self, arch: Arch) -> str | None:
        """Why the toolchain has no such target, with the release that does; None when it has it."""
        first = _FIRST_WITH[self.lang].get(arch.compute_capability)
        if first is None or version_tuple(self.version) >= first:
            return None
        needed = ".".join(map(str, first))
        name = COMPILER_NAMES[self.lang]
        return (
            f"{self.id} ({self.tools.get('library', self.site)}) does not know "
            f"{format_capability(arch.compute_capability)}; {name} {needed} is the first that "
            f"does, and --toolchain {name}-VERSION takes another; see sparsekit toolchain list"
        )

    def caution(self, arch: Arch) -> str | None:
        """What is known against the toolchain for that target."""
        release = version_tuple(self.version)
        if self.altered:
            return (
                f"{self.id} is not as it was installed: {', '.join(map(str, self.altered))}; what "
                "it compiles has keys of its own. To have the release again, install it anew"
            )
        if self.lang == "cuda" and (13, 0) <= release < (13, 1) and arch.major >= 10:
            return (
                f"{self.id} is known to miscompile some loops for sm_100 and later; every PTX is "
                "checked for it, and NVRTC 13.1.80 or newer does not have the fault"
            )
        return None


def assembler_role(triton_version: str, capability: Capability) -> AssemblerRole:
    """Which of its two assemblers that Triton uses for targets of that capability."""
    has_one_for_both = version_tuple(triton_version) >= _FIRST_WITH_ONE_NEW_PTXAS
    return "ptxas-blackwell" if capability >= ((9, 0) if has_one_for_both else (10, 0)) else "ptxas"


def version_tuple(version: str) -> tuple[int, ...]:
    """`3.8.0+git1` as (3, 8, 0): the leading numbers, for comparing releases."""
    numbers: list[int] = []
    for part in version.split("+")[0].split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
