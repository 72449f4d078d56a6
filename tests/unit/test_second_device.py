"""Two GPUs where there is none: what is asked of torch, by tensors and clocks of the second one."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from sparsekit.discover import Catalog
from sparsekit.errors import ArgumentError
from sparsekit.measure.contender import CallableContender
from sparsekit.measure.timer import CudaTimer
from sparsekit.operators.operator import _device
from sparsekit.runtime.tensors import current, on_streams

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)
OP = Catalog().ops["gated_pool"]


class FakeCuda:
    """torch.cuda of two devices. log: what was done, and which device was current then."""

    def __init__(self) -> None:
        self.index, self.log = 0, []

    def done(self, what: str) -> None:
        self.log.append((what, self.index))

    @contextmanager
    def device(self, device):
        before, self.index = self.index, device.index
        try:
            yield
        finally:
            self.index = before

    def event(self, **_):
        self.done("event")
        return SimpleNamespace(
            record=lambda: self.done("record"), synchronize=lambda: self.done("wait"),
            elapsed_time=lambda other: 1.0,
        )  # fmt: skip

    @contextmanager
    def graph(self, graph):
        self.done("capture")
        yield

    def stream(self):
        self.done("stream")
        return SimpleNamespace(wait_stream=lambda other: None)


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    for name, value in {
        "device": fake.device, "Event": fake.event, "graph": fake.graph, "Stream": fake.stream,
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: fake.done("replay")),
        "_sleep": lambda cycles: fake.done("sleep"),
        "current_stream": lambda: SimpleNamespace(wait_stream=lambda other: None),
        "stream": lambda stream: fake.device(SimpleNamespace(index=fake.index)),
        "synchronize": lambda device: fake.log.append(("wait", device.index)),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    return fake


def tensor_on(device):
    return SimpleNamespace(device=device, is_cuda=True)


def arguments(kv, score, out=None):
    given = {"out": out} if out else {}
    return SimpleNamespace(inputs={"kv": kv, "score": score}, given=given)


def test_tensors_on_two_devices_are_an_error_before_anything_else():
    first, second = tensor_on(FIRST), tensor_on(SECOND)
    for mixed in (arguments(first, second), arguments(second, second, first)):
        with pytest.raises(ArgumentError, match=r"one device, found \w+ on cuda:\d, \w+ on cuda:"):
            _device(OP, mixed, "cuda")
    assert _device(OP, arguments(second, second), "cuda") == SECOND


def test_the_clock_of_the_second_device_leaves_the_current_one_alone(cuda):
    timer = CudaTimer(SECOND)
    assert timer.elapsed_s(lambda: cuda.done("work"), lambda: cuda.done("flush")) == 1e-3
    timer.recorded([lambda: cuda.done("work")], "it")()
    assert {what for what, _ in cuda.log} >= {"work", "flush", "record", "wait", "capture"}
    assert {index for what, index in cuda.log if what != "replay"} == {1}
    assert cuda.index == 0


def test_work_that_raises_gives_the_current_device_back(cuda):
    def fails():
        assert cuda.index == 1
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        CudaTimer(SECOND).elapsed_s(fails)
    with pytest.raises(RuntimeError, match="no"), current(SECOND):
        fails()
    assert cuda.index == 0


def test_streams_are_of_the_tensors_device(cuda):
    on_streams(SECOND, [lambda: cuda.done("work")] * 3)
    assert {index for _, index in cuda.log} == {1}
    assert cuda.index == 0


class TensorOfTheSecond(torch.Tensor):
    """A tensor on the CPU that says it lies elsewhere."""

    is_cuda = True
    device = SECOND


def test_a_callable_runs_on_the_device_of_its_tensors(cuda):
    def pool(kv, score, out_dtype):
        cuda.done("call")
        return kv

    kv = torch.zeros(2, 3, 4).as_subclass(TensorOfTheSecond)
    contender = CallableContender("py:peer:pool", OP, pool)
    contender.caller({"kv": kv, "score": kv, "out_dtype": "fp32"}, {})()
    assert cuda.log == [("call", 1)]
    assert cuda.index == 0
