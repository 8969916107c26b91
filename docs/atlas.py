"""Draw the atlas: `python docs/atlas.py` writes the pages of docs/atlas/ from its store and from sweeps/papers/atlas.toml.

The pictures are those of `depthrate report --figures`, the rates those of `depthrate fit`, the numbers those of
`depthrate query`: nothing is trained, and torch is not needed. `python docs/atlas.py KEY ...` draws only the pictures of these
figures anew; the pages are written whole.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app
from depthrate.sweeps.atlas import AtlasFigure, atlas_figures
from depthrate.sweeps.load import load_sweep
from depthrate.tasks.citations import PAPERS

FOLDER = Path(__file__).parent / "atlas"
STORE = FOLDER / "store"
IMAGES = FOLDER / "images"
FIRST_PAGE = "../index.md"
"""Of the site: it shows all figures too."""
_BEHIND_NUMBER = re.compile(r"figure-\d+-(.*)\.svg")


def call(*arguments: str) -> str:
    """Return what a command prints."""
    result = CliRunner().invoke(app, [*arguments, "--store", str(STORE)], catch_exceptions=False)
    assert result.exit_code == 0, f"depthrate {' '.join(arguments)}: {result.output}"
    return result.stdout


def draw_pictures(figure: AtlasFigure) -> None:
    """Write a figure's pictures for light and for dark pages.

    Raises:
        ValueError: the report has no such picture.
    """
    for old in IMAGES.glob(f"{figure.key}--*.svg"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for ending, dark in (("", []), ("-dark", ["--dark"])):
            drawn = Path(folder) / f"figures{ending}"
            call("report", _name(figure), "--figures", str(drawn), "-o", str(Path(folder) / "page.html"), *dark)
            names = {
                _slug(path): path for path in sorted(drawn.glob("*.svg"), reverse=True)
            }  # the first of a name counts
            for picture in figure.pictures:
                found = sorted(slug for slug in names if slug.startswith(picture))
                if not found:
                    raise ValueError(f"{figure.key}: no picture begins with {picture!r}; there are {', '.join(names)}")
                shutil.copy(names[found[0]], IMAGES / f"{figure.key}--{found[0]}{ending}.svg")


def section(figure: AtlasFigure) -> str:
    """Return what a page says of a figure."""
    lines = [
        f"## {figure.figure}",
        "",
        f"`{figure.key}`: {figure.claim}",
        "",
        f"**{_capital(figure.verdict)}.** {figure.why}",
    ]
    if not figure.run:
        at = f" At the paper's size: `{figure.sweep}`." if figure.sweep else ""
        lines[-1] += at
        return "\n".join([*lines, ""])
    size = figure.size or "the paper's own size"
    if figure.printed:
        lines += ["", f"**Printed:** {figure.printed}"]
    lines += ["", f"`depthrate run {figure.run}`: {size}; {_cost(figure)}.", ""]
    for path in sorted(IMAGES.glob(f"{figure.key}--*.svg")):
        if not path.stem.endswith("-dark"):
            words = path.stem.partition("--")[2].replace("-", " ")
            lines += [
                "<picture>",
                f'  <source media="(prefers-color-scheme: dark)" srcset="images/{path.stem}-dark.svg">',
                f'  <img alt="{figure.figure}: {words}" src="images/{path.name}" width="520">',
                "</picture>",
                "",
            ]
    lines += [*_fits(figure), *_answer(figure)]
    return "\n".join(lines)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the content of each page."""
    figures = atlas_figures()
    head = [
        "# Atlas of the four papers",
        "",
        "Every figure and table of the papers that depthrate reproduces: what it shows, what was run here, and whether that",
        "agrees with the print. `depthrate atlas` prints this table, `depthrate run atlas/FIGURE` runs a row again. Results",
        "lie in `docs/atlas/store`: `depthrate query --store docs/atlas/store --sweep NAME 'select ...'` asks them, and",
        "`python docs/atlas.py` draws every picture again without training. Machine: 2 cores of an AMD EPYC, no GPU.",
        "",
        _all_figures(figures),
        "```{toctree}",
        ":maxdepth: 1",
        "",
        *(_page(paper).removesuffix(".md") for paper in PAPERS),
        "```",
        "",
    ]
    yield "index.md", "\n".join(head)
    for paper, title in PAPERS.items():
        told = [section(figure) for figure in figures if figure.paper == paper]
        yield (
            _page(paper),
            "\n".join([f"# {paper}: {title}", "", "From `python docs/atlas.py`. [All figures](index.md)", "", *told]),
        )
    first = (FOLDER / FIRST_PAGE).read_text()
    before, begin, behind = first.partition("<!-- the atlas's figures -->\n")
    assert begin, f"{FIRST_PAGE} has no place for the atlas's figures"
    yield FIRST_PAGE, f"{before}{begin}{_all_figures(figures, folder='atlas/')}{behind[behind.index('```{toctree}') :]}"


def _all_figures(figures: Sequence[AtlasFigure], folder: str = "") -> str:
    return _table(
        ["figure", "of the paper", "verdict", "what was run"],
        [
            [f"[`{f.key}`]({folder}{_page(f.paper)}#{_anchor(f.figure)})", f"{f.paper}, {f.figure}", f.verdict, _ran(f)]
            for f in figures
        ],
    )


def _ran(figure: AtlasFigure) -> str:
    return f"`{figure.run.removeprefix('papers/')}`" if figure.run else "nothing"


def _page(paper: str) -> str:
    return f"{paper.lower()}.md"


def _name(figure: AtlasFigure) -> str:
    return load_sweep(figure.run).name


def _slug(path: Path) -> str:
    found = _BEHIND_NUMBER.fullmatch(path.name)
    assert found is not None, path
    return found[1]


def _cost(figure: AtlasFigure) -> str:
    (state,) = json.loads(call("status", _name(figure), "--json"))
    return f"{state['ok'] + state['diverged']} trials, {_short(state['trial_hours'])} hours of one process on a busy machine"


def _fits(figure: AtlasFigure) -> list[str]:
    if not load_sweep(figure.run).fit:
        return []
    fits = [
        fit for fit in json.loads(call("fit", _name(figure), "--json")) if fit["model"] == "power" and fit["by"] == "{}"
    ]
    rows = [
        [
            fit["metric"],
            fit["x"],
            _digits(fit["exponent"]),
            f"{_digits(fit['ci_low'])} to {_digits(fit['ci_high'])}",
            f"{fit['n_unconverged']} of {fit['n_trials']}",
        ]
        for fit in fits
    ]
    return [_table(["metric", "over", "exponent", "95 % interval", "unconverged"], rows)] if rows else []


def _answer(figure: AtlasFigure) -> list[str]:
    if not figure.query:
        return []
    rows: list[dict[str, Any]] = json.loads(call("query", figure.query, "--sweep", _name(figure), "--format", "json"))
    return [_table(list(rows[0]), [[_short(value) for value in row.values()] for row in rows])]


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if math.isfinite(value) else str(value)
    return str(value)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows)]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    asked = sys.argv[1:]
    IMAGES.mkdir(exist_ok=True)
    for each in atlas_figures():
        if each.run and (not asked or each.key in asked):
            draw_pictures(each)
    for page, content in pages():
        (FOLDER / page).write_text(content, encoding="utf-8")
