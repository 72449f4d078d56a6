"""`codegen.lock.json`: the facts that generated code must not fall behind.

    {"schema": 1, "references": [...], "arch": "...", "toolchains": [...],
     "entries": {NAME: {FACT: value}}, "accepted": [{entry, fact, from, to, reason, date}]}

NAME is `kernel:variant [instance] entry arch toolchain`. Only facts with a good direction are kept,
and the digests that tell whether code is the recorded one at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparsekit.codegen.facts import Fact, facts_of, is_worse, kind_of
from sparsekit.codegen.finding import Finding
from sparsekit.codegen.ledger import Ledger
from sparsekit.errors import UsageError
from sparsekit.files import parse_json, replace_file
from sparsekit.model.arch import ArchRequest, parse_arch

SCHEMA = 1
FILE_NAME = "codegen.lock.json"
_DIGEST = "instructions_sha256"
_WIDTHS = ("gather.", "load.", "store.")


@dataclass(frozen=True)
class Lock:
    """references, arch, toolchains: what was looked at, as typed. accepted: what was loosened."""

    references: tuple[str, ...]
    arch: str
    toolchains: tuple[str, ...]
    entries: Mapping[str, Mapping[str, Fact]]
    accepted: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Checked:
    """findings: what got worse. changed: entries whose code is no longer the recorded one, without
    getting worse. unknown: entries that the lock has not; missing: those of the lock that were
    looked for and not made."""

    findings: list[Finding] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def recorded(ledger: Ledger) -> dict[str, Fact]:
    """What a lock keeps of an entry."""
    facts = facts_of(ledger)
    kept = {n: v for n, v in facts.items() if v is not None and _is_kept(n)}
    return dict(sorted(kept.items()))


def _is_kept(name: str) -> bool:
    """Single loops are left out: their numbers shift when one appears or goes."""
    kind = kind_of(name)
    return name == _DIGEST or (kind.better is not None and not kind.form.startswith("loopN."))


def _worse(known: Mapping[str, Fact], now: Mapping[str, Fact]) -> list[str]:
    """What got worse, widths of loads that are not there any more among it."""
    lost = [n for n in known if n.startswith(_WIDTHS) and now.get(n) is None]
    return sorted({*lost, *(n for n, before in known.items() if is_worse(n, before, now.get(n)))})


def check_locked(
    lock: Lock, ledgers: Sequence[Ledger], archs: Iterable[ArchRequest], *, every_kernel: bool
) -> Checked:
    """Compare code with the lock; only what got worse is a finding.

    What was looked for: the archs, under the ledgers' toolchains, of every kernel or of theirs.
    """
    found = Checked()
    for ledger in ledgers:
        known, now = lock.entries.get(str(ledger.name)), facts_of(ledger)
        if known is None:
            found.unknown.append(str(ledger.name))
            continue
        worse = _worse(known, now)
        found.findings.extend(_finding(ledger, name, known, now) for name in worse)
        if not worse and now.get(_DIGEST) != known.get(_DIGEST):
            found.changed.append(str(ledger.name))
    seen = {str(ledger.name) for ledger in ledgers}
    toolchains = {ledger.name.toolchain for ledger in ledgers}
    kernels = {_kernel(name) for name in seen}
    capabilities = {request.capability for request in archs}
    for name in lock.entries:
        _, arch, toolchain = name.rsplit(" ", 2)
        asked = toolchain in toolchains and parse_arch(arch).compute_capability in capabilities
        if asked and name not in seen and (every_kernel or _kernel(name) in kernels):
            found.missing.append(name)
    return found


def _kernel(name: str) -> str:
    """`kernel:variant` of an entry's name."""
    return name.split(" ", 1)[0]


def _finding(
    ledger: Ledger, name: str, known: Mapping[str, Fact], now: Mapping[str, Fact]
) -> Finding:
    value = now.get(name)
    message = f"{name} was {known[name]}, is {'not there any more' if value is None else value}"
    return Finding("lock", "error", ledger.name, message, ledger.source)


def accept(lock: Lock, ledgers: Sequence[Ledger], reason: str, date: str) -> Lock:
    """The lock with what got worse as it is now, and the reason kept."""
    entries, accepted = dict(lock.entries), list(lock.accepted)
    for ledger in ledgers:
        name, now = str(ledger.name), facts_of(ledger)
        known = entries.get(name)
        if known is None:
            continue
        worse = _worse(known, now)
        for fact in worse:
            accepted.append(
                {"entry": name, "fact": fact, "from": known[fact], "to": now.get(fact),
                 "reason": reason, "date": date}
            )  # fmt: skip
        if worse:
            entries[name] = recorded(ledger)
    return replace(lock, entries=entries, accepted=tuple(accepted))


def read_lock(file: Path) -> Lock:
    """Raises UsageError for a file that is not there or does not read."""
    try:
        data = parse_json(file.read_text())
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}, expected {SCHEMA}")
        return Lock(
            tuple(data["references"]), data["arch"], tuple(data["toolchains"]), data["entries"],
            tuple(data["accepted"]),
        )  # fmt: skip
    except FileNotFoundError:
        raise UsageError(f"there is no {file}; sparsekit lock writes it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} does not read: {error}; sparsekit lock writes it anew") from error


def write_lock(lock: Lock, file: Path) -> None:
    """One line an entry, sorted, so that a diff shows what changed."""
    rows = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in sorted(lock.entries.items())
    )
    accepted = ",\n".join(f"  {json.dumps(item)}" for item in lock.accepted)
    text = (
        f'{{\n "schema": {SCHEMA},\n "references": {json.dumps(lock.references)},\n'
        f' "arch": {json.dumps(lock.arch)},\n "toolchains": {json.dumps(lock.toolchains)},\n'
        f' "entries": {{\n{rows}\n }},\n "accepted": [\n{accepted}\n ]\n}}\n'
    )
    replace_file(file, lambda temporary: temporary.write_text(text, encoding="utf-8"))
