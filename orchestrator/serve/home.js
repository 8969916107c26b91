// The home page of `depthrate serve`: a row for each sweep, which can be found and sorted. All texts become text nodes.

const $ = (selector) => document.querySelector(selector);
const POLL_MS = 3000;
let sweeps = [], tag = "", queue = Promise.resolve();
const sparks = new Map();

function h(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value != null) node.setAttribute(key, value);
  node.append(...children.flat().filter((child) => child !== "" && child != null));
  return node;
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const number = (v) => (v === 0 ? "0" : v < 0.001 ? "<0.001" : String(+v.toPrecision(2)));
const fixed = (v) => v.toFixed(2).replace("-", "−");
const group = (by) => Object.entries(by).map(([name, value]) => `${short(name, 40)} ${short(String(value), 40)}`).join(", ");

function progress({ counts, trials }) {
  const done = trials - counts.pending - counts.running, share = (count) => `width:${(100 * count) / Math.max(1, trials)}%`;
  const parts = ["ok", "failed", "diverged", "running"].map((state) => h("i", { class: state, style: share(counts[state]) }));
  const rest = counts.running ? `, ${counts.running} running` : counts.pending && done ? `, ${counts.pending} pending` : "";
  return [h("span", { class: "share" }, parts), h("small", {}, `${done.toLocaleString("en")} of ${trials.toLocaleString("en")}${rest}`)];
}

function rate({ rate: of, notes }) {
  const note = notes.length ? [h("small", { class: "alarm" }, short(notes[0], 160))] : [];
  if (!of) return [h("small", {}, "no fit yet"), ...note];
  const groups = `power law preferred in ${of.laws} of ${of.groups} ${of.groups === 1 ? "group" : "groups"}`;
  if (of.exponent == null) return [h("small", {}, `${short(of.metric, 40)}: ${groups}`), ...note];
  const interval = of.ci_low == null || of.ci_high == null ? "no interval" : `[${fixed(of.ci_low)}, ${fixed(of.ci_high)}]`;
  const details = [group(of.by), groups, of.is_unconverged ? "unconverged" : ""].filter(Boolean).join("; ");
  return [h("span", {}, `${short(of.metric, 40)} ∝ ${short(of.x, 40)}`, h("sup", {}, fixed(-of.exponent)), ` ${interval}`), h("small", {}, details), ...note];
}

// The means of the first fit on log axes, fetched when the number of finished trials changes.
function spark({ name, counts }) {
  const known = sparks.get(name), cell = h("span", { class: "spark" });
  if (known?.count !== counts.ok) {
    sparks.set(name, { count: counts.ok, lines: known?.lines ?? [] });
    queue = queue.then(() => fetch(`sweep/${encodeURIComponent(name)}/spark.json`)).then((answer) => answer.json())
      .then(({ lines }) => { sparks.get(name).lines = lines; draw(); }).catch(() => {});
  }
  const lines = known?.lines ?? [], points = lines.flat();
  if (points.length < 2) return cell;
  const range = (k) => { const values = points.map((point) => point[k]), lo = Math.min(...values); return [lo, Math.max(...values) - lo || 1]; };
  const [[x, across], [y, down]] = [range(0), range(1)], at = ([a, b]) => `${3 + (94 * (a - x)) / across},${3 + 24 * (1 - (b - y) / down)}`;
  const svg = (tag, attributes) => { const node = document.createElementNS("http://www.w3.org/2000/svg", tag); for (const key in attributes) node.setAttribute(key, attributes[key]); return node; };
  const figure = svg("svg", { width: 100, height: 30, "aria-hidden": "true" });
  lines.forEach((line, k) => figure.append(svg("path", { class: `line${k}`, d: `M${line.map(at).join("L")}` })));
  cell.append(figure);
  return cell;
}

function row(sweep) {
  const { counts, failures, hours, changed } = sweep, when = changed ? new Date(changed * 1000) : null;
  const bad = [counts.failed && `${counts.failed} failed`, counts.diverged && `${counts.diverged} diverged`, !counts.failed && failures && `${failures} attempts`];
  const link = h("a", { href: `sweep/${encodeURIComponent(sweep.name)}/` }, short(sweep.name, 60));
  const time = when ? [when.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }), h("small", {}, when.toLocaleDateString("en-GB", { day: "numeric", month: "short" }))] : ["–"];
  return h("tr", {}, h("td", {}, link, h("small", {}, short(sweep.task, 60))), h("td", {}, progress(sweep)), h("td", {}, spark(sweep)), h("td", {}, rate(sweep)),
    h("td", { class: "alarm" }, bad.filter(Boolean).join(", ")), h("td", { "data-name": "core-hours" }, number(hours)), h("td", { "data-name": "changed" }, time));
}

function draw() {
  const word = $("#find").value.toLowerCase(), by = $("#sort").value, all = (sweep) => `${sweep.name} ${sweep.task} ${sweep.rate?.metric ?? ""}`.toLowerCase();
  const shown = sweeps.filter((sweep) => all(sweep).includes(word));
  shown.sort((a, b) => (by === "name" ? a.name.localeCompare(b.name) : (b[by] ?? 0) - (a[by] ?? 0)) || a.name.localeCompare(b.name));
  const focused = document.activeElement?.getAttribute("href");
  $("tbody").replaceChildren(...shown.map(row));
  if (focused) [...document.querySelectorAll("tbody a")].find((link) => link.getAttribute("href") === focused)?.focus({ preventScroll: true });
  const sum = (value) => sweeps.reduce((total, sweep) => total + value(sweep), 0);
  $("#count").replaceChildren(h("b", {}, String(shown.length)), shown.length === 1 ? " sweep" : " sweeps");
  $("#total").textContent = `${sum((sweep) => sweep.trials).toLocaleString("en")} trials, ${number(sum((sweep) => sweep.hours))} core-hours`;
}

async function poll() {
  if (document.hidden) return;
  try {
    const answer = await fetch("state.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(await answer.text());
      const state = await answer.json();
      tag = answer.headers.get("ETag");
      sweeps = state.sweeps;
      $("#problem").textContent = state.error;
      draw();
    }
    if (!tag) return;
  } catch (error) {
    $("#problem").textContent = error instanceof TypeError ? "The server does not answer. Retrying." : error.message;
  }
  $("#problem").hidden = !$("#problem").textContent;
}

function toggleTheme() {
  const { theme } = document.documentElement.dataset, isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
}

$("#find").addEventListener("input", draw);
$("#sort").addEventListener("change", draw);
$("#theme").addEventListener("click", toggleTheme);
addEventListener("keydown", (event) => {
  if (event.target.closest?.("input, select")) return;
  if (event.key === "/") {
    event.preventDefault();
    $("#find").focus();
  }
  if (event.key === "t") toggleTheme();
});
await poll();
setInterval(poll, POLL_MS);
performance.mark("ready");
