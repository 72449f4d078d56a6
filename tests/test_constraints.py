"""constraints.txt resolves with torch's CPU and CUDA wheels alike: it pins what CUDA's requires.

The table was taken from the wheels' own metadata; its newest torch is the newest there was.
"""

from __future__ import annotations

import json
import tomllib

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

TABLE = json.loads((ROOT / "tests/fixtures/torch_requirements.json").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SHARED = ("triton", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "cuda-bindings")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return dict(pairs)


def required_by(torch: str) -> dict[str, SpecifierSet]:
    """What the CUDA wheel of that torch requires of the packages that we need too."""
    wheel = TABLE["torch"][torch]
    toolkit = TABLE["cuda-toolkit"][wheel["cuda-toolkit"]]
    return {name: SpecifierSet({**wheel, **toolkit}[name]) for name in SHARED}


@pytest.mark.parametrize("package", SHARED)
def test_the_pins_are_what_the_pinned_torch_requires(package):
    assert pins()[package] in required_by(pins()["torch"])[package]


@pytest.mark.parametrize("torch", TABLE["torch"])
@pytest.mark.parametrize("package", SHARED)
def test_our_own_ranges_admit_what_every_torch_requires(torch, package):
    own = {Requirement(r).name: Requirement(r).specifier for r in PROJECT["dependencies"]}
    ours = own.get(package, SpecifierSet(">=13,<14"))  # cuda-bindings comes with cuda-python
    wanted = required_by(torch)[package]
    exact = [s.version.removesuffix(".*") for s in wanted if s.operator in ("==", "~=", ">=")]
    assert all(version in ours for version in exact)


def test_every_dependency_is_pinned():
    names = {Requirement(r).name for r in PROJECT["dependencies"]}
    names |= {Requirement(r).name for r in PROJECT["optional-dependencies"]["test"]}
    assert names <= set(pins())


def test_the_pins_are_within_our_own_ranges():
    for text in PROJECT["dependencies"]:
        requirement = Requirement(text)
        assert Version(pins()[requirement.name]) in requirement.specifier, text
