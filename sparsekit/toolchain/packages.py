"""Installed packages and the digest of what they consist of, read from their metadata.

Packages are never imported: two releases of one compiler cannot share a process.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from pathlib import Path

from sparsekit.digest import file_sha256

TRITON_BIN = "triton/backends/nvidia/bin"  # where its package keeps NVIDIA's tools
_EVERY = re.compile(".*")


@dataclass(frozen=True)
class Package:
    """An installed distribution. digests: sha256 (urlsafe base64) of its files, by path."""

    name: str
    version: str
    site: Path
    digests: tuple[tuple[str, str], ...]

    def file(self, path: str) -> Path:
        return self.site / path

    @property
    def fingerprint(self) -> str:
        """sha256 over the files' digests: the same for pip and uv, in any folder."""
        digest = hashlib.sha256(f"{self.name}=={self.version}\n".encode())
        for path, sha256 in self.digests or self._measured():
            digest.update(f"{path} {sha256}\n".encode())
        return digest.hexdigest()

    def recorded(self, deciding: re.Pattern[str]) -> tuple[tuple[Path, str], ...]:
        """Files whose paths match, with the sha256 (hexadecimal) that they were installed with."""
        return tuple(
            (self.file(path), base64.urlsafe_b64decode(sha256 + "=").hex())
            for path, sha256 in self.digests
            if deciding.fullmatch(path)
        )

    def damaged(self) -> list[Path]:
        """Files that are missing, or not what the metadata says of them."""
        known = self.recorded(_EVERY)
        return [file for file, sha256 in known if not file.is_file() or file_sha256(file) != sha256]

    def _measured(self) -> Iterable[tuple[str, str]]:
        """Digests of the files themselves, for an install whose metadata lists none (editable)."""
        root = self.site / self.name.replace("-", "_")
        for file in sorted(root.rglob("*")):
            if file.suffix != ".pyc" and file.is_file():
                yield str(file.relative_to(root)), file_sha256(file)


def find_package(name: str, path: list[str]) -> Package | None:
    """The package of that name in the folders of `path`, the first one; None when absent."""
    context = DistributionFinder.Context(name=name, path=path)
    for dist in MetadataPathFinder.find_distributions(context):
        site = Path(str(dist.locate_file("")))
        return Package(name, dist.version, site, tuple(sorted(_digests(dist))))
    return None


def _digests(dist: Distribution) -> Iterable[tuple[str, str]]:
    """Files with their digests, less what an installer adds or rewrites."""
    for line in (dist.read_text("RECORD") or "").splitlines():
        path, _, rest = line.partition(",")
        sha256 = rest.partition(",")[0].removeprefix("sha256=")
        if sha256 and not path.startswith("..") and ".dist-info/" not in path:
            yield path, sha256
