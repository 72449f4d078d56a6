"""Toolchains that are not here, but whose artifacts are: what a bundle told of them.

<store>/toolchains/ID.json     lang, version, fingerprint, overrides
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparsekit.errors import StoreError
from sparsekit.files import parse_json, replace_file
from sparsekit.model.kernel import LANG_PREFIXES, Lang
from sparsekit.model.toolchain import Toolchain

FOLDER = "toolchains"
_DIGITS = frozenset("0123456789abcdef")


def record_of(toolchain: Toolchain) -> dict[str, Any]:
    """What is kept of a toolchain, as plain data."""
    return {
        "lang": toolchain.lang, "version": toolchain.version,
        "fingerprint": toolchain.fingerprint, "overrides": dict(toolchain.overrides),
    }  # fmt: skip


def toolchain_of(record: Mapping[str, Any], site: Path) -> Toolchain:
    """The toolchain of a record; it cannot compile. Raises ValueError, KeyError or TypeError."""
    lang, version, fingerprint = record["lang"], record["version"], record["fingerprint"]
    overrides = {str(k): str(v) for k, v in dict(record["overrides"]).items()}
    plain = isinstance(version, str) and version.replace(".", "").replace("+", "").isalnum()
    digest = isinstance(fingerprint, str) and len(fingerprint) == 64
    if lang not in LANG_PREFIXES or not plain or not digest or set(fingerprint) - _DIGITS:
        raise ValueError(f"no toolchain: {lang!r} {version!r} {fingerprint!r}")
    return Toolchain(lang, version, site, fingerprint, overrides=overrides, compiles=False)


def imported(store: Path, lang: Lang) -> Iterable[Toolchain]:
    """The toolchains of that language that bundles told of."""
    for file in sorted((store / FOLDER).glob("*.json")):
        try:
            found = toolchain_of(parse_json(file.read_text()), file)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{file} does not read as a toolchain: {error}; remove it and import again"
            ) from error
        if found.lang == lang:
            yield found


def keep(store: Path, toolchain: Toolchain) -> None:
    """Tell the store of a toolchain that a bundle brought artifacts of."""
    folder = store / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    text = json.dumps(record_of(toolchain), indent=1) + "\n"
    replace_file(folder / f"{toolchain.id}.json", lambda file: file.write_text(text))
