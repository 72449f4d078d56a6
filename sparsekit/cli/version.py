"""`sparsekit --version`."""

from __future__ import annotations

import platform

from sparsekit import settings as settings_module
from sparsekit.errors import SparsekitError
from sparsekit.toolchain.find import Toolchains
from sparsekit.version import VERSION


def version_text() -> str:
    """The version, Python's, and the toolchains at hand."""
    lines = [f"sparsekit {VERSION} (Python {platform.python_version()})"]
    try:
        toolchains = Toolchains(settings_module.load())
        lines += [
            f"  {t.id}  {t.site}" for lang in ("cuda", "triton") for t in toolchains.all(lang)
        ]
    except (SparsekitError, ModuleNotFoundError) as error:
        lines.append(f"  compilers: {error}")
    return "\n".join(lines)
