"""Style of the page, and the script that renders its figures and sorts its tables."""

STYLE = """
:root { --ink: #222; --soft: #5a5a5a; --rule: #ddd; --paper: #fff; --shade: #f6f6f6; --line: #eee; --link: #365c8d; }
:root { --warn: #fff6ea; --pill: #eee; --ok: #e0efe8; --running: #dde8f5; --failed: #f9dcd6; --diverged: #fbe9c9; }
:root { color-scheme: light dark; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --soft: #a5a5a5; --rule: #444; --paper: #181818; --shade: #242424; --line: #333; --link: #8ab4e0; }
  :root { --warn: #3a2a14; --pill: #333; --ok: #1d3d2f; --running: #1f3350; --failed: #54241b; --diverged: #4b3a12; }
  .plot { filter: invert(0.93) hue-rotate(180deg) brightness(1.35); } /* white becomes the page's colour; hues stay */
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 24px 20px 64px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.2em 0 .7em; padding-bottom: .25em; border-bottom: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.4em 0 .4em; }
.meta, .note { color: var(--soft); font-size: .875rem; margin: .3em 0; }
.summary li, .warning li { margin: .35em 0; overflow-wrap: anywhere; }
.summary ul, .warning ul { padding-left: 1.2em; margin: .4em 0; }
.warning { border-left: 4px solid #b35900; background: var(--warn); padding: .7em 1em; margin: 1.2em 0; }
sup { line-height: 0; }
.nowrap { white-space: nowrap; }
.pill { display: inline-block; border-radius: 4px; padding: .05em .55em; margin-right: .4em; font-size: .875rem; }
.pill { background: var(--pill); } .pill.ok { background: var(--ok); } .pill.running { background: var(--running); }
.pill.failed { background: var(--failed); } .pill.diverged { background: var(--diverged); }
.contents ul { list-style: none; margin: 1em 0; padding: 0; display: flex; flex-wrap: wrap; gap: .2em 1.2em; }
.contents { font-size: .875rem; }
.contents a { color: var(--link); text-decoration: none; } .contents a:hover { text-decoration: underline; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: 28px 32px; }
figure { margin: 0; min-width: 0; break-inside: avoid; }
figcaption { margin-top: .4em; font-size: .875rem; line-height: 1.45; color: var(--soft); overflow-wrap: anywhere; }
.save { white-space: nowrap; } .save button { all: unset; cursor: pointer; margin-left: .7em; color: var(--link); }
.save button:hover { text-decoration: underline; } .save button:focus-visible { outline: 2px solid #365c8d; }
.plot { width: 100%; height: calc(330px + var(--rows, 1) * 22px); }
.scroll { overflow-x: auto; border: 1px solid var(--rule); }
.scroll { max-height: 80vh; overflow-y: auto; } /* keeps the header visible */
table { border-collapse: collapse; font-size: .78rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .32em .5em; text-align: left; border-bottom: 1px solid var(--line); }
td.number, td code { white-space: nowrap; }
thead th { position: sticky; top: 0; z-index: 1; background: var(--shade); font-weight: 600; vertical-align: bottom; }
tr.group th { background: var(--shade); font-weight: 600; padding-top: .6em; }
tr.group .note { font-weight: 400; font-size: inherit; margin-left: .8em; }
th button, button.trial { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid #365c8d; }
button.trial { color: var(--link); } button.trial:hover { text-decoration: underline; }
button.trial:focus-visible { outline: 2px solid #365c8d; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.number { text-align: right; } .long { white-space: pre-line; overflow-wrap: break-word; max-width: 44em; }
.long a { color: var(--link); text-decoration: none; } .long a:hover { text-decoration: underline; }
td .pill { margin: 0; font-size: inherit; }
tr.detail > td { background: var(--shade); padding: .8em; } tr.detail ul { margin: .3em 0; padding-left: 1.2em; }
tr.detail .plot { max-width: 640px; } tr:target { outline: 2px solid #365c8d; outline-offset: -2px; }
details { margin: .8em 0; font-size: .875rem; overflow-wrap: anywhere; }
pre { background: var(--shade); padding: .8em 1em; overflow-x: auto; }
pre { font: .84rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15em 1.2em; font-size: .875rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media screen and (max-width: 700px) {
  main { padding: 16px 14px 48px; }
  .scroll { max-height: none; overflow: visible; border: 0; border-top: 1px solid var(--rule); }
  table, tbody, tr, td, tr.group th { display: block; }
  thead { display: none; } thead:has(button) { display: block; }
  thead tr { display: flex; flex-wrap: wrap; gap: 0 1em; } thead tr::before { content: "sort by"; color: var(--soft); }
  thead th { position: static; display: inline; background: none; padding: .1em 0; border: 0; font-weight: 400; }
  thead th button { color: var(--link); }
  tbody tr { padding: .4em 0; border-bottom: 1px solid var(--line); }
  td { display: inline-block; border: 0; padding: 0 1em 0 0; text-align: left; max-width: 100%; overflow-wrap: anywhere; }
  td.none { display: none; } td.number { white-space: normal; }
  td:not(:first-child)::before, td.number::before { content: attr(data-label) " "; color: var(--soft); }
  td:first-child { font-weight: 600; } tr.group th { padding: .5em .4em; } tr.group .note { display: block; margin: 0; }
  td .long { display: inline; } tr.detail > td { display: block; font-weight: 400; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; } dl { grid-template-columns: 1fr; } dd { margin: 0 0 .4em; }
}
@media print {
  main { max-width: none; padding: 0; } .scroll { max-height: none; overflow: visible; border: 0; }
  .figures { display: block; } figure { margin-bottom: 1.5em; } h2 { break-after: avoid; } tr { break-inside: avoid; }
  table { font-size: .58rem; } th, td { padding: .3em .4em; }
  tr.detail { display: none; } .modebar { display: none; }
  figure { break-inside: avoid; page-break-inside: avoid; } .save { display: none; }
  section { break-inside: auto; } .contents { display: none; } .pill { border: 1px solid #bbb; }
  .number { white-space: nowrap; } td .pill { font-size: inherit; } .long { width: auto; }
}
"""
SCRIPT = """
(async () => {
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    if (a === "" || b === "") return (a === "") - (b === "");
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  for (const table of document.querySelectorAll("table")) {
    const names = [...table.tHead.rows[0].cells].map((head) => head.textContent);
    for (const cell of table.querySelectorAll("td")) { // label on a narrow screen
      cell.dataset.label = names[cell.cellIndex];
      if (["", "—"].includes(cell.textContent.trim())) cell.classList.add("none");
    }
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => head.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      body.querySelectorAll("tr.detail").forEach((row) => row.remove());
      const key = (row) => row.cells[column].dataset.key;
      const rows = [...body.rows].sort((a, b) => compare(key(a), key(b)) * (falling ? -1 : 1));
      body.append(...rows);
    }));
  }
  const bytes = Uint8Array.from(atob(document.getElementById("library").textContent), (byte) => byte.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const library = document.createElement("script");
  library.textContent = await new Response(unpacked).text();
  document.head.append(library);
  const plots = [];
  for (const block of document.querySelectorAll("script.plot-data")) {
    const target = block.previousElementSibling, figure = JSON.parse(block.textContent);
    // disable plotly's "Share chart" button, which uploads the data
    const config = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
                     toImageButtonOptions: { format: "svg" }, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
    Plotly.newPlot(target, { ...figure, config });
    plots.push(target);
  }
  const details = JSON.parse(document.getElementById("trial-details")?.textContent ?? "null");
  const drawCurves = (target, curves) => {
    const traces = Object.entries(curves).flatMap(([split, columns]) => Object.keys(columns)
      .filter((name) => name !== "step" && columns[name].some((value) => value > 0))
      .map((name) => ({ x: columns.step, y: columns[name], mode: "lines+markers", marker: { size: 4 },
                        name: details.labels[name] + (Object.keys(curves).length > 1 ? ` (${split})` : "") })));
    const axis = { type: "log", exponentformat: "power", minorloglabels: "none", showline: true, gridcolor: "#e8e8e8" };
    const layout = { xaxis: { ...axis, title: { text: "Step" } }, yaxis: axis, legend: { orientation: "h", y: -0.25 },
                     margin: { l: 56, r: 14, t: 10, b: 40 }, font: { size: 12, color: "#222" }, hovermode: "x unified" };
    if (traces.length) Plotly.newPlot(target, traces, layout, { responsive: true, displayModeBar: false });
    else target.remove();
  };
  const open = (row) => {
    if (row.nextElementSibling?.matches("tr.detail")) return row.nextElementSibling.remove();
    const trial = details.trials[row.id.slice("trial-".length)];
    const detail = document.createElement("tr"), cell = detail.insertCell(), list = document.createElement("ul");
    detail.className = "detail";
    cell.colSpan = row.cells.length;
    const plot = Object.assign(document.createElement("div"), { className: "plot" });
    const lines = trial.attempts.length ? trial.attempts : ["No attempts in this sweep."];
    for (const text of [...lines, trial.logs]) list.append(Object.assign(document.createElement("li"), { textContent: text }));
    cell.append(plot, list);
    row.after(detail);
    drawCurves(plot, trial.curves);
  };
  document.querySelectorAll("button.trial").forEach((button) =>
    button.addEventListener("click", () => open(button.closest("tr"))));
  const save = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const cell = (value) => /[",\\n]/.test(String(value ?? "")) ? `"${String(value).replaceAll('"', '""')}"` : value ?? "";
  const csv = (target) => target.data.flatMap((trace, number) => trace.type === "heatmap"
    ? trace.z.flatMap((row, i) => row.map((z, j) => [number, trace.name, trace.x[j], trace.y[i], z]))
    : trace.x.map((x, i) => [number, trace.name, x, trace.y[i], ""]).filter((row) => row[2] !== null));
  document.querySelectorAll("button[data-save]").forEach((button) => button.addEventListener("click", async () => {
    const figure = button.closest("figure"), target = figure.querySelector(".plot");
    const name = figure.querySelector("b").textContent.trim().replace(/\\W+/g, "-").replace(/-$/, "").toLowerCase();
    if (button.dataset.save === "csv") {
      const rows = [["trace", "name", "x", "y", "z"], ...csv(target)];
      save(`${name}.csv`, "text/csv", rows.map((row) => row.map(cell).join(",")).join("\\n") + "\\n");
    } else {
      const url = await Plotly.toImage(target, { format: "svg", width: 640, height: 480 });
      save(`${name}.svg`, "image/svg+xml", decodeURIComponent(url.slice(url.indexOf(",") + 1)));
    }
  }));
  const fit = () => plots.forEach((target) => Plotly.Plots.resize(target));
  addEventListener("beforeprint", fit);
  addEventListener("afterprint", fit);
})().catch((error) => {
  const note = document.createElement("p");
  note.textContent = `Cannot draw the figures: ${error}. They need a browser of 2023 or later.`;
  document.querySelector("main").prepend(note);
});
"""
