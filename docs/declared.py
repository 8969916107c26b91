"""Reference pages and tables generated from the code's declarations when the site is built.

`PAGES` maps the name of each page below reference/generated/ to a function that returns its Markdown. A hand-written page
holds `<!-- declared: NAME -->` for a table of `TABLES`.
"""

import ast
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import click
import pyarrow as pa
import yaml

import depthrate
from depthrate.orchestrator.analysis.columns import TABLES as MEASURED_TABLES
from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.attempts.retry_policy import MAX_FAILURES_PER_PACK, RULES
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.executors.registry import executors as registered_executors
from depthrate.orchestrator.executors.slurm.outcomes import OUTCOME_RULES
from depthrate.orchestrator.sheet.fit_words import MODEL_WORDS
from depthrate.storage.attempts.live_curves import live_schema
from depthrate.storage.files import paths
from depthrate.storage.query.sql_checks import VIEWS
from depthrate.storage.tables import schema, states
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.json_schema import sweep_schema
from depthrate.tasks.citations import PAPERS
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.figure_request import FIGURE_KEYS
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.networks.builtin import ARCHITECTURES
from depthrate.tasks.parameters import REQUIRED
from depthrate.tasks.registry import registered_tasks

ROOT = Path(__file__).parents[1]
FOLDERS = ("orchestrator", "tasks", "sweeps", "storage", "slurm")


GENERATED = "reference/generated"
"""The folder of the generated pages, below docs/."""
NAVIGATION = {
    "Tutorials": ("tutorials/first-sweep", "tutorials/own-model"),
    "How-to guides": (
        "how-to/write-sweeps",
        "how-to/custom-tasks",
        "how-to/huggingface",
        "how-to/search",
        "how-to/clusters",
        "how-to/look",
        "how-to/analyse",
        "how-to/operate",
        "how-to/plugins",
    ),
    "Explanation": ("explanation/concepts", "explanation/store", "explanation/engines", "explanation/fits"),
    "Reference": (
        *(
            f"{GENERATED}/{name}"
            for name in ("commands", "python", "sweep-keys", "tasks", "metrics", "tables", "failures")
        ),
        *("reference/store-format", "reference/clusters"),
        "reference/changelog",
    ),
    "Gallery": (
        "atlas/index",
        f"{GENERATED}/shipped-sweeps",
        "gallery/progressive",
        "gallery/words",
        "gallery/infimum",
        "gallery/depth-width",
    ),
}
"""Caption -> its pages in the navigation of docs/index.md."""
FOR_DEVELOPERS = "---\norphan: true\nnosearch: true\n---\n\n"
"""Head of a page for developers, which is neither in the navigation nor in the search."""
NETWORKS = {
    "rn1": "L-RN1 of P1: residual blocks of one linear layer, LN(x + relu(W x + b)).",
    "rn2": "L-RN2 of P1: residual blocks of two linear layers.",
    "t11": "L-T11 of P1: causal transformer, one matrix each for scores, values and MLP, read out at the last position.",
    "t12": "L-T12 of P1: as t11, with two linear layers in the MLP.",
    "t21": "L-T21 of P1: as t11, with two matrices each for scores and values.",
    "t22": "L-T22 of P1: as t21, with two linear layers in the MLP.",
    "mlp": "`depth` linear layers with ReLU and biases, without LayerNorm, and the last layer.",
    "resnet20_mlp": "ResNet20 in its CIFAR form without augmentation, and an MLP of `depth` layers on its 64 features.",
    "resnet_dense": "Residual network of linear layers with BatchNorm (P3): h = relu(h + BN(W_2 relu(BN(W_1 h)))).",
    "resnet_conv": "Its convolutional form in `stages` (P3, Table I); measured are the last stage's blocks.",
}
"""Architecture of `collapse` -> description."""
DATA = """`digits` comes with depthrate (source and licence: `tasks/data/digits.txt`). The others are read below
`DEPTHRATE_DATA` as published, compressed or not: `mnist`, `fashion_mnist` and `kmnist` as IDX, `cifar10` and `cifar100` binary
or Python, `stl10` binary, `imdb` as the aclImdb archive. `cifar10_batch1` is the first training batch alone.
`samples_per_class` selects a balanced subset by `data_seed`, never by the trial's seed."""
GROUPS = {
    "Sweeps": ("sweeps.", "orchestrator.notebook.sweep"),
    "Results": ("storage.", "orchestrator.notebook.results", "orchestrator.notebook.comparison"),
    "Fits": ("tasks.fits.", "orchestrator.notebook.table_fit"),
    "Tasks": ("tasks.function_task", "tasks.interface", "tasks.figure_request"),
    "Metrics": ("tasks.",),
}
"""Group of public names -> beginnings of the modules that define them; the first group that matches counts."""


def commands_page() -> str:
    """The command line: every command with its arguments and options."""
    summary = [[f"[`depthrate {' '.join(path)}`](#{'-'.join(path)})", command.help] for path, command in _leaves(app)]
    sections = "\n".join(_section(path, command) for path, command in _leaves(app))
    return f"# Commands\n\n{_table(['command', 'effect'], summary)}\n{sections}"


def python_page() -> str:
    """The public names in groups, with signatures and docstrings."""
    groups: dict[str, list[str]] = {title: [] for title in GROUPS}
    for name in sorted(depthrate.__all__, key=str.lower):
        module = getattr(depthrate, name).__module__.removeprefix("depthrate.")
        groups[next(title for title, starts in GROUPS.items() if module.startswith(starts))].append(name)
    sections = [f"## {title}\n\n" + "\n".join(map(_documented, names)) for title, names in groups.items()]
    return "# Python API\n\nAll public names are imported from `depthrate`.\n\n" + "\n".join(sections)


def sweep_keys_page() -> str:
    """Every key of a sweep file, from its JSON schema."""
    contents = sweep_schema(registered_tasks())
    parts = {"Sweep": contents} | {
        name: part
        for name, part in contents["$defs"].items()
        if part.get("title") == name and "properties" in part  # not the parameters of tasks, nor enumerations
    }
    sections = []
    for name, part in parts.items():
        required = part.get("required", [])
        rows = [
            [
                f"`{key}`",
                value.get("description", ""),
                _json_type(value, contents["$defs"]),
                _json_default(value, key in required),
            ]
            for key, value in part["properties"].items()
        ]
        sections.append(
            f"## {name}\n\n{part.get('description', '')}\n\n{_table(['key', 'meaning', 'type', 'default'], rows)}"
        )
    kinds = [[f"`{kind}`", _names(needed), _names(more)] for kind, (needed, more) in FIGURE_KEYS.items()]
    figures = "## Keys of each kind of figure\n\n" + _table(["kind", "required", "optional"], kinds)
    intro = "The keys of a sweep file, and of its parts. `depthrate schema` prints the same as JSON schema for editors."
    return "\n".join([f"# Sweep keys\n\n{intro}\n", *sections, figures])


def tasks_page() -> str:
    """Every task with its parameters, the networks of `collapse`, and the data sets."""
    tasks = registered_tasks().values()
    rows = [[f"[`{t.name}`](#{t.name})", t.version, t.doc] for t in tasks]
    head = _table(["task", "version", "purpose"], rows)
    sections = [f"## {t.name}\n\n{t.doc}\n\n{_parameters(t)}" for t in tasks]
    networks = _table(["`arch`", "network"], [[f"`{name}`", NETWORKS[name]] for name in ARCHITECTURES])
    intro = "*Fusible* parameters may differ within a pack. `depthrate tasks NAME` prints the same."
    data = f"## Data sets\n\n{DATA}\n\n{_datasets()}"
    head = f"# Tasks and parameters\n\n{intro}\n\n{head}"
    return "\n".join([head, f"## Networks\n\n{networks}\n{_cited()}", *sections, data])


def metrics_page() -> str:
    """Every metric of every task, with its formula."""
    sections, formulas = [], tomllib.loads((Path(__file__).parent / "formulas.toml").read_text(encoding="utf-8"))
    for task in registered_tasks().values():
        rows = [
            [f"`{m.name}`", m.label, _math(formulas, m.name), m.doc, f"`{MEASURED_TABLES[m.per]}`", m.kind, m.axis]
            for m in task.measurements
        ]
        table = _table(["metric", "label", "formula", "definition", "table", "kind", "axis"], rows)
        sections.append(f"## Metrics of {task.name}\n\n{table}")
    intro = (
        "Every layer is measured in float64. Layer 0 is the network's input, in a transformer its embedding, and layer = depth "
        "the last feature. In formulas, $h_{ki}$ is the feature of sample $i$ of class $k$, $\\mu_k$ a class mean, $\\mu_G$ "
        "the mean of the class means, $\\Sigma_W$ the mean covariance within classes, $\\Sigma_B$ the covariance of the "
        "class means, $W$ the last layer's weight with rows $w_k$, $\\sigma_j$ a singular value, $K$ the number of classes, "
        "$N$ of samples, and $f$ the objective."
    )
    return "\n".join([f"# Metrics\n\n{intro}\n\n{_cited()}", *sections])


def _math(formulas: dict[str, str], name: str) -> str:
    """Return a metric's formula in TeX, or nothing."""
    return f"${formulas[name]}$" if name in formulas else ""


def tables_page() -> str:
    """Every view of a store with its columns."""
    builtin = builtin_columns()
    fields = {"attempts": schema.ATTEMPTS, "fits": schema.FITS, "live": live_schema(builtin), **builtin.schemas}
    head = _table(["view", "one row per"], [[f"`{view}`", text.removeprefix("a ")] for view, text in VIEWS.items()])
    notes = {
        "trials": "Every parameter of a task is a further column.",
        "metrics": "Metrics that other tasks declare or return are further columns once one of their trials is committed.",
        "results": "The parameters and other columns of `trials`, the metrics of `metrics` at the trial's last step and last "
        "layer, the last value of each of `curves`, and `judgement`: `ok`, `unconverged`, `untrained`, `failed` or `diverged`, "
        "by the rules of [Fits](../../explanation/fits.md). A trial is compared with the other trials of its sweep.",
        "attempts": "Times are seconds since 1970: `select state, to_timestamp(started_at) from attempts`.",
    }
    sections = [
        f"## {view}\n\n{notes.get(view, '')}\n\n"
        + (
            _table(["column", "type"], [[f"`{field.name}`", _type(field.type)] for field in fields[view]])
            if view in fields
            else ""
        )
        for view in VIEWS
        if view in fields or view in notes
    ]
    return "\n".join([f"# Tables and columns\n\nThe views of `depthrate query`.\n\n{head}", *sections])


def failures_page() -> str:
    """The states of an attempt, and what follows from each kind of failure."""
    texts = _attribute_docs(Path(states.__file__))
    state_rows = [[f"`{state.value}`", texts.get(state.name, "")] for state in AttemptState]
    rows = []
    for kind in FailureKind:
        rule = RULES[kind]
        causes = ", ".join(str(cause.name).lower() for cause in rule.causes)
        rows.append(
            [f"`{kind.value}`", texts.get(kind.name, ""), rule.retries, causes, "yes" if rule.only_elsewhere else ""]
        )
    return (
        "# Attempt states and failures\n\nThe columns `state` and `error_kind` of `attempts`.\n\n"
        + _table(["state", "meaning"], state_rows)
        + "\nAfter a failure the pack is retried as often as its kind allows. A pack of several trials that runs out of memory "
        "is split instead. Failures on an unhealthy node are not counted. A pack is also given up after "
        f"{MAX_FAILURES_PER_PACK} failures of kinds with fewer retries than that.\n\n"
        + _table(["failure kind", "meaning", "retries", "possible causes", "only on another node"], rows)
        + "\n## Outcome of a SLURM job\n\nThe outcome of each pack of a job. The first matching row applies, and an empty cell "
        "matches everything.\n\n" + _table(["attempt record", "job state", "conditions", "outcome"], _outcome_rows())
    )


def _outcome_rows() -> list[list[Any]]:
    """The rules by which the SLURM executor decides."""
    return [
        [
            ", ".join("missing" if state is None else state.value for state in rule.record),
            ", ".join(rule.job),
            ", ".join(condition.value for condition in rule.conditions),
            rule.outcome.value,
        ]
        for rule in OUTCOME_RULES
    ]


def security_page() -> str:
    """Each attack with its defence and the test that checks it, from docs/security.toml."""
    rows = tomllib.loads((ROOT / "docs" / "security.toml").read_text())["check"]
    table = _table(["attack", "defence", "test"], [[row["attack"], row["defence"], f"`{row['test']}`"] for row in rows])
    trust = "[Trusted code](../../explanation/store.md#trusted-code) has the trust model."
    return f"{FOR_DEVELOPERS}# Security tests\n\n{trust}\n\n{table}"


def modules_page() -> str:
    """Every module with the first sentence of its docstring."""
    sections = []
    for folder in FOLDERS:
        for package in sorted({file.parent for file in (ROOT / folder).rglob("*.py")}):
            rows = [[f"`{file.name}`", _first_sentence(file)] for file in sorted(package.glob("*.py"))]
            rows = [row for row in rows if row[0] != "`__init__.py`"]
            title = f"## {package.relative_to(ROOT)}/\n\n{_first_sentence(package / '__init__.py')}\n"
            sections.append(title + ("\n" + _table(["module", "purpose"], rows) if rows else ""))
    return "\n".join(
        [f"{FOR_DEVELOPERS}# Modules\n\n`CONTRIBUTING.md` explains how to add to each package.\n", *sections]
    )


def shipped_sweeps_page() -> str:
    """Every shipped sweep with the comment of its file."""
    files = sorted((ROOT / "sweeps").rglob("*.yaml"))
    rows = [[f"`{file.relative_to(ROOT / 'sweeps').with_suffix('')}`", _comment(file), _axes(file)] for file in files]
    intro = (
        "These sweeps come with depthrate and run by name: `depthrate run papers/mnist-rn1-small`. `depthrate plan papers/` "
        "estimates each and checks its data. Variants named `-small` take minutes, `-medium` ones about half a core-hour. The "
        "full ones in `papers/` need a GPU and have not been run, except for `words/` and `lowrank/figure2-top`."
    )
    return f"# Shipped sweeps\n\n{intro}\n\n{_table(['sweep', 'purpose', 'grid'], rows)}"


def navigation() -> str:
    """The navigation of the site, one table of contents per caption."""
    return "\n\n".join(
        "\n".join(["```{toctree}", f":caption: {caption}", ":hidden:", "", *pages, "```"])
        for caption, pages in NAVIGATION.items()
    )


def fit_models() -> str:
    """One row per model of a curve."""
    rows = [[f"`{m.name}`", MODEL_WORDS[m.name], f"`{_plain(m.formula)}`", m.num_parameters] for m in MODELS.values()]
    return _table(["model", "name", "y", "parameters"], rows)


def executors() -> str:
    """One row per executor: its options, and what continues without its launch."""
    rows = [
        [f"`{e.name}`", ", ".join(f"`{option.flag}`" for option in e.options), "yes" if e.scheduler else "no"]
        for e in registered_executors().values()
    ]
    return _table(["`--executor`", "options", "`--detach`"], rows)


def store_layout() -> str:
    """Every path of a store."""
    rows = "\n".join(f"{kind.pattern:<58}{kind.content}" for kind in paths.FILE_KINDS)
    return f"```text\n{rows}\n```"


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands_page,
    "python": python_page,
    "sweep-keys": sweep_keys_page,
    "tasks": tasks_page,
    "metrics": metrics_page,
    "tables": tables_page,
    "failures": failures_page,
    "security-tests": security_page,
    "modules": modules_page,
    "shipped-sweeps": shipped_sweeps_page,
}
TABLES: dict[str, Callable[[], str]] = {
    "navigation": navigation,
    "fit-models": fit_models,
    "executors": executors,
    "store-layout": store_layout,
}
MARKER = re.compile(r"<!-- declared: ([\w-]+) -->")


def expand(page: str) -> str:
    """Return a page with the generated table in place of each marker.

    Raises:
        KeyError: A marker names an unknown table.
    """
    return MARKER.sub(lambda match: TABLES[match[1]]().strip(), page)


def write_pages(docs: Path) -> None:
    """Write the generated pages below a folder of documentation, except unchanged ones, which Sphinx then does not reread."""
    (docs / GENERATED).mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        path, text = docs / GENERATED / f"{name}.md", page()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _parameters(task: Any) -> str:
    rows = [
        [f"`{p.name}`", p.doc, p.allowed, _default(p.default), "yes" if p.fusible else ""] for p in task.schema.values()
    ]
    return _table(["parameter", "meaning", "allowed", "default", "fusible"], rows)


def _datasets() -> str:
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


def _cited() -> str:
    return "\n".join(f"- {name}: *{title}*" for name, title in PAPERS.items()) + "\n"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _json_type(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the type of a key in the words of a sweep file."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        part = definitions.get(name, {})
        return f"mapping, see [{name}](#{name.lower()})" if "properties" in part else _json_type(part, definitions)
    if "enum" in value:
        return _names(map(str, value["enum"]))
    if value.get("type") == "array":
        item = _json_type(value.get("items", {}), definitions)
        kind, comma, rest = item.partition(",")
        return f"list of {kind if kind.startswith('`') or kind == 'any' else kind + 's'}{comma}{rest}"
    if "type" in value:
        return "mapping" if value["type"] == "object" else str(value["type"])
    choices = [_json_type(choice, definitions) for choice in value.get("anyOf", ()) if "pattern" not in choice]
    return " or ".join(dict.fromkeys(choices)) or "any"


def _json_default(value: Mapping[str, Any], is_required: bool) -> str:
    if is_required:
        return "required"
    default = value.get("default")
    return (
        "" if default in (None, "", [], {}) else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    )


def _attribute_docs(file: Path) -> dict[str, str]:
    """Return the docstrings below the assignments of a module's classes: name -> text."""
    docs = {}
    for definition in ast.parse(file.read_text()).body:
        if isinstance(definition, ast.ClassDef):
            for assignment, text in zip(definition.body, definition.body[1:], strict=False):
                if (
                    isinstance(assignment, ast.Assign)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                ):
                    docs[ast.unparse(assignment.targets[0])] = " ".join(str(text.value.value).split())
    return docs


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
    """Return a formula without TeX's braces: c e^(-a x)."""
    return re.sub(r"\^\{(.*?)\}", lambda match: f"^({match[1]})" if " " in match[1] else f"^{match[1]}", formula)


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
    """Return a public name as Markdown: signature, docstring, and the public members of a class."""
    value = getattr(depthrate, name)
    text = f"### {name}\n\n```text\n{name}{_signature(value)}\n```\n\n{_prose(value)}\n"
    if not isinstance(value, type) or issubclass(value, Exception):
        return text
    members = [(key, member) for key, member in vars(value).items() if not key.startswith("_")]
    members = [(key, member) for key, member in members if inspect.getdoc(member) != inspect.getdoc(type(member))]
    rows = [
        [f"`{key}{' '.join(_signature(member).split())}`", _prose(member).partition("\n\n")[0]]
        for key, member in members
        if _prose(member)
    ]
    return text + ("\n" + _table(["member", "purpose"], rows) if rows else "")


def _signature(value: Any) -> str:
    """Return the signature of a function or class, or an empty string. Long ones have a line per parameter."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, Exception)):
        return ""
    signature = inspect.signature(value)
    parameters: list[str] = []
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in "".join(text[0] for text in parameters):
            parameters.append("*")
        kind = _annotation(parameter.annotation)
        text = stars.get(parameter.kind, "") + parameter.name + (f": {kind}" if kind else "")
        if parameter.default is not parameter.empty:
            default = repr(parameter.default) if isinstance(parameter.default, str) else str(parameter.default)
            text += f" = {'...' if default == '<factory>' else default}"
        parameters.append(text)
    kind = "" if isinstance(value, type) else _annotation(signature.return_annotation)
    returned = f" -> {kind}" if kind else ""
    one_line = f"({', '.join(parameters)}){returned}"
    return one_line if len(one_line) < 90 else "(\n    " + ",\n    ".join(parameters) + f",\n){returned}"


def _annotation(annotation: Any) -> str:
    """Return a type as written in code, without the modules of its parts and without constraints."""
    if annotation is inspect.Parameter.empty:
        return ""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    text = re.sub(r"Annotated\[([\w.]+), [^\[\]]*(?:\([^()]*\))?\]", r"\1", str(annotation))
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text).strip("'")


def _prose(value: Any) -> str:
    """Return a docstring as Markdown, with its sections as lists."""
    lines = (inspect.getdoc(value) or "").split("\n")
    return "\n".join(
        re.sub(r"^    (?=\S)", "- ", line) + ("\n" if line in ("Args:", "Raises:", "Returns:", "Yields:") else "")
        for line in lines
    )
