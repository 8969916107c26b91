"""Tables generated from the code's declarations. `conf.py` inserts them into the pages when the site is built.

A page holds `<!-- declared: NAME [ARGUMENT] -->`. `TABLES` has a function for each name that returns Markdown.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import yaml

import depthrate
from depthrate.orchestrator.analysis.columns import TABLES as MEASURED_TABLES
from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.executors.registry import executors as registered_executors
from depthrate.storage.attempts.live_curves import live_schema
from depthrate.storage.files import paths
from depthrate.storage.tables import schema
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.parameters import REQUIRED
from depthrate.tasks.registry import registered_tasks

ROOT = Path(__file__).parents[1]
FOLDERS = ("orchestrator", "tasks", "sweeps", "storage", "slurm")


def parameters(task: str) -> str:
    """A row a parameter of a task."""
    rows = [
        [f"`{p.name}`", p.doc, p.allowed, _default(p.default), "yes" if p.fusible else ""]
        for p in registered_tasks()[task].schema.values()
    ]
    return _table(["parameter", "meaning", "allowed", "default", "fusible"], rows)


def tasks() -> str:
    """A row a task."""
    return _table(["task", "version", "what"], [[f"`{t.name}`", t.version, t.doc] for t in registered_tasks().values()])


def measurements(task: str) -> str:
    """A row a measurement of a task, in the order readers see them."""
    rows = [
        [f"`{m.name}`", m.label, m.doc, f"`{MEASURED_TABLES[m.per]}`", m.kind, m.axis]
        for m in registered_tasks()[task].measurements
    ]
    return _table(["measurement", "label", "what, with its source", "table", "kind", "axis"], rows)


def fit_models() -> str:
    """A row a model of a curve."""
    rows = [[f"`{m.name}`", m.words, f"`{_plain(m.formula)}`", m.num_parameters] for m in MODELS.values()]
    return _table(["model", "in words", "y", "parameters"], rows)


def executors() -> str:
    """A row an executor: its options, and what goes on without its launch."""
    rows = [
        [f"`{e.name}`", ", ".join(f"`{option.flag}`" for option in e.options), f"`{e.detach}`" if e.detach else "no"]
        for e in registered_executors().values()
    ]
    return _table(["`--executor`", "options of its own", "`--detach`"], rows)


def command_summary() -> str:
    """A row a command."""
    rows = [[f"`depthrate {' '.join(path)}`", command.help] for path, command in _leaves(app)]
    return _table(["command", "what"], rows)


def columns(table: str) -> str:
    """A row a column of a table of the store."""
    known = builtin_columns()
    fields = {"attempts": schema.ATTEMPTS, "fits": schema.FITS, "live": live_schema(known), **known.schemas}[table]
    return _table(["column", "type"], [[f"`{field.name}`", _type(field.type)] for field in fields])


def datasets() -> str:
    """A row a data set that is read as its publisher gives it."""
    rows = [
        [
            f"`{name}`",
            d.num_classes,
            f"{d.num_samples:,}",
            "x".join(map(str, d.image_shape)) if d.image_shape else "text",
        ]
        for name, d in PUBLISHED.items()
    ]
    return _table(["data set", "classes", "training samples", "shape"], rows)


def modules() -> str:
    """A section a folder, a row a module: the first sentence of its docstring."""
    sections = []
    for folder in FOLDERS:
        for room in sorted({file.parent for file in (ROOT / folder).rglob("*.py")}):
            rows = [[f"`{file.name}`", _first_sentence(file)] for file in sorted(room.glob("*.py"))]
            rows = [row for row in rows if row[0] != "`__init__.py`"]
            title = f"## {room.relative_to(ROOT)}/\n\n{_first_sentence(room / '__init__.py')}\n"
            sections.append(title + ("\n" + _table(["module", "what"], rows) if rows else ""))
    return "\n".join(sections)


def papers() -> str:
    """A row a shipped sweep, with the comment its file begins with."""
    files = sorted((ROOT / "sweeps").rglob("*.yaml"))
    rows = [[f"`{file.relative_to(ROOT / 'sweeps').with_suffix('')}`", _comment(file), _axes(file)] for file in files]
    return _table(["sweep", "what", "grid"], rows)


def commands() -> str:
    """A section a command: what it does, its arguments and its options."""
    return "\n".join(_section(path, command) for path, command in _leaves(app))


def store_layout() -> str:
    """Every path of a store."""
    return f"```text\n{(paths.__doc__ or '').partition(chr(10) * 2)[2].strip()}\n```"


def public_names() -> str:
    """The signature and the docstring of every public name, functions first."""
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Exceptions": []}
    for name in depthrate.__all__:
        value = getattr(depthrate, name)
        is_class = isinstance(value, type)
        kinds[
            "Exceptions" if is_class and issubclass(value, Exception) else "Classes" if is_class else "Functions"
        ].append(name)
    return "\n".join(f"## {title}\n\n" + "\n".join(map(_documented, names)) for title, names in kinds.items())


TABLES: dict[str, Callable[..., str]] = {
    "parameters": parameters,
    "tasks": tasks,
    "measurements": measurements,
    "fit-models": fit_models,
    "executors": executors,
    "columns": columns,
    "datasets": datasets,
    "modules": modules,
    "papers": papers,
    "command-summary": command_summary,
    "commands": commands,
    "store-layout": store_layout,
    "public-names": public_names,
}


MARKER = re.compile(r"<!-- declared: ([\w-]+)(?: (\w+))? -->")


def expand(page: str) -> str:
    """Return a page with the generated table in place of each marker.

    Raises:
        KeyError: A marker names an unknown table.
    """
    return MARKER.sub(lambda match: TABLES[match[1]](*filter(None, [match[2]])).strip(), page)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines) + "\n"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _default(value: Any) -> str:
    if value is REQUIRED:
        return "required"
    return f"`{'null' if value is None else str(value).lower() if isinstance(value, bool) else value}`"


def _plain(formula: str) -> str:
    """A formula without TeX's braces: c e^(-a x)."""
    return re.sub(r"\^\{(.*?)\}", lambda found: f"^({found[1]})" if " " in found[1] else f"^{found[1]}", formula)


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_type(kind.value_type)}"
    return {"string": "text", "double": "float64", "float": "float32", "timestamp[us, tz=UTC]": "time (UTC)"}.get(
        str(kind), str(kind)
    )


def _first_sentence(file: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split())
    return re.split(r"(?<=\.) ", text)[0]


def _comment(file: Path) -> str:
    lines = [line for line in file.read_text().splitlines() if line.startswith("#")]
    return " ".join(line.lstrip("# ") for line in lines)


def _axes(file: Path) -> str:
    grid = yaml.safe_load(file.read_text()).get("grid", {})
    return "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in grid.items())


def _leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from _leaves(command.get_command(context, name), (*path, name))


def _section(path: tuple[str, ...], command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    words = ["depthrate", *path, *(a.name.upper() if a.required else f"[{a.name.upper()}]" for a in arguments)]
    rows = [[f"`{argument.name.upper()}`", argument.help or "", ""] for argument in arguments]
    for option in command.params:
        if option.param_type_name == "option":
            names = ", ".join(f"`{name}`" for name in option.opts)
            rows.append([names, option.help or "", _option_default(option)])
    table = _table(["argument or option", "meaning", "default"], rows) if rows else ""
    return f"## {' '.join(path)}\n\n`{' '.join(words)}`\n\n{command.help}\n\n{table}"


def _option_default(option: Any) -> str:
    default = option.get_default(click.Context(click.Command("")))
    return f"`{default}`" if isinstance(default, str | int | float | Path) and default is not False else ""


def _documented(name: str) -> str:
    """Return a public name as Markdown: signature, docstring, and of a class its public members."""
    value = getattr(depthrate, name)
    text = f"### {name}\n\n```text\n{name}{_signature(value)}\n```\n\n{_prose(value)}\n"
    if not isinstance(value, type) or issubclass(value, Exception):
        return text
    members = [(key, member) for key, member in vars(value).items() if not key.startswith("_")]
    members = [(key, member) for key, member in members if inspect.getdoc(member) != inspect.getdoc(type(member))]
    rows = [
        [f"`{key}{_signature(member)}`", _prose(member).partition("\n\n")[0]]
        for key, member in members
        if _prose(member)
    ]
    return text + ("\n" + _table(["member", "what"], rows) if rows else "")


def _signature(value: Any) -> str:
    """Return the signature of a function or a class as it is written, nothing for anything else."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, Exception)):
        return ""
    text = str(inspect.signature(value))
    return re.sub(
        r"'([^']*)'",
        lambda quoted: quoted[1],
        re.sub(r"\bself, |\(self\)", lambda m: "()" if m[0] == "(self)" else "", text),
    )


def _prose(value: Any) -> str:
    """Return a docstring as Markdown: its sections as lists."""
    lines = (inspect.getdoc(value) or "").split("\n")
    return "\n".join(
        re.sub(r"^    (?=\S)", "- ", line) + ("\n" if line in ("Raises:", "Returns:", "Yields:") else "")
        for line in lines
    )
