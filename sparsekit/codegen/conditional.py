"""What the registers hold while a block runs, with writes under a condition kept apart.

While its predicate stands, what was written under a condition is what an instruction under the same
condition reads, and what one under the opposite condition does not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ALL_PREDICATES = "PR"


class Values:
    """Sets of origins, as bits of an integer, by register."""

    def __init__(self, entering: Mapping[str, int]) -> None:
        self._always = dict(entering)
        self._under: dict[str, dict[str, int]] = {}

    def read(self, names: Sequence[str], guard: str) -> int:
        """The origins of the registers together, for an instruction under the condition."""
        found = 0
        if not self._under:
            for name in names:
                found |= self._always.get(name, 0)
            return found
        for name in names:
            found |= self._one(name, guard)
        return found

    def _one(self, name: str, guard: str) -> int:
        under = self._under.get(name)
        if under is None:
            return self._always.get(name, 0)
        if guard in under:
            return under[guard]
        opposite = _opposite(guard) if guard else ""
        found = 0
        for condition, origins in under.items():
            if condition != opposite:
                found |= origins
        if not any(_opposite(condition) in under for condition in under):
            found |= self._always.get(name, 0)
        return found

    def write(self, name: str, origins: int, guard: str) -> None:
        if guard:
            self._under.setdefault(name, {})[guard] = origins
        else:
            self._under.pop(name, None)
            self._always[name] = origins

    def forget(self, predicates: Sequence[str]) -> None:
        """The predicates change: what was written under them may be there or not."""
        for name in list(self._under):
            guards = self._under[name]
            if ALL_PREDICATES in predicates or any(g.lstrip("@!") in predicates for g in guards):
                self._always[name] = self._one(name, "")
                del self._under[name]

    def leaving(self) -> Mapping[str, int]:
        """What is known at the block's end, where conditions are no longer told apart."""
        for name in self._under:
            self._always[name] = self._one(name, "")
        self._under = {}
        return self._always


def _opposite(guard: str) -> str:
    return guard.replace("@!", "@") if guard.startswith("@!") else guard.replace("@", "@!")
