"""A report as one HTML file: no script, no network, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from sparsekit.model.bench import BenchResult, Ceilings
from sparsekit.model.profile import ProfileResult
from sparsekit.report.bench import case_names
from sparsekit.report.document import Lines, Table, cell_text
from sparsekit.report.gpus import are_several, on_gpu_text
from sparsekit.report.plots import STYLE, colors, distribution, roofline
from sparsekit.report.roof import Point

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --faint: #d8dee4; --soft: #f6f8fa;
  LIGHT }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --faint: #30363d;
  --soft: #161b22; DARK } }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif;
  margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { border-bottom: 1px solid var(--faint); padding: .25rem .6rem; text-align: left;
  white-space: nowrap; }
td.right, th.right { text-align: right; } thead th { background: var(--soft); }
td:first-child, th:first-child { position: sticky; left: 0; }
td:first-child { background: var(--back); }
pre { background: var(--soft); overflow-x: auto; padding: .6rem; }
svg { display: block; height: auto; max-width: 45rem; width: 100%; }
"""
_PAGE_STYLE = _STYLE.replace("LIGHT", colors(True)).replace("DARK", colors(False)) + STYLE


def render_html(
    title: str, parts: Sequence[Table | Lines], results: Sequence[BenchResult],
    profiles: Sequence[ProfileResult], ceilings: Mapping[str, Ceilings],
) -> str:  # fmt: skip
    """The page: the tables and lines, then each case's samples, then for each GPU with ceilings the
    roofline of what was timed and, with bytes as counted, of what was profiled."""
    several = are_several([*(r.gpu for r in results), *(r.gpu for r in profiles)])
    body = [f"<h1>{escape(title)}</h1>"]
    body += [_table(p) if isinstance(p, Table) else _lines(p) for p in parts]
    named = list(zip(results, case_names(results), strict=True))
    plots = [
        (f"{r.op} {case}{on_gpu_text(r.gpu, several)}", distribution(r)) for r, case in named
    ]  # fmt: skip
    if any(plot for _, plot in plots):
        body.append("<h2>Samples</h2>")
        body += [f"<h3>{escape(name)}</h3>{p}" for name, p in plots if p]
    for gpu, own in ceilings.items():
        points = [
            Point(f"{case} {t.label}", r.flop / r.bytes, t.tflops, r.op)
            for r, case in named
            for t in r.timings
            if r.gpu == gpu and r.flop and r.bytes and t.tflops
        ]
        points += [
            Point(f"{r.case} {p[0]}, profiled", *p[1:], f"{r.op}, profiled")
            for r in profiles
            if r.gpu == gpu and (p := r.roofline_point)
        ]
        if figure := roofline(points, own):
            body.append(f"<h2>{escape(f'Roofline{on_gpu_text(gpu, several)}')}</h2>{figure}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_PAGE_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        made = (
            f'<{tag} class="right">{escape(cell)}</{tag}>'
            if heading in table.right
            else f"<{tag}>{escape(cell)}</{tag}>"
            for heading, cell in zip(table.columns, cells, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    title = f"<h2>{escape(table.title)}</h2>" if table.title else ""
    rows = "\n".join(row([cell_text(c) for c in cells], "td") for cells in table.rows)
    head = row(table.columns, "th")
    body = f"<thead>{head}</thead>\n<tbody>{rows}</tbody>"
    return f'{title}<div class="wide"><table>{body}</table></div>'


def _lines(part: Lines) -> str:
    title = f"<h2>{escape(part.title)}</h2>" if part.title else ""
    if part.code:
        return f"{title}<pre>{escape(chr(10).join(part.lines))}</pre>"
    return title + "".join(f"<p>{escape(line)}</p>" for line in part.lines)
