"""The pages of docs/: their listings run, their links resolve, and the site builds without a warning."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

import depthrate
from depthrate.orchestrator.cli import app as app_module
from depthrate.orchestrator.cli.app import app
from depthrate.tasks.registry import registered_tasks
from tests.support.browser import browser
from tests.support.here import printed

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCES = (*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "benchmarks/README.md")
PAGES = sorted(page for page in SOURCES if page.parent.name != "generated")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def load_declared() -> ModuleType:
    """Import docs/declared.py, which generates the tables of the pages."""
    spec = importlib.util.spec_from_file_location("declared", DOCS / "declared.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


DECLARED = load_declared()


def anchor(heading: str) -> str:
    """Return the anchor that GitHub and MyST give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_sweeps_are_valid() -> None:
    whole, several, _variant = blocks("how-to/write-sweeps.md", "yaml")
    Path("wd.yaml").write_text(whole)
    assert "wd: 75 trials" in printed("plan", "wd.yaml")
    Path("two.yaml").write_text(several)
    assert "two: 5 trials" in printed("plan", "two.yaml")
    Path("my_sweep.py").write_text(blocks("how-to/write-sweeps.md", "python")[0])
    assert "50 trials" in printed("plan", "my_sweep.py:wd")
    Path("tuned.yaml").write_text(blocks("how-to/search.md", "yaml")[0])
    assert "search: 5 studies of 20 proposals" in printed("plan", "tuned.yaml")
    grid = "name: f\ntask: collapse\nparams: {arch: rn1}\ngrid: {depth: [2, 3, 5, 8], width: [16, 32]}\n"
    Path("fit.yaml").write_text(grid + blocks("how-to/analyse.md", "yaml")[0])
    assert "f: 8 trials" in printed("plan", "fit.yaml")


@pytest.mark.slow
def test_custom_tasks_and_the_store_in_python() -> None:
    listings = {
        code.split()[1].strip(","): code for code in blocks("how-to/custom-tasks.md", "python") if code[0] == "#"
    }
    for name in ("my_task.py", "spread.py"):
        Path(name).write_text(listings[name])
    sweep = "name: {0}\ntask: ./{1}\ngrid: {{depth: [2, 4]}}\nseeds: 2\nfit: [{{metric: {2}}}]\n"
    Path("custom.yaml").write_text(sweep.format("custom", "my_task.py:power_law", "nc1"))
    Path("spread.yaml").write_text(sweep.format("spread", "spread.py:spread", "spread"))
    assert "nc1" in printed("run", "custom.yaml", "--workers", "1")
    assert "spread" in printed("run", "spread.yaml", "--workers", "1")
    for page, number in (("how-to/analyse.md", 0), ("tutorials/first-sweep.md", 0)):
        namespace: dict[str, object] = {}
        code = blocks(page, "python")[number]
        exec(code if "frame" in code else code.replace("results.sql(", "frame = results.sql("), namespace)
        assert list(namespace["frame"]["depth"]) == [2, 4]  # type: ignore[index]
    query = re.findall(r'depthrate query "(.*?)" --sweep wd', (DOCS / "how-to/analyse.md").read_text())[0]
    assert "depth" in printed("query", query, "--sweep", "custom")


@pytest.mark.slow
def test_the_network_from_hugging_face_trains_in_kernels() -> None:
    pytest.importorskip("transformers")
    Path("vit.py").write_text(blocks("how-to/huggingface.md", "python")[0])
    Path("vit.yaml").write_text(blocks("how-to/huggingface.md", "yaml")[0])
    assert "vit: 4 trials" in printed("plan", "vit.yaml", "--engine", "native")
    small = ("--set", "depth=2", "--set", "seeds=1", "--set", "steps=10", "--set", "name=vit")
    assert "the trial is committed" in printed("run", "vit.yaml", *small, "--workers", "1", "--engine", "native")


@pytest.mark.slow
def test_the_tutorial_of_the_first_sweep_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands in their order, on a smaller grid of the same name."""
    text = (DOCS / "tutorials/first-sweep.md").read_text()
    commands = re.findall(r"^depthrate (.*)$", "\n".join(blocks("tutorials/first-sweep.md", "bash")), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["run", "report", "query", "run", "compare"]
    small = ["--set", "depth=[2,3,5]", "--set", "width=8", "--set", "name=quickstart", "--set", "seeds=2"]
    assert "all 6 trials are committed" in printed("run", "quickstart", *small, "--set", "steps=20", "--workers", "1")
    printed("report", "quickstart")
    assert Path("report.html").exists()
    assert "depth" in printed("query", re.findall(r'query "(.*?)"', text)[0])
    assert "all 6 trials are committed" in printed(
        "run", "quickstart", *small, "--set", "steps=10", "--set", "name=quickstart.steps-2000", "--workers", "1"
    )
    compared = printed("compare", "quickstart", "quickstart.steps-2000")
    assert "p(equal)" in compared and "exponent of first" in compared
    printed("status")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        assert "://" not in link, f"{page.name} links to {link}, which no test checks"
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if target.parent == DOCS / DECLARED.GENERATED:
            assert target.stem in DECLARED.PAGES, f"{page.name} links to {link}"
            content = DECLARED.PAGES[target.stem]() if heading else ""
        else:
            assert target.exists(), f"{page.name} links to {link}"
            content = DECLARED.expand(target.read_text()) if heading else ""
        headings = re.findall(r"^#+ (.*)$", content, re.MULTILINE)
        assert not heading or heading in map(anchor, headings), f"{page.name} links to {link}"


def test_every_page_is_in_the_navigation() -> None:
    listed = [page for pages in DECLARED.NAVIGATION.values() for page in pages]
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES if page.is_relative_to(DOCS)}
    written = {name for name in pages if not re.fullmatch(r"index|atlas/p\d", name)}
    for_users = {name for name, make in DECLARED.PAGES.items() if not make().startswith(DECLARED.FOR_DEVELOPERS)}
    assert set(DECLARED.PAGES) - for_users == {"modules", "security-tests"}
    assert sorted(listed) == sorted(written | {f"{DECLARED.GENERATED}/{name}" for name in for_users})


def test_formulas_are_of_metrics() -> None:
    names = {metric.name for task in registered_tasks().values() for metric in task.measurements}
    formulas = tomllib.loads((DOCS / "formulas.toml").read_text())
    assert set(formulas) <= names
    assert f"${formulas['nc1']}$" in DECLARED.PAGES["metrics"]()


def test_no_page_copies_a_declaration() -> None:
    """A parameter in the first column of a table was copied from its declaration; `features` is a table as well."""
    names = {name for task in registered_tasks().values() for name in task.schema} - {"features"}
    for page in DOCS.glob("[!a]*/*.md"):
        if page.parent.name == "generated":
            continue
        assert not names & set(re.findall(r"^\| `(\w+)`", page.read_text(), re.MULTILINE)), page.name


@pytest.mark.slow
def test_the_command_of_contributing_works(tiny_sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (body,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    name = "depthrate.orchestrator.cli.commands.count"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(app_module, "COMMANDS", (*app_module.COMMANDS, "count"))
    exec(body, vars(sys.modules[name]))
    printed("run", str(tiny_sweep), "--workers", "1")
    assert printed("count") == "4\n" and "Print how many trials are committed." in printed("count", "-h")
    refused = CliRunner().invoke(app, ["count", "--store", "nowhere"])
    assert refused.exit_code == 2 and "nowhere" in refused.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    pytest.importorskip("sphinx", reason="needs pip install 'depthrate[docs]'")
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return site


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site: Path) -> None:
    for name, page in _expected(site).items():
        assert name in page, f"{name} is missing from the site"


@pytest.mark.browser
def test_no_page_is_wider_than_its_window(site: Path) -> None:
    with browser() as window:
        for page in sorted(site.rglob("*.html")):
            for width in (390, 1280):
                window.open(page, width)
                measured = window.run("return document.documentElement.scrollWidth")
                assert measured <= width, f"{page.name} is {measured} px wide in a window of {width}"


def _expected(site: Path) -> dict[str, str]:
    """Return each parameter, command and public name with the page that must have it."""
    tasks, commands, python, metrics = (
        re.sub("<[^>]*>", "", (site / f"{DECLARED.GENERATED}/{page}.html").read_text())
        for page in ("tasks", "commands", "python", "metrics")
    )
    expected = {name: tasks for task in registered_tasks().values() for name in task.schema}
    expected |= {metric.name: metrics for task in registered_tasks().values() for metric in task.measurements}
    expected |= {f"depthrate {name}": commands for name in app_module.COMMANDS}
    return expected | dict.fromkeys(depthrate.__all__, python)
