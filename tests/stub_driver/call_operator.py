"""Calls an operator on stand-in CUDA tensors, for tests/test_launch.py.

The tensors lie on the CPU; what the operator asks torch about CUDA is answered here. Each line of
standard input is JSON, {"request", "env", "out", "err"}: a call in a process of its own, forked
once torch is imported, which takes seconds; in that environment, printing to these files where
the tensors lie, or the error's type and text. The line that comes back is its exit code.
"""

import contextlib
import json
import os
import sys
from itertools import product

import torch

import sparsekit
from sparsekit.errors import SparsekitError
from sparsekit.operators import operator as operator_module
from sparsekit.runtime import tensors

STREAM = 0x5EED


class Device:
    """A stand-in for torch.device("cuda", index)."""

    type = "cuda"

    def __init__(self, index: int) -> None:
        self.index = index


def main(request: dict) -> None:
    device = Device(request.get("device", 0))
    operator_module._device = lambda op, arguments, kind: device
    tensors.initialise = lambda index: None
    entered: list[int] = []

    @contextlib.contextmanager
    def current(device):
        entered.append(device.index)
        yield
        entered.append(-1)

    tensors.current = current
    tensors.capturing = lambda: False
    tensors.stream_of = lambda device: STREAM
    tensors.empty = lambda shape, dtype, device: torch.empty(shape, dtype=tensors.dtype_of(dtype))
    x = torch.zeros(request["offset"] + request["rows"] * request["row_stride"])
    x = x.as_strided(
        (request["rows"], request["columns"]), (request["row_stride"], 1), request["offset"]
    )
    loaded = [
        sparsekit.load(request["reference"], build=request.get("build", True))
        for _ in range(request.get("operators", 1))
    ]
    scale = loaded[0]
    try:
        if request.get("prepare"):
            scale.prepare(x, alpha=1.5)
        tensors.capturing = lambda: request.get("capturing", False)
        for operator, index, _ in product(
            loaded, request.get("devices", [device.index]), range(request.get("calls", 1))
        ):
            device.index = index
            out = operator(x, alpha=1.5)
        places = {"x": x.data_ptr(), "out": out.data_ptr(), "shape": list(out.shape)}
        print(json.dumps({**places, "entered": entered}))
    except SparsekitError as error:
        kinds = [k.__name__ for k in type(error).__mro__]
        print(json.dumps({"error": str(error), "kinds": kinds}))


def become(asked: dict) -> None:
    """Be a process as if it had been started by itself."""
    os.environ.clear()
    os.environ.update(asked["env"])
    created = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, (path, flags) in enumerate(
        [(os.devnull, os.O_RDONLY), (asked["out"], created), (asked["err"], created)]
    ):
        os.dup2(os.open(path, flags), number)


def serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            become(asked)
            main(asked["request"])
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


serve()
