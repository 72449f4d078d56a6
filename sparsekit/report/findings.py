"""Findings for people, for GitHub's annotations and as SARIF."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsekit.codegen.finding import RULES, Finding
from sparsekit.digest import sha256_of
from sparsekit.report.document import Document, Table
from sparsekit.version import VERSION

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_COLUMNS = ("", "entry", "what")


def findings_document(findings: Sequence[Finding], title: str) -> Document:
    rows = [(f.level, str(f.name), f.message) for f in findings]
    data = {"findings": [_data(f) for f in findings]}
    return Document(data, (Table(title, _COLUMNS, rows),) if rows else ())


def _data(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "level": finding.level,
        **asdict(finding.name),
        "message": finding.message,
        "source": finding.source,
    }


def github_annotations(findings: Iterable[Finding], root: Path) -> list[str]:
    """Workflow commands; file names are relative to `root` where they lie below it."""
    lines = []
    for finding in findings:
        place = f"file={_property(_relative(finding.source, root))}," if finding.source else ""
        title = _property(f"sparsekit {finding.rule}")
        message = _escaped(f"{finding.name}: {finding.message}")
        lines.append(f"::{finding.level} {place}title={title}::{message}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _relative(file: str, root: Path) -> str:
    path = Path(file)
    return str(path.relative_to(root)) if path.is_relative_to(root) else file


def sarif(findings: Sequence[Finding], root: Path) -> dict[str, Any]:
    """A SARIF 2.1.0 log with one run. Source: OASIS SARIF 2.1.0, sections 3.13 to 3.28."""
    rules = [
        {"id": rule, "shortDescription": {"text": about}}
        for rule, about in RULES.items()
        if any(f.rule == rule for f in findings)
    ]
    driver = {
        "name": "sparsekit",
        "semanticVersion": VERSION,
        "rules": rules,
    }
    results = [_result(f, root) for f in findings]
    return {
        "$schema": _SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _result(finding: Finding, root: Path) -> dict[str, Any]:
    identity = sha256_of(f"{finding.rule} {finding.name}".encode())
    location = {
        "physicalLocation": {
            "artifactLocation": {"uri": _relative(finding.source, root)},
            "region": {"startLine": 1},
        },
        "logicalLocations": [{"name": finding.name.entry, "kind": "function"}],
    }
    return {
        "ruleId": finding.rule,
        "level": finding.level,
        "message": {"text": f"{finding.name}: {finding.message}"},
        "locations": [location] if finding.source else [],
        "partialFingerprints": {"entry/v1": identity},
    }
