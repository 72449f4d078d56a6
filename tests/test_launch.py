"""Loading and launching against a stub driver: what reaches the driver, and what never does."""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import ROOT

STUB = ROOT / "tests" / "stub_driver"
KERNELS = ROOT / "tests" / "fixtures" / "kernels"
CUDA, TRITON = str(KERNELS / "scale_cu"), str(KERNELS / "scale_triton")
MAPPED = str(KERNELS / "scale_mapped")
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(
    COMPILER is None, reason="no C compiler to build the stub driver with"
)

CUDA_PARAMS = "0:8,8:8,16:8,24:4,28:4"
TRITON_PARAMS = "0:8,8:8,16:8,24:4,28:4,32:8,40:8"
MAPPED_PARAMS = "0:4,48:128,176:8,184:4"
SHARED_ATTRIBUTE = 8
FLOAT32_MAP, SWIZZLE_128B_MAP, L2_256B_MAP = 7, 3, 3  # of cuTensorMapEncodeTiled


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stub")
    command = [
        str(COMPILER),
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        "libcuda.so.1",
        str(STUB / "libcuda.c"),
    ]
    subprocess.run(command, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("launch-store")


class Driven:
    """Processes with the stub as their driver, and what it was called for."""

    def __init__(self, library: Path, store: Path, folder: Path) -> None:
        self._library, self._store, self._log = library, store, folder / "calls.jsonl"
        self.out, self.err = folder / "out.txt", folder / "err.txt"

    def environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        self._log.unlink(missing_ok=True)
        full = {
            **os.environ, "LD_LIBRARY_PATH": str(self._library), "PYTHONPATH": str(ROOT),
            "SPARSEKIT_CACHE_DIR": str(self._store), "STUB_LOG": str(self._log),
            "STUB_DEVICES": "9.0", "STUB_PARAMS": CUDA_PARAMS, **changes,
        }  # fmt: skip
        if "CUDA_VISIBLE_DEVICES" not in changes:  # which is of real devices
            full.pop("CUDA_VISIBLE_DEVICES", None)
        return full

    def calls(self) -> list[dict]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def driven(library, store, tmp_path) -> Driven:
    return Driven(library, store, tmp_path)


@pytest.fixture
def stubbed(driven):
    """Run a script with the stub as its driver; returns its answer and the driver's calls."""

    def run(*command: str, **env: str):
        done = subprocess.run(
            [sys.executable, *command], env=driven.environment(env), capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        return done, driven.calls()

    return run


@pytest.fixture(scope="session")
def caller(library):
    """A process that calls operators: see call_operator.py."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(STUB / "call_operator.py")]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def call(driven, caller):
    """Call the operator of a reference; returns its answer and the driver's calls."""

    def run(reference: str = CUDA + ":plain", env: dict[str, str] | None = None, **request):
        asked = {"reference": reference, "rows": 7, "columns": 64, "row_stride": 64, "offset": 0}
        line = {
            "request": {**asked, **request}, "env": driven.environment(env or {}),
            "out": str(driven.out), "err": str(driven.err),
        }  # fmt: skip
        print(json.dumps(line), file=caller.stdin, flush=True)
        ready, _, _ = select.select([caller.stdout], [], [], 120)
        assert ready, "it does not answer"
        assert caller.stdout.readline().strip() == "0", driven.err.read_text()
        return json.loads(driven.out.read_text().splitlines()[-1]), driven.calls()

    return run


def launches(calls: list[dict]) -> list[dict]:
    return [c for c in calls if c["call"] == "launch"]


def float_bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def test_everything_arrives(call):
    answer, calls = call(row_stride=72)
    (launched,) = launches(calls)
    assert launched["grid"] == [7, 1, 1]
    assert launched["block"] == [128, 1, 1]
    assert launched["shared"] == 512
    assert launched["stream"] == 0x5EED
    assert launched["attributes"] == 0
    assert launched["arguments"] == [answer["x"], answer["out"], 72, 64, float_bits(1.5)]
    assert answer["shape"] == [7, 64]
    assert [c["call"] for c in calls] == ["load", "kernel", "launch"]
    assert calls[0]["elf"]


def test_a_kernel_is_loaded_once(call):
    _, calls = call(calls=3)
    assert [c["call"] for c in calls] == ["load", "kernel", "launch", "launch", "launch"]


def test_a_tensor_map_is_made_of_the_call_s_tensor(call):
    answer, calls = call(MAPPED, {"STUB_PARAMS": MAPPED_PARAMS}, row_stride=72, calls=2)
    (made,) = [c for c in calls if c["call"] == "map"]  # the second call's is the same
    assert made == {
        "call": "map", "type": FLOAT32_MAP, "address": answer["x"], "swizzle": SWIZZLE_128B_MAP,
        "promotion": L2_256B_MAP, "others": [0, 0],
        # elements and bytes between them; the box, every element of it
        "axes": [[64, 0, 32, 1], [7, 288, 1, 1]],
    }  # fmt: skip
    for launched in launches(calls):
        columns, in_map, _, alpha = launched["arguments"]
        assert (columns, in_map, alpha) == (64, answer["x"], float_bits(1.5))


def test_a_map_that_the_driver_refuses_is_told(call):
    answer, _ = call(MAPPED, {"STUB_PARAMS": MAPPED_PARAMS, "STUB_MAP": "1"})
    assert "making a tensor map of" in answer["error"]
    assert "CUDA_ERROR_INVALID_VALUE" in answer["error"]


def test_triton_gets_its_two_scratch_pointers(call):
    answer, calls = call(TRITON, env={"STUB_PARAMS": TRITON_PARAMS})
    (launched,) = launches(calls)
    assert launched["block"] == [32, 1, 1]
    assert launched["arguments"] == [answer["x"], answer["out"], 64, 64, float_bits(1.5), 0, 0]


@pytest.mark.parametrize(
    "change", [{"row_stride": 65}, {"offset": 1}, {"columns": 63, "row_stride": 64}]
)
def test_a_broken_promise_takes_the_instance_that_assumes_nothing(call, change, stubbed):
    _, calls = call(TRITON, env={"STUB_PARAMS": TRITON_PARAMS}, **change)
    assert len(launches(calls)) == 1
    _, aligned = call(TRITON, env={"STUB_PARAMS": TRITON_PARAMS})
    assert len(launches(aligned)) == 1


def test_a_promise_that_no_instance_does_without_is_a_value_error(call, tmp_path):
    folder = shutil.copytree(KERNELS / "scale_cu", tmp_path / "scale_cu")
    spec = folder / "spec.py"
    spec.write_text(spec.read_text().replace('"x.stride(0)"', '"x.stride(0)", divisible_by=8'))
    answer, calls = call(f"{folder}:plain", row_stride=68)
    assert "ValueError" in answer["kinds"]
    assert "x.stride(0) to be a multiple of 8, found 68" in answer["error"]
    assert launches(calls) == []


def test_the_launcher_checks_promises_by_itself():
    """Selection has already looked; the launcher looks again at the very values."""
    from sparsekit.errors import ArgumentError
    from sparsekit.model.artifact import EntryRecord
    from sparsekit.model.kernel import Promise
    from sparsekit.runtime.launcher import check_promises

    record = EntryRecord(
        "go", "k.cubin", "", (), (Promise("x", 16),), 32, None, 0, 0, 8, 0, 0, 0, 128, "",
    )  # fmt: skip
    check_promises(record, {"x": 4096})
    with pytest.raises(ArgumentError, match="x must be a multiple of 16 as compiled, found 4104"):
        check_promises(record, {"x": 4104})


def test_a_parameter_table_that_is_not_the_manifest_s_is_refused(call):
    answer, calls = call(env={"STUB_PARAMS": "0:8,8:8,16:4,20:4,24:4"})
    assert "GpuError" in answer["kinds"]
    assert "parameters (offset, size)" in answer["error"]
    assert launches(calls) == []


def test_an_integer_that_does_not_fit_is_refused(call):
    from sparsekit.errors import ArgumentError
    from sparsekit.model.artifact import Param
    from sparsekit.runtime.launcher import _cell

    fits = _cell("go", Param("n", "i32", 0, 4), {"n": 2**31 - 1})
    assert fits.value == 2**31 - 1
    with pytest.raises(ArgumentError, match="does not fit its type i32"):
        _cell("go", Param("n", "i32", 0, 4), {"n": 2**31})


def test_a_float_that_does_not_fit_is_refused():
    from sparsekit.errors import ArgumentError, ArgumentTypeError
    from sparsekit.model.artifact import Param
    from sparsekit.runtime.launcher import _cell

    alpha = Param("alpha", "fp32", 0, 4)
    for value in (1e39, -1e39, 10**400):
        with pytest.raises(ArgumentError, match="does not fit its type fp32"):
            _cell("go", alpha, {"alpha": value})
    with pytest.raises(ArgumentTypeError, match="alpha is fp32, found '1'"):
        _cell("go", alpha, {"alpha": "1"})
    assert _cell("go", alpha, {"alpha": float("-inf")}).value == float("-inf")
    assert math.isnan(_cell("go", alpha, {"alpha": float("nan")}).value)
    assert _cell("go", alpha, {"alpha": 3.4028234e38}).value < float("inf")
    assert _cell("go", Param("beta", "fp64", 0, 8), {"beta": 1e39}).value == 1e39


def test_grids_that_no_gpu_takes_are_refused():
    from sparsekit.errors import GpuError
    from sparsekit.runtime.launcher import check_grid

    check_grid("go", (2**31 - 1, 65535, 65535))
    for grid in ((0, 1, 1), (1, 65536, 1), (1, 1, 65536), (2**31, 1, 1)):
        with pytest.raises(GpuError, match="outside"):
            check_grid("go", grid)


def test_a_refused_launch_raises(call):
    answer, _ = call(env={"STUB_LAUNCH": "1"})
    assert "GpuError" in answer["kinds"]
    assert "launching scale with grid (7, 1, 1)" in answer["error"]
    assert "CUDA_ERROR_INVALID_VALUE" in answer["error"]


def test_a_load_that_the_driver_refuses_says_what_to_do(call):
    answer, _ = call(env={"STUB_LOAD": "209"})
    assert "CUDA_ERROR_NO_BINARY_FOR_GPU" in answer["error"]
    assert "sparsekit build --arch native" in answer["error"]


def test_nothing_to_compute_launches_nothing(call):
    answer, calls = call(rows=0)
    assert answer["shape"] == [0, 64]
    assert launches(calls) == []


def test_more_than_48_kib_is_asked_for_first(call, tmp_path):
    folder = shutil.copytree(KERNELS / "scale_cu", tmp_path / "scale_cu")
    source = folder / "kernel.cu"
    source.write_text(source.read_text().replace("128 * sizeof(float)", "100 * 1024"))
    _, calls = call(f"{folder}:plain")
    (attribute,) = [c for c in calls if c["call"] == "attribute"]
    assert attribute == {
        "call": "attribute",
        "attribute": SHARED_ATTRIBUTE,
        "value": 102400,
        "device": 0,
    }


def test_static_shared_memory_counts_towards_the_48_kib(call, tmp_path):
    folder = shutil.copytree(KERNELS / "scale_cu", tmp_path / "scale_cu")
    source = folder / "kernel.cu"
    text = source.read_text().replace("128 * sizeof(float)", "20 * 1024")
    text = text.replace(
        "  factor[threadIdx.x] = alpha;",
        "  __shared__ float still[40 * 256];\n  still[threadIdx.x] = alpha;\n  __syncthreads();\n"
        "  factor[threadIdx.x] = still[threadIdx.x ^ 1] == alpha ? alpha : 0;",
    )
    source.write_text(text)
    _, calls = call(f"{folder}:plain")
    (attribute,) = [c for c in calls if c["call"] == "attribute"]
    assert attribute["value"] == 20 * 1024


def test_a_driver_that_fails_is_not_the_end_of_the_parameters(call):
    answer, calls = call(env={"STUB_PARAM_ERROR": "700"})
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in answer["error"]
    assert launches(calls) == []


def test_operators_share_what_they_load(call):
    _, calls = call(operators=2)
    assert [c["call"] for c in calls].count("load") == 1
    assert len(launches(calls)) == 2


def test_entries_of_a_cubin_share_its_library(library):
    script = (
        "from sparsekit.runtime.driver import Driver\n"
        "driver = Driver()\n"
        "for entry in ('a', 'b'):\n"
        "    driver.load(b'\\x7fELF', entry, 'an image')\n"
    )
    log = library / "shared.jsonl"
    env = {
        **os.environ, "LD_LIBRARY_PATH": str(library), "STUB_LOG": str(log), "STUB_DEVICES": "9.0",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    calls = [json.loads(line)["call"] for line in log.read_text().splitlines()]
    assert calls == ["load", "kernel", "kernel"]


def test_the_device_of_the_tensors_decides_the_arch(call, store):
    answer, calls = call(env={"STUB_DEVICES": "9.0 12.0"}, device=1)
    assert answer["entered"] == [1, -1]  # its device is current for the launch, and no longer
    (launched,) = launches(calls)
    assert launched["shared"] == 512
    archs = {
        json.loads(f.read_text())["identity"]["arch"] for f in store.glob("v1/*/*/manifest.json")
    }
    assert "sm_120" in archs


@pytest.mark.parametrize(
    ("visible", "devices", "archs"),
    [
        ("0,1", [1], {"sm_86"}), ("1,0", [1], {"sm_120"}), ("1,0", [0], {"sm_86"}),
        ("1,0", [1, 0], {"sm_120", "sm_86"}),
    ],
)  # fmt: skip
def test_the_target_follows_the_device_that_is_used(call, tmp_path, visible, devices, archs):
    env = {
        "STUB_DEVICES": "12.0 8.6", "CUDA_VISIBLE_DEVICES": visible,
        "SPARSEKIT_CACHE_DIR": str(tmp_path / "own"),
    }  # fmt: skip
    _, calls = call(env=env, devices=devices, calls=2)
    files = (tmp_path / "own").glob("v1/*/*/manifest.json")
    assert {json.loads(f.read_text())["identity"]["arch"] for f in files} == archs
    one = ["load", "kernel", "launch", "launch"]  # loaded once a device
    assert [c["call"] for c in calls] == one * len(devices)


def test_an_older_minor_serves_where_there_is_no_own_target(call, tmp_path):
    folder = shutil.copytree(KERNELS / "scale_cu", tmp_path / "scale_cu")
    spec = folder / "spec.py"
    spec.write_text(
        spec.read_text().replace("targets=PORTABLE_CUDA_TARGETS", 'targets=("sm_80", "sm_90")')
    )
    _, calls = call(f"{folder}:plain", env={"STUB_DEVICES": "8.9"})
    assert len(launches(calls)) == 1
    answer, _ = call(f"{folder}:plain", env={"STUB_DEVICES": "12.0"})
    assert "no target of sm_80 sm_90 runs on 12.0" in answer["error"]


def test_loadable_ptx_is_the_last_resort_and_said(call, driven, stubbed, tmp_path):
    folder = shutil.copytree(KERNELS / "scale_cu", tmp_path / "scale_cu")
    spec = folder / "spec.py"
    spec.write_text(spec.read_text().replace("targets=PORTABLE_CUDA_TARGETS", 'targets=("sm_80",)'))
    done, _ = stubbed("-m", "sparsekit", "build", f"{folder}:plain", "--arch", "8.0+PTX")
    assert done.returncode == 0, done.stderr
    _, calls = call(f"{folder}:plain", env={"STUB_DEVICES": "12.0"})
    assert "the driver compiles its PTX" in driven.err.read_text()
    assert not calls[0]["elf"]
    assert len(launches(calls)) == 1


def test_ptx_that_is_too_new_names_both_versions(call, stubbed, tmp_path):
    folder = shutil.copytree(KERNELS / "scale_cu", tmp_path / "scale_cu")
    spec = folder / "spec.py"
    spec.write_text(spec.read_text().replace("targets=PORTABLE_CUDA_TARGETS", 'targets=("sm_80",)'))
    stubbed("-m", "sparsekit", "build", f"{folder}:plain", "--arch", "8.0+PTX")
    env = {"STUB_DEVICES": "12.0", "STUB_LOAD": "222", "STUB_VERSION": "12040"}
    answer, _ = call(f"{folder}:plain", env=env)
    assert "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" in answer["error"]
    assert "PTX 9.0; the driver supports CUDA 12.4" in answer["error"]


def test_capture_needs_a_prepared_kernel(call):
    answer, calls = call(capturing=True)
    assert "call prepare() with the same arguments first" in answer["error"]
    assert launches(calls) == []
    answer, calls = call(capturing=True, prepare=True)
    assert len(launches(calls)) == 1
    assert [c["call"] for c in calls] == ["load", "kernel", "launch"]


def test_without_building_what_is_missing_is_named(call, tmp_path):
    env = {"SPARSEKIT_CACHE_DIR": str(tmp_path / "empty")}
    answer, _ = call(build=False, env=env)
    assert "MissingArtifactError" in answer["kinds"]
    assert f"sparsekit build {CUDA}:plain@nvrtc-" in answer["error"]


PROBE = ("-m", "sparsekit", "build", CUDA + ":plain", "-n", "--format", "json")


def native_archs(done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [j["arch"] for j in json.loads(done.stdout)["jobs"]]


def test_native_is_what_the_driver_says(stubbed, tmp_path):
    """nvidia-smi may say what it likes: a program of that name is never run."""
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 8.9\n")
    fake.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done, _ = stubbed(*PROBE, "--arch", "native", PATH=path, STUB_DEVICES="12.1")
    assert native_archs(done) == ["sm_121"]
    done, _ = stubbed(*PROBE, STUB_DEVICES="12.0 8.6", CUDA_VISIBLE_DEVICES="1,0")
    assert sorted(native_archs(done)) == ["sm_120", "sm_86"]
    done, _ = stubbed(*PROBE, STUB_DEVICES="12.0 8.6", CUDA_VISIBLE_DEVICES="1")
    assert native_archs(done) == ["sm_86"]


def test_a_driver_without_devices_builds_everything(stubbed):
    done, _ = stubbed(*PROBE, STUB_DEVICES="")
    assert len(native_archs(done)) == 9


def test_doctor_shows_the_devices(stubbed):
    done, _ = stubbed("-m", "sparsekit", "doctor", "--format", "json", STUB_DEVICES="12.0 8.6")
    found = {f["subject"]: f["found"] for f in json.loads(done.stdout)["findings"]}
    assert "compute capability 8.6" in found["GPU cuda:1"]
    assert found["driver"] == "supports CUDA 13.0"


@pytest.mark.parametrize(
    ("version", "told"),
    [("12040", "refuse cubins and PTX"), ("12999", "refuse cubins and PTX"), ("13000", None)],
)
def test_doctor_says_that_a_compiler_is_too_new_for_the_driver(stubbed, version, told):
    done, _ = stubbed("-m", "sparsekit", "doctor", "--format", "json", STUB_VERSION=version)
    findings = {f["subject"]: f for f in json.loads(done.stdout)["findings"]}
    found = [f for subject, f in findings.items() if subject.startswith("driver for nvrtc-")]
    if told is None:
        assert found == []
    else:
        (finding,) = found
        assert not finding["ok"]
        assert told in finding["found"]
        assert "install a driver for CUDA 13." in finding["advice"]


def test_a_driver_that_hangs_is_a_finding(library, monkeypatch):
    from sparsekit.runtime.probe import probe_devices

    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("STUB_HANG", "1")
    probe = probe_devices(limit_s=2.0)
    assert probe.devices == ()
    assert probe.problem == "the driver did not answer within 2 s"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo Segmentation is near; exit 0", "gave no answer that reads: 'Segmentation is near'"),
        ("exit 0", "gave no answer that reads"),
        ("echo '[1]'", "gave no answer that reads"),
        ("printf '\\377'", "gave no answer that reads"),
        (None, "asking the driver failed"),
    ],
)
def test_a_probe_never_raises(script, told, tmp_path, monkeypatch):
    from sparsekit.runtime import probe

    program = tmp_path / "python"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setattr(probe.sys, "executable", str(program))
    found = probe.probe_devices()
    assert found.devices == ()
    assert told in found.problem


def test_the_driver_is_asked_once_for_a_default_build(monkeypatch):
    from sparsekit.cli import native
    from sparsekit.model.call import Device
    from sparsekit.runtime.probe import Probe

    asked = []

    def probe_devices():
        asked.append(True)
        return Probe((Device((9, 0), 132, 232448),))

    monkeypatch.setattr(native, "probe_devices", probe_devices)
    assert [r.capability for r in native.requested_archs(None)] == [(9, 0)]
    assert len(asked) == 1


def test_building_with_a_driver_gives_the_same_bytes(stubbed, store, tmp_path):
    arguments = ("-m", "sparsekit", "build", TRITON, "--arch", "9.0", "--format", "json")
    shas = []
    for i, env in enumerate(
        ({"STUB_DEVICES": "9.0"}, {"STUB_DEVICES": ""}, {"LD_LIBRARY_PATH": ""})
    ):
        done, _ = stubbed(*arguments, SPARSEKIT_CACHE_DIR=str(tmp_path / str(i)), **env)
        assert done.returncode == 0, done.stderr
        shas.append([a["cubin_sha256"] for a in json.loads(done.stdout)["artifacts"]])
    assert shas[0] == shas[1] == shas[2]
