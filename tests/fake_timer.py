"""A device for timing tests: it takes as long as it is told, and writes down what was done."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparsekit.measure.timer import NotCapturable


@dataclass
class FakeTimer:
    """A device on which a call takes as long as it says, and that writes down what was done."""

    resolution_s: float = 5e-7
    free: int = 1 << 40
    log: list[str] = field(default_factory=list)
    clock_s: float = 0.0
    in_window: bool = False

    def elapsed_s(self, work, before=None):
        if before:
            before()
        start, self.in_window = self.clock_s, True
        work()
        self.in_window = False
        return self.clock_s - start

    def recorded(self, calls, name):
        if "uncapturable" in name:
            raise NotCapturable(f"{name} cannot be captured")
        self.log.append(f"graph of {len(calls)}")
        return lambda: [call() for call in calls]

    def flusher(self):
        def flush():
            assert not self.in_window
            self.log.append("flush")

        return flush

    def free_bytes(self):
        return self.free
