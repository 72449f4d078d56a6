"""From a chosen kernel to the job that compiles it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from conftest import ROOT

from sparsekit.discover import Catalog
from sparsekit.model.arch import parse_arch
from sparsekit.operators.acquire import Acquirer
from sparsekit.runtime.select import Candidate


@dataclass
class Planner:
    """Plans nothing; a job is the folder that it was asked for."""

    asked: list[Path] = field(default_factory=list)

    def job(self, choice, variant, instance, arch, *, ptx=False):
        self.asked.append(choice.kernel.folder)
        return choice.kernel.folder


def test_kernels_of_one_name_in_two_folders_have_jobs_of_their_own(tmp_path):
    source = ROOT / "tests" / "fixtures" / "kernels" / "scale_cu"
    folders = [shutil.copytree(source, tmp_path / place / "scale_cu") for place in ("a", "b")]
    choices = Catalog().resolve([str(f) for f in folders])
    planner = Planner()
    acquirer = Acquirer(choices, planner, None, build=False, note=print)

    def job(choice):
        kernel = choice.kernel
        variant, instance = kernel.variants[0], kernel.instances[0]
        return acquirer._job(Candidate(kernel, variant, parse_arch("sm_90"), instance, ()))

    assert [job(c) for c in choices] == folders
    assert [job(c) for c in choices] == folders
    assert planner.asked == folders
