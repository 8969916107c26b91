// The home page of `depthrate serve`: a row for each sweep, which can be found and sorted.

const $ = (selector) => document.querySelector(selector);
const POLL_MS = 3000;
const askState = requestOf("state.json"), sparks = new Map();
let sweeps = [], queue = Promise.resolve();

const number = (v) => (v === 0 ? "0" : v < 0.001 ? "<0.001" : String(+v.toPrecision(2)));
const group = (by) => Object.entries(by).map(([name, value]) => `${clean(name)} ${clean(value)}`).join(", ");

function progress({ counts, trials, num_done: done }) {
  const share = (count) => `width:${(100 * count) / Math.max(1, trials)}%`;
  const parts = ["ok", "failed", "diverged", "running"].map((state) => h("i", { class: state, style: share(counts[state]) }));
  const rest = counts.running ? `, ${counts.running} running` : counts.pending && done ? `, ${counts.pending} pending` : "";
  return [h("span", { class: "share" }, parts), h("small", {}, `${counted(done)} of ${counted(trials)}${rest}`)];
}

function rate({ rate: of, notes }) {
  const note = notes.length > 0 && h("small", { class: "alarm" }, [...new Set([notes[0], notes.at(-1)])].map((text) => clean(text, 160)).join(". "));
  if (!of) return [h("small", {}, "no fit yet"), note];
  const groups = of.headline;
  if (of.exponent == null) return [h("small", {}, `${clean(of.metric)}: `, groups), note];
  const law = [`${clean(of.metric)} ∝ ${clean(of.x)}`, h("sup", {}, fixed(-of.exponent)), ` ${interval(of.ci_low, of.ci_high)}`];
  return [h("span", {}, law), h("small", {}, group(of.by), group(of.by) && "; ", groups, of.is_unconverged && "; unconverged"), note];
}

// The means of the first fit on log axes, fetched when the number of finished trials changes.
function spark({ name, counts }) {
  const known = sparks.get(name), lines = known?.lines ?? [], points = lines.flat();
  if (known?.count !== counts.ok) {
    sparks.set(name, { count: counts.ok, lines });
    queue = queue.then(requestOf(`sweep/${encodeURIComponent(name)}/spark.json`)).then((answer) => answer.json())
      .then(({ lines }) => { sparks.get(name).lines = lines; draw(); }).catch(() => {});
  }
  const [x, y] = [[0, 3, 97], [1, 27, 3]].map(([k, ...ends]) => makeScale(false, Math.min(...points.map((p) => p[k])), Math.max(...points.map((p) => p[k])), ...ends));
  const path = (line, k) => s("path", { class: `line${k}`, d: pathOf(line, ([a, b]) => `${x(a)},${y(b)}`) });
  return h("span", { class: "spark" }, points.length > 1 && s("svg", { width: 100, height: 30, "aria-hidden": "true" }, lines.map(path)));
}

function row(sweep) {
  const { counts, failures, hours, changed, marks } = sweep, when = changed ? new Date(changed * 1000) : null;
  const bad = [counts.failed && `${counts.failed} failed`, counts.diverged && `${counts.diverged} diverged`, !counts.failed && failures && `${failures} attempts`];
  const link = h("a", { href: `sweep/${encodeURIComponent(sweep.name)}/` }, clean(sweep.name, 60));
  const tags = marks.tags.map((tag) => h("span", { class: "tag" }, clean(tag))), note = marks.note && h("small", {}, clean(marks.note, 160));
  const time = when ? [when.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }), h("small", {}, when.toLocaleDateString("en-GB", { day: "numeric", month: "short" }))] : ["–"];
  return h("tr", {}, h("td", {}, link, " ", tags, h("small", {}, clean(sweep.task, 60)), note), h("td", {}, progress(sweep)), h("td", {}, spark(sweep)), h("td", {}, rate(sweep)),
    h("td", { class: "alarm" }, bad.filter(Boolean).join(", ")), h("td", { "data-name": "core-hours" }, number(hours)), h("td", { "data-name": "changed" }, time));
}

function draw() {
  const word = $("#find").value.toLowerCase(), by = $("#sort").value;
  const text = (sweep) => [sweep.name, sweep.task, sweep.rate?.metric, ...sweep.marks.tags].join(" ").toLowerCase();
  const shown = sweeps.filter((sweep) => text(sweep).includes(word));
  shown.sort((a, b) => (by === "name" ? 0 : (b[by] ?? 0) - (a[by] ?? 0)) || a.name.localeCompare(b.name));
  keepFocus(document, $("tbody"), () => $("tbody").replaceChildren(...shown.map(row)));
  const sum = (value) => sweeps.reduce((total, sweep) => total + value(sweep), 0);
  $(".find").hidden = $(".scroll").hidden = false;
  $("#count").replaceChildren(h("b", {}, shown.length), shown.length === 1 ? " sweep" : " sweeps");
  $("#total").textContent = `${counted(sum((sweep) => sweep.trials))} trials, ${number(sum((sweep) => sweep.hours))} core-hours`;
}

let problem = "";                                       // of the store, as the last answer said
const poll = () => attempt($("#problem"), async () => {
  const answer = await askState();
  if (answer) {
    ({ sweeps, error: problem } = await answer.json());
    draw();
  }
  return problem;
});

$("#find").addEventListener("input", draw);
$("#sort").addEventListener("change", draw);
$("#theme").addEventListener("click", () => toggleTheme(document.documentElement));
addEventListener("keydown", (event) => {
  if (event.target.closest?.("input, select")) return;
  if (event.key === "t") toggleTheme(document.documentElement);
  if (event.key !== "/") return;
  event.preventDefault();
  $("#find").focus();
});
await poll();
setInterval(() => document.hidden || poll(), POLL_MS);
performance.mark("ready");
