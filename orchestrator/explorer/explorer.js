// The explorer of a sweep: one function without dependencies, in three hosts. In a file the data are in the page.
// `depthrate serve` sends them, the curves of the selection, and fits by the rules of `depthrate fit`. In a notebook they are
// the value of a widget. Order: texts, data, view state, filter, scales, drawing, the panels, side bar, top bar, hosts.
// `root` is the document or a shadow root, and `place` keeps the view as text.

const ADDRESS = {
  read: () => location.hash.slice(1),
  write: (text) => history.replaceState(null, "", `#${text}`),
  watch: (changed) => addEventListener("hashchange", changed),
};

async function explore(root, place = ADDRESS, packed = null) {
const $ = (selector, within = root) => within.querySelector(selector);
const $$ = (selector, within = root) => [...within.querySelectorAll(selector)];
const themed = root.host ?? document.documentElement;

// ------------------------------------------------------------------------------------- texts and numbers

const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const power = (exponent) => [...String(exponent)].map((digit) => SUPERSCRIPT[digit]).join("");

function format(v, digits = 3) {
  if (typeof v !== "number") return v === undefined ? "" : clean(v);
  if (!Number.isFinite(v)) return Number.isNaN(v) ? "–" : v > 0 ? "∞" : "−∞";
  const size = v === 0 ? 0 : Math.floor(Math.log10(Math.abs(v)));
  if (size >= -4 && size <= 5) return String(+v.toPrecision(digits)).replace("-", "−");
  const mantissa = +(v / 10 ** size).toPrecision(Math.min(digits, 2));
  return `${mantissa === 1 ? "" : `${mantissa}×`}10${power(size)}`.replace("-", "−");
}

// For columns of numbers: with trailing zeros.
const padded = (v) => (Math.abs(v) >= 1e-4 && Math.abs(v) < 1000 && v !== 1 ? v.toPrecision(3).replace("-", "−") : format(v));
const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;

// -------------------------------------------------------------------------------------------------- data
// The header (JSON) and typed columns (little endian) of orchestrator/explorer/columns.py.

const ARRAYS = { f64: Float64Array, f32: Float32Array, i32: Int32Array, u16: Uint16Array, u8: Uint8Array };

async function unpack(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  for (const table of Object.values(head.tables)) {
    table.by = new Map();
    for (const column of table.columns) {
      column.data = new ARRAYS[column.type](buffer, 8 + length + column.offset, table.n);
      const { data: codes, values } = column;
      column.get = values ? (i) => values[codes[i]] : (i) => codes[i];
      column.isNumber = !values || values.every((value) => typeof value === "number");
      column.label = clean(column.name);
      table.by.set(column.name, column);
    }
  }
  return head;
}

const NO_MARKS = { tags: [], note: "" };
let marks = { sweep: NO_MARKS, trials: {}, writable: false };
const marksOf = (i) => marks.trials[idOf(i)] ?? NO_MARKS;

let data, trials, n, params, metrics, grouping, state, isOk, indexOf;
let rows = {};                                          // curves, measured, layers: {table, start}, start of each trial's rows
const column = (name) => trials.by.get(name);
const idOf = (i) => data.trial_ids[i];
const varies = (c) => !c.values || c.values.length > 1;
const title = (i) => params.map((c) => `${c.label} ${format(c.get(i), 6)}`).join(", ") || idOf(i);
const stateText = (i) => (state.get(i) === "ok" ? "" : `${state.get(i)}${data.errors[i] ? `: ${clean(data.errors[i], 300)}` : ""}`);

function adopt(next) {                                  // makes these the page's data; view, filters and pin stay
  const pinned = pin >= 0 ? idOf(pin) : view.pin;
  data = next;
  if (!server) marks = data.marks ?? marks;
  trials = data.tables.trials;
  n = trials.n;
  params = trials.columns.filter((c) => c.role === "param");
  metrics = trials.columns.filter((c) => c.role === "metric");
  grouping = params.filter((c) => c.name !== data.sweep.replicate && varies(c));
  state = column("state");
  isOk = state.values.map((value) => value === "ok" || value === "unconverged");
  indexOf = new Map(data.trial_ids.map((id, i) => [id, i]));
  for (const c of trials.columns) if (c.isNumber) measure(c);
  const kept = Object.fromEntries(Object.entries(rows).map(([name, { table }]) => [name, table]));
  adoptRows(server ? kept : data.tables);
  for (const cache of [groupCache, layoutCache, positionCache]) cache.clear();
  misses = new Uint8Array(n);
  selected = new Int32Array(n);
  sortedOnce = { key: null, order: null };
  pin = indexOf.get(pinned) ?? -1;
  hover = -1;
}

function measure(c) {                                   // extent of the finite values, and whether its axis is logarithmic
  let lo = Infinity, hi = -Infinity, positive = Infinity;
  for (const v of c.values ?? c.data) {
    if (!Number.isFinite(v)) continue;
    if (v < lo) lo = v;
    if (v > hi) hi = v;
    if (v > 0 && v < positive) positive = v;
  }
  if (lo > hi) [lo, hi] = [0, 1];
  const log = c.role === "param" ? lo > 0 && hi / lo > 4 : (c.log ?? (lo > 0 && hi / lo > 30));
  Object.assign(c, { lo: log && lo <= 0 ? positive : lo, hi, log: log && hi > 0 });
}

function adoptRows(tables) {
  rows = {};
  for (const name of ["curves", "measured", "layers"]) {
    const table = tables[name];
    if (!table) continue;
    const start = new Int32Array(n + 1), trial = table.by.get("trial").data;
    for (let r = 0; r < table.n; r++) start[trial[r] + 1]++;
    for (let i = 0; i < n; i++) start[i + 1] += start[i];
    rows[name] = { table, start };
  }
}

const valueColumns = (source) => (source?.table.columns ?? []).filter((c) => !["trial", "step", "layer"].includes(c.name));
const curveSource = (name) => [rows.curves, rows.measured].find((source) => source?.table.by.has(name) && !["trial", "step"].includes(name));
const curveNames = () => [...new Set([...valueColumns(rows.curves), ...valueColumns(rows.measured)].map((c) => c.name))];

// -------------------------------------------------------------------------------------------- view state
// Everything that changes the picture, except what the pointer hovers over, lives in `view` and `filters`, and both in the address.

const view = {};
let defaults = {};
const filters = new Map();                              // column name -> {set: Set} or {lo, hi}

function setDefaults() {                                // what nobody has changed follows, as the first rows arrive
  const { sweep } = data, former = defaults, other = (...names) => grouping.find((c) => !names.includes(c.name))?.name ?? "";
  const has = (name) => (name && column(name) ? name : "");
  const y = has(sweep.y), x = has(sweep.x) || grouping.find((c) => c.isNumber)?.name || "";
  const colour = has(sweep.colour) || other(x), facet = has(sweep.facet) || (sweep.colour ? "" : other(x, colour));
  const small = (name) => (column(name)?.values?.length <= 9 ? name : "");
  const numbers = trials.columns.filter((c) => c.isNumber).map((c) => c.name);
  const sx = numbers.find((name) => sweep.axes.includes(name) && name !== y) ?? numbers.find((name) => name !== y) ?? "";
  defaults = {
    x, y, colour, facet: small(facet), drop: "", band: "1", theme: "", pin: "", sort: "", expression: "",
    curve: curveNames()[0] ?? "", curveX: "step", curveMode: "mean", curveLog: "xy", curveFacet: "", smooth: "0",
    layerY: valueColumns(rows.layers)[0]?.name ?? "", layerX: "layer", layerColour: x || colour,
    sx, sy: y || numbers[0] || "", sc: x || "state", pc: colour || "state",
    ...Object.fromEntries(panels.filter((panel) => panel.zoom).map((panel) => [panel.zoom.key, ""])),
  };
  for (const key in defaults) if (view[key] === undefined || view[key] === former[key]) view[key] = defaults[key];
}

// A filter of a column that is named like a part of the view has an underscore before its name.
const filterKey = (name) => (name in defaults || name.startsWith("_") ? `_${name}` : name);
const filterName = (key) => (key in defaults ? "" : key.startsWith("_") ? key.slice(1) : key);
const asWord = (value) => encodeURIComponent(String(value));

function readAddress() {
  Object.assign(view, defaults);
  filters.clear();
  for (const [key, text] of new URLSearchParams(place.read())) {
    const c = column(filterName(key));
    if (key in defaults) view[key] = text;
    else if (c && text.includes("..")) {
      const [lo, hi] = text.split("..").map((part) => Number(part.replace("inf", "Infinity")));
      if (lo <= hi) filters.set(c.name, { lo, hi });
    } else if (c?.values) {
      const wanted = new Set(text.split(","));
      filters.set(c.name, { set: new Set(c.values.filter((value) => wanted.has(asWord(value)))) });
    }
  }
  themed.dataset.theme = view.theme === "dark" || view.theme === "light" ? view.theme : "";
}

function writeAddress() {
  const address = new URLSearchParams(), end = (v) => String(Number.isFinite(v) ? +v.toPrecision(6) : v).replace("Infinity", "inf");
  for (const key in defaults) if (view[key] !== defaults[key]) address.set(key, view[key]);
  for (const [name, f] of filters) {
    address.set(filterKey(name), f.set ? [...f.set].map(asWord).join(",") : `${end(f.lo)}..${end(f.hi)}`);
  }
  place.write(address.toString().replaceAll("%2C", ",").replaceAll("%2F", "/"));
}

function setView(changes) {
  for (const { zoom } of panels) if (zoom?.axes.some((name) => name in changes)) view[zoom.key] = "";
  Object.assign(view, changes);
  if ("expression" in changes) applyExpression();
  collect();
  writeAddress();
  refreshControls();
  schedule();
}

// ------------------------------------------------------------------------------------------------ filter
// A mask per filtered column, with 1 for each trial that fails, and one for the expression. A brush computes one mask: O(n).

const masks = new Map();
let misses, selected, selectedCount = 0, expressionError = "";

function applyMask(name, passes) {
  const mask = new Uint8Array(n);
  for (let i = 0; i < n; i++) mask[i] = passes(i) ? 0 : 1;
  masks.set(name, mask);
}

function applyFilter(name) {
  const f = filters.get(name), c = column(name);
  if (!f || !c) masks.delete(name);
  else if (f.set) {
    const keep = c.values.map((value) => f.set.has(value));
    applyMask(name, (i) => keep[c.data[i]]);
  } else applyMask(name, (i) => c.get(i) >= f.lo && c.get(i) <= f.hi);
}

const OPERATORS = {
  "<": (v, x) => v < x, ">": (v, x) => v > x, "<=": (v, x) => v <= x, ">=": (v, x) => v >= x,
  "=": (v, x, raw) => v === x || String(v) === raw, "!=": (v, x, raw) => v !== x && String(v) !== raw,
};

function applyExpression() {                            // depth>=8 nc1<0.1 state=ok -seed=2 "words match the title"
  const tests = [];
  expressionError = "";
  for (const word of view.expression.match(/-?[^\s<>=!]+\s*(<=|>=|!=|=|<|>)\s*\S+|\S+/g) ?? []) {
    const [, minus, name, operator, raw] = word.match(/^(-?)([^\s<>=!]+)\s*(<=|>=|!=|=|<|>)\s*(.+)$/) ?? [];
    if (!operator) {
      tests.push((i) => title(i).includes(word) || state.get(i) === word || idOf(i).startsWith(word) || marksOf(i).tags.includes(word));
    } else if (name === "tag" && /^!?=$/.test(operator)) {
      tests.push((i) => marksOf(i).tags.includes(raw) !== (operator === "!=") !== (minus === "-"));
    } else if (column(name)) {
      const c = column(name), value = c.isNumber ? Number(raw) : raw, test = OPERATORS[operator];
      tests.push((i) => test(c.get(i), value, raw) !== (minus === "-"));
    } else expressionError = `no column ${clean(name)}`;
  }
  if (tests.length) applyMask("", (i) => tests.every((test) => test(i))); else masks.delete("");
}

function collect() {
  selectedCount = 0;
  misses.fill(0);
  for (const mask of masks.values()) for (let i = 0; i < n; i++) misses[i] |= mask[i];
  for (let i = 0; i < n; i++) if (misses[i] === 0) selected[selectedCount++] = i;
}

function applyAll() {
  masks.clear();
  for (const name of filters.keys()) applyFilter(name);
  applyExpression();
  collect();
}

function filterBy(name, f) {
  if (f) filters.set(name, f); else filters.delete(name);
  applyFilter(name);
  collect();
  writeAddress();
  schedule();
}

const toggled = (set, value) => new Set(set.has(value) ? [...set].filter((other) => other !== value) : [...set, value]);

function toggleValue(name, value) {                     // the first click keeps one value, the next ones add or remove
  const c = column(name), next = toggled(filters.get(name)?.set ?? new Set(), value);
  filterBy(name, next.size === 0 || next.size === c.values.length ? null : { set: next });
}

// ------------------------------------------------------------------------------- scales, colours, groups

function ticksOf({ log, lo, hi, from, to }, spacing = 60) {
  const room = Math.max(2, Math.abs(to - from) / spacing), ticks = [];
  if (log && hi / lo >= 8) {
    const decades = Math.log10(hi / lo), every = Math.max(1, Math.ceil(decades / room));
    const within = decades < room / 3 ? [1, 2, 5] : decades < room / 1.6 ? [1, 3] : [1];
    for (let e = Math.floor(Math.log10(lo)); e <= Math.ceil(Math.log10(hi)); e++) {
      if (every > 1 && e % every) continue;
      for (const m of within) { const v = m * 10 ** e; if (v >= lo * 0.999 && v <= hi * 1.001) ticks.push(v); }
    }
    return ticks;
  }
  const raw = (hi - lo) / room, base = 10 ** Math.floor(Math.log10(raw));
  const step = base * ([1, 2, 5, 10].find((m) => base * m >= raw) ?? 10);
  for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi + step * 1e-9 && ticks.length < 100; k++) ticks.push(+(k * step).toPrecision(12));
  return ticks;
}

// Ordered values: indigo to amber, in order of lightness and along the blue-yellow axis, which all common colour
// vision deficiencies keep. Unordered: near Okabe and Ito. Both are CSS variables, so themes exchange them.
const channels = (hex) => [1, 3, 5].map((k) => parseInt(hex.trim().slice(k, k + 2), 16));
const hexToRgb = (hex) => `rgb(${channels(hex).join(",")})`;
const alpha = (rgb, a) => rgb.replace("rgb(", "rgba(").replace(")", `,${a})`);
const css = (name) => getComputedStyle(themed).getPropertyValue(name).trim();
let palette;

function readPalette() {
  const stops = css("--ramp").split(",").map(channels);
  const ramp = (t) => {
    const at = Math.min(Math.max(t, 0), 1) * (stops.length - 1), k = Math.min(Math.floor(at), stops.length - 2);
    return `rgb(${stops[k].map((v, j) => Math.round(v + (stops[k + 1][j] - v) * (at - k))).join(",")})`;
  };
  const kinds = css("--kinds").split(",").map((text) => hexToRgb(text.trim()));
  palette = { ramp, kinds, ink: css("--ink"), faint: css("--faint"), page: css("--page") };
}

// Groups of trials by a column: its values as they are, or at most six classes of about the same size.
const MAX_GROUPS = 12, groupCache = new Map();
const ONE_GROUP = { name: "", label: "", labels: [""], values: [null], code: () => 0, colour: () => hexToRgb(palette.ink) };

function groupsOf(name) {
  const c = column(name);
  if (!c) return ONE_GROUP;
  if (!groupCache.has(name)) groupCache.set(name, makeGroups(c));
  return groupCache.get(name);
}

function makeGroups(c) {
  const { name, label } = c, kind = (k) => palette.kinds[k % palette.kinds.length], ramp = (count) => (k) => palette.ramp(k / Math.max(1, count - 1));
  if (c.values?.length <= MAX_GROUPS) {
    const { values } = c, colour = c.isNumber ? ramp(values.length) : kind;
    return { name, label, values, labels: values.map((v) => format(v, 6)), code: (i) => c.data[i], colour };
  }
  if (c.isNumber) {
    const sorted = Float64Array.from({ length: n }, (_, i) => c.get(i)).filter(Number.isFinite).sort();
    const cuts = [...new Set([1, 2, 3, 4, 5].map((k) => sorted[Math.floor((sorted.length * k) / 6)]))].filter((cut) => cut > sorted[0]);
    const codes = Uint8Array.from({ length: n }, (_, i) => cuts.filter((cut) => c.get(i) >= cut).length);
    const labels = [sorted[0] ?? NaN, ...cuts].map((edge) => `≥ ${format(edge, 2)}`);
    return { name, label, values: labels, labels, code: (i) => codes[i], colour: ramp(labels.length), isClasses: true };
  }
  const counts = new Uint32Array(c.values.length);      // the most frequent words, and one group of all others
  for (let i = 0; i < n; i++) counts[c.data[i]]++;
  const often = [...counts.keys()].sort((a, b) => counts[b] - counts[a]).slice(0, 5), code = new Map(often.map((value, k) => [value, k]));
  const values = [...often.map((k) => c.values[k]), null], labels = [...often.map((k) => format(c.values[k], 6)), "others"];
  return { name, label, values, labels, code: (i) => code.get(c.data[i]) ?? often.length, colour: kind, isClasses: true };
}

// Student's t, 97.5 %: exact to 3 digits for df <= 10, then an expansion.
const T975 = [, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
const studentT = (df) => T975[df] ?? 1.96 + 2.372 / df + 2.82 / df ** 2;

function line(xs, ys) {                                 // least squares
  const mx = mean(xs), my = mean(ys);
  let xy = 0, xx = 0;
  for (let k = 0; k < xs.length; k++) { xy += (xs[k] - mx) * (ys[k] - my); xx += (xs[k] - mx) ** 2; }
  return { slope: xy / xx, intercept: my - (xy / xx) * mx };
}

// At most `most` of the indices 0..count-1, evenly.
function pick(count, most) {
  return count <= most ? [...Array(count).keys()] : Array.from({ length: most }, (_, k) => Math.round((k * (count - 1)) / (most - 1)));
}

// ----------------------------------------------------------------------------------------------- drawing

const panels = [];
let pending = false;

function schedule(only) {                               // one redraw per frame, of the panels in sight
  for (const panel of panels) if (!only || panel === only) panel.dirty = true;
  if (!pending) { pending = true; requestAnimationFrame(redraw); }
}

function redraw() {
  pending = false;
  if (!data) return;
  for (const panel of panels) {
    if (!panel.dirty || !panel.visible) continue;
    panel.dirty = false;
    panel.draw();
    panel.overlay?.();
  }
  root.dispatchEvent(new Event("redrawn"));
}

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) panels.find((p) => p.host === entry.target).visible = entry.isIntersecting;
  if (panels.some((p) => p.visible && p.dirty)) schedule({});
}, { rootMargin: "200px" });

// A panel: `draw` makes its figure, `overlay` marks trials in it, `find` returns the trial at a point with a line for its tip,
// `drag` starts a drag by {move, end}, `click` may take a click, and `values` returns the rows of its CSV. `zoom` has the part
// of the view that holds its range, and the parts that name its axes. `areas` are the scales of what is drawn.
function addPanel(host, parts) {
  const panel = { host, areas: [], dirty: true, visible: false, ...parts };
  panels.push(panel);
  watcher.observe(host);
  new ResizeObserver(() => {
    if (host.clientWidth !== panel.width) schedule(panel);
    panel.width = host.clientWidth;
  }).observe(host);
  if (panel.find) listenToPointer(panel);
  if (panel.zoom) listenToZoom(panel);
  return panel;
}

let drag = null, wasDragged = false;                    // of the pressed pointer: {x, y, moved, isBox, move, end}; no click follows

function listenToPointer(panel) {
  const { host } = panel;
  host.addEventListener("pointerdown", (event) => {
    const at = local(host, event), started = event.pointerType !== "touch" && (event.shiftKey ? startZoom(panel, ...at) : panel.drag?.(...at));
    wasDragged = false;
    if (!started) return;
    drag = { x: at[0], y: at[1], moved: false, ...started };
    host.setPointerCapture(event.pointerId);
  });
  host.addEventListener("pointermove", (event) => {
    const [px, py] = local(host, event);
    if (drag) {
      drag.moved ||= Math.abs(px - drag.x) + Math.abs(py - drag.y) > 6;
      if (!drag.moved) return;
      drag.move?.(px, py);
      if (drag.isBox) drawBox(host, drag.x, drag.y, px, py);
    } else if (!event.target.closest(".label, .tick")) {
      const near = panel.find(px, py);
      setHover(near?.i ?? -1);
      showTip(event, near && [title(near.i), near.text, stateText(near.i)]);
    }
  });
  const stop = (event) => {
    wasDragged = drag?.moved;
    if (wasDragged && event.type === "pointerup") drag.end?.(...local(host, event));
    $(".box", host)?.remove();
    drag = null;
  };
  host.addEventListener("pointerup", stop);
  host.addEventListener("pointercancel", stop);
  host.addEventListener("click", (event) => {
    const at = local(host, event);
    if (!wasDragged && !event.shiftKey && !event.target.closest(".tick") && !panel.click?.(...at)) setPin(panel.find(...at)?.i ?? -1);
  });
  host.addEventListener("pointerleave", () => { if (!drag) { setHover(-1); showTip(); } });
}

function drawBox(host, x0, y0, x1, y1) {                // the rectangle of a drag
  const box = $(".box", host) ?? host.appendChild(h("div", { class: "box" })), [left, top] = [Math.min(x0, x1), Math.min(y0, y1)];
  box.style.cssText = `left:${left}px;top:${top}px;width:${Math.abs(x1 - x0)}px;height:${Math.abs(y1 - y0)}px`;
}

// Zoom: the view holds `x0..x1,y0..y1` in the panel's own units, so that live rows and filters leave it alone.
const areaAt = (panel, px, py) => panel.areas.find(([sx, sy]) => px >= sx.from - 8 && px <= sx.to + 8 && py >= sy.to - 8 && py <= sy.from + 8);

function zoomedRanges(panel, x, y) {                    // the ranges of both axes, and whether they are zoomed
  const parts = view[panel.zoom.key].split(",").map((part) => part.split("..").map(Number)), whole = [x, y];
  const isRange = ([lo, hi], k) => lo < hi && hi < Infinity && (lo > 0 || !(whole[k][0] > 0));
  const isZoomed = parts.length === 2 && parts.every(isRange);
  panel.areas = [];
  $(".reset", panel.host.closest("section")).hidden = !isZoomed;
  return isZoomed ? [...parts, true] : [x, y, false];
}

function zoomTo(panel, [sx, sy], left, top, right, bottom) {
  const ends = [sx.invert(left), sx.invert(right), sy.invert(bottom), sy.invert(top)].map((v) => +v.toPrecision(6)), [x0, x1, y0, y1] = ends;
  if (x0 < x1 && y0 < y1 && ends.every(Number.isFinite)) setView({ [panel.zoom.key]: `${x0}..${x1},${y0}..${y1}` });
}

function zoomBy(panel, area, factor, px, py) {          // keeps the point in its place
  const [sx, sy] = area, to = (edge, at) => at + (edge - at) * factor;
  zoomTo(panel, area, to(sx.from, px), to(sy.to, py), to(sx.to, px), to(sy.from, py));
}

function startZoom(panel, x0, y0) {
  const area = panel.zoom && areaAt(panel, x0, y0);
  const end = (x1, y1) => zoomTo(panel, area, Math.min(x0, x1), Math.min(y0, y1), Math.max(x0, x1), Math.max(y0, y1));
  return area && { isBox: true, end };
}

const unzoom = (panel) => setView({ [panel.zoom.key]: "" });
const KEY_STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function listenToZoom(panel) {
  const { host } = panel, name = host.closest("section").id;
  Object.assign(host, { tabIndex: 0, role: "group", ariaLabel: `${name}: + and - zoom, Shift and arrow keys move, 0 shows all` });
  $(".reset", host.closest("section")).addEventListener("click", () => unzoom(panel));
  host.addEventListener("dblclick", () => { if (view[panel.zoom.key]) unzoom(panel); else panel.clear?.(); });
  host.addEventListener("wheel", (event) => {           // also the pinch of a touch pad
    const at = local(host, event), area = event.ctrlKey && areaAt(panel, ...at);
    if (!area) return;
    event.preventDefault();
    zoomBy(panel, area, event.deltaY > 0 ? 1.25 : 0.8, ...at);
  }, { passive: false });
  host.addEventListener("keydown", (event) => {
    const [area] = panel.areas, by = event.shiftKey && KEY_STEPS[event.key], factor = { "+": 0.8, "=": 0.8, "-": 1.25, 0: 1 }[event.key];
    if (event.ctrlKey || event.metaKey || !area || !(by || factor)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "0") return unzoom(panel);
    const [{ from: left, to: right }, { from: bottom, to: top }] = area;
    if (factor) return zoomBy(panel, area, factor, (left + right) / 2, (top + bottom) / 2);
    const [dx, dy] = [by[0] * (right - left) * 0.2, by[1] * (bottom - top) * 0.2];
    zoomTo(panel, area, left + dx, top + dy, right + dx, bottom + dy);
  });
}

function axes(svg, x, y, { xTicks, yTicks, xLabel, yLabel, labelY = true, xText = format, yText = format }) {
  const bottom = Math.max(y.from, y.to), g = s("g", { class: "axes" });
  g.append(s("path", { d: `M${x.from},${bottom + 6}H${x.to}` }), s("path", { d: `M${x.from - 6},${y.from}V${y.to}` }));
  for (const t of xTicks) {
    g.append(s("path", { d: `M${x(t)},${bottom + 6}v4` }), s("text", { x: x(t), y: bottom + 22, "text-anchor": "middle" }, xText(t)));
  }
  for (const t of yTicks) {
    g.append(s("path", { d: `M${x.from - 6},${y(t)}h-4` }));
    if (labelY) g.append(s("text", { x: x.from - 13, y: y(t) + 4, "text-anchor": "end" }, yText(t)));
  }
  if (xLabel) g.append(s("text", { x: x.to, y: bottom + 38, "text-anchor": "end", class: "name" }, xLabel));
  if (yLabel) g.append(s("text", { x: Math.max(0, x.from - 40), y: y.to - 12, class: "name" }, yLabel));
  svg.append(g);
}

function svgIn(host, width, height, label, role = "img") {
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role, "aria-label": label });
  host.replaceChildren(svg);
  return svg;
}

function canvasIn(host, width, height, className) {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  const canvas = h("canvas", { width: width * ratio, height: height * ratio, style: `width:${width}px;height:${height}px`, class: className });
  const context = canvas.getContext("2d");
  host.append(canvas);
  context.scale(ratio, ratio);
  context.lineJoin = "round";
  return context;
}

function frame(host, height, label, margin) {           // canvas for marks, SVG for axes, canvas for the highlight
  const width = host.clientWidth, { plot } = host;
  host.style.height = `${height}px`;
  if (plot?.width === width && plot.height === height) {
    for (const context of [plot.marks, plot.over]) context.clearRect(0, 0, width, height);
    plot.svg.replaceChildren();
  } else {
    const svg = svgIn(host, width, height, label), [marks, over] = ["ground", "over"].map((name) => canvasIn(host, width, height, name));
    host.plot = { width, height, marks, svg, over };
  }
  return Object.assign(host.plot, { left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom });
}

// A rectangle that what is drawn may not leave.
function clipTo(context, sx, sy) {
  context.save();
  context.beginPath();
  context.rect(sx.from - 4, sy.to - 4, sx.to - sx.from + 8, sy.from - sy.to + 8);
  context.clip();
}

// Strokes the hovered and the pinned trial on the canvas of a panel, within the area that `areaOf` returns for a trial.
function strokeMarked(panel, trace, areaOf) {
  const { over, width, height } = panel.host.plot;
  over.clearRect(0, 0, width, height);
  for (const i of marked()) {
    const area = areaOf(i);
    if (!area) continue;
    clipTo(over, ...area);
    for (const [strokeStyle, lineWidth] of [[palette.page, 5], [palette.ink, 2]]) {
      over.beginPath();
      Object.assign(over, { strokeStyle, lineWidth });
      trace(over, i, area);
      over.stroke();
    }
    over.restore();
  }
}

const empty = (svg, text) => svg.append(s("text", { x: 0, y: 40, class: "name" }, text));
const swatch = (x, y, groups, code, most) => [s("circle", { class: "mean", style: `--c:${groups.colour(code)}`, cx: x, cy: y, r: 3.1 }),
  s("text", { x: x + 7, y: y + 4 }, shortLabel(groups.labels[code], most))];

function spread(items, gap, lo, hi) {                   // pushes labels at the ends of lines apart, so that none overlaps
  items.sort((a, b) => a.y - b.y);
  for (const item of items) item.at = item.y;
  for (let pass = 0; pass < 40; pass++) {
    for (let k = 1; k < items.length; k++) {
      const overlap = gap - (items[k].at - items[k - 1].at);
      if (overlap > 0) { items[k].at += overlap / 2; items[k - 1].at -= overlap / 2; }
    }
    for (const item of items) item.at = Math.min(Math.max(item.at, lo), hi);
  }
}

const tip = $("#tip");
function showTip(event, lines) {
  if (!lines) { tip.hidden = true; return; }
  tip.replaceChildren(h("b", {}, lines[0]), ...lines.slice(1).filter(Boolean).map((text) => h("span", {}, text)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
}

// One selection: the trial under the pointer (hover) and the trial that was clicked (pin).
let hover = -1, pin = -1, hoverGroup = null;

function setHover(i, group = null) {
  if (i === hover && group === hoverGroup) return;
  hover = i;
  hoverGroup = group;
  drawOverlays();
}

function drawOverlays() {
  for (const panel of panels) if (panel.visible) panel.overlay?.();
}

function setPin(i) {
  pin = i;
  view.pin = i < 0 ? "" : idOf(i);
  writeAddress();
  drawPin();
  drawOverlays();
}

const valueText = (name, i) => `${column(name).label} ${format(column(name).get(i))}`;
const marked = () => [...new Set([pin, hover])].filter((i) => i >= 0);

function local(host, event) {
  const box = host.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function nearest(count, at, px, py, within) {           // which of some points is nearest, or -1
  let best = -1, distance = within ** 2;
  for (let k = 0; k < count; k++) {
    const [x, y] = at(k), d = (x - px) ** 2 + (y - py) ** 2;
    if (d < distance) { distance = d; best = k; }
  }
  return best;
}

// ------------------------------------------------------------------------------------------------- rates
// A cell is one line of the figure: a value of `facet` and one of `colour`. Replicates share all parameters but x.

const MAX_PANELS = 9, MAX_LINES = 8, MAX_LEVELS = 40;   // an x of more values is continuous: dots, and one line through all
const dropped = () => new Set(view.drop ? view.drop.split(",").map(Number) : []);
const layoutCache = new Map();

function rateLayout() {                                 // where each trial goes; depends on the choice of axes alone
  const key = JSON.stringify([view.x, view.colour, view.facet]);
  if (layoutCache.has(key)) return layoutCache.get(key);
  const x = column(view.x), colour = groupsOf(view.colour), facet = groupsOf(view.facet);
  const rest = params.filter((c) => ![view.x, view.colour, view.facet].includes(c.name)), numbers = new Map();
  const replicate = Int32Array.from({ length: n }, (_, i) => {
    const id = rest.map((c) => c.data[i]).join();
    if (!numbers.has(id)) numbers.set(id, numbers.size);
    return numbers.get(id);
  });
  const isContinuous = !x?.values || x.values.length > MAX_LEVELS, across = colour.labels.length;
  const mixed = isContinuous ? [] : rest.filter((c) => c.name !== data.sweep.replicate && varies(c)).map((c) => c.label);
  const cellOf = Int32Array.from({ length: n }, (_, i) => facet.code(i) * across + colour.code(i));
  const levels = x ? new Map([...new Set(x.values ?? x.data)].map((v, k) => [v, k])) : null;
  const levelOf = !x || x.values ? x?.data : Int32Array.from(x.data, (v) => levels.get(v));
  const layout = { x, colour, facet, replicate, replicates: numbers.size, isContinuous, mixed, cellOf, levelOf };
  layoutCache.set(key, layout);
  return layout;
}

function rateCells() {
  const layout = rateLayout(), { x, colour, cellOf, levelOf } = layout, y = column(view.y);
  const out = dropped(), left = new Map(), cells = [], across = colour.labels.length;
  const count = (reason) => left.set(reason, (left.get(reason) ?? 0) + 1);
  for (let k = 0; x && y && k < selectedCount; k++) {
    const i = selected[k], v = y.get(i), at = x.get(i);
    if (!isOk[state.data[i]]) count(state.get(i));
    else if (!(v > 0 && at > 0 && v < Infinity && at < Infinity)) count("without a positive value");
    else {
      const code = cellOf[i], cell = (cells[code] ??= { f: Math.floor(code / across), c: code % across, at: [], trials: [] });
      const point = (cell.at[levelOf[i]] ??= { x: at, out: out.has(at), logs: [], trial: [] });
      point.logs.push(Math.log(v));
      point.trial.push(i);
      cell.trials.push(i);
    }
  }
  const reference = referenceFits(layout), unconverged = state.values.indexOf("unconverged");
  const made = cells.filter(Boolean).map((cell) => {
    const points = cell.at.filter(Boolean).sort((a, b) => a.x - b.x);
    for (const point of points) Object.assign(point, { mean: mean(point.logs), lo: Math.min(...point.logs), hi: Math.max(...point.logs) });
    const used = points.filter((p) => !p.out), server = reference?.find((row) => isOfCell(row, layout, cell));
    const fit = server ? serverFit(server) : fitPower(seedsOf(used, layout), used);
    return { ...cell, points, fit, unconverged: cell.trials.filter((i) => state.data[i] === unconverged).length };
  });
  return { ...layout, cells: made, left, isServer: Boolean(reference), headline: reference?.[0]?.headline };
}

function seedsOf(points, { replicate, replicates }) {   // the values of each replicate, over ascending x
  const place = new Int32Array(replicates), seeds = [];
  for (const { x, logs, trial } of points) {
    const at = Math.log(x);
    for (let k = 0; k < logs.length; k++) {
      const id = replicate[trial[k]], seed = place[id] ? seeds[place[id] - 1] : { xs: [], ys: [] };
      if (!place[id]) place[id] = seeds.push(seed);
      seed.xs.push(at);
      seed.ys.push(logs[k]);
    }
  }
  return seeds;
}

// The mean of the slopes of whole seeds, with a t interval over them. Whether a power law describes the means is judged by
// depthrate fit alone, whose fits come as rows with a state.
function fitPower(seeds, points) {
  const whole = seeds.filter((seed) => seed.xs.length === points.length && points.length >= 3);
  if (points.length < 3) return { why: `${points.length} values` };
  const lines = whole.map((seed) => line(seed.xs, seed.ys));
  const average = (name) => mean(lines.map((l) => l[name]));
  const pooled = lines.length ? { slope: average("slope"), intercept: average("intercept") }
    : line(seeds.flatMap((seed) => seed.xs), seeds.flatMap((seed) => seed.ys));
  const fit = { a: -pooled.slope, intercept: pooled.intercept, lo: null, hi: null, whole: lines.length, partial: seeds.length - lines.length };
  if (lines.length >= 3) {
    const deviation = Math.sqrt(lines.reduce((sum, l) => sum + (l.slope - pooled.slope) ** 2, 0) / (lines.length - 1) / lines.length);
    const half = studentT(lines.length - 1) * deviation;
    Object.assign(fit, { lo: fit.a - half, hi: fit.a + half });
  }
  const means = points.map((p) => p.mean), middle = mean(means);
  const off = points.map((p) => p.mean - pooled.intercept - pooled.slope * Math.log(p.x));
  fit.r2 = 1 - off.reduce((sum, v) => sum + v * v, 0) / means.reduce((sum, v) => sum + (v - middle) ** 2, 0);
  return { ...fit, why: "not judged" };
}

function serverFit(row) {
  const { why } = row;
  const form = row.form[0].map((x, k) => ({ x, mean: Math.log(row.form[1][k]) }));
  if (row.exponent == null) return { why, row, form };
  return { a: row.exponent, lo: row.ci_low, hi: row.ci_high, intercept: Math.log(row.prefactor), r2: row.r2, why, row, form };
}

const groupNames = ({ colour, facet }) => [...new Set([facet.name, colour.name].filter(Boolean))];
const isOfCell = (row, { colour, facet }, cell) => (!colour.name || row.by[colour.name] === colour.values[cell.c])
  && (!facet.name || row.by[facet.name] === facet.values[cell.f]);

function referenceFits(layout) {                        // fits by the rules of `depthrate fit` of exactly this view, or null
  const by = groupNames(layout);
  if (layout.colour.isClasses || layout.facet.isClasses || !layout.x) return null;
  if (!view.drop && selectedCount === n) {
    const fits = data.fits.filter((row) => row.is_plain && [row.metric, `last_${row.metric}`].includes(view.y) && row.x === view.x
      && Object.keys(row.by).length === by.length && by.every((name) => name in row.by));
    if (fits.length) return fits;
  }
  return server ? server.fits({ metric: view.y, x: view.x, by, drop: [...dropped()], keep: parameterFilters() }) : null;
}

function parameterFilters() {                           // column -> values, or null if something else is filtered
  const keep = {};
  for (const [name, f] of filters) { if (!f.set || column(name).role !== "param") return null; keep[name] = [...f.set]; }
  return view.expression ? null : keep;
}

const isLaw = (fit) => fit.row?.is_law === true;
const isUnjudged = (fit) => fit.a != null && !fit.row;  // computed in this page: shown with its exponent, but hollow
const groupState = (row) => row?.state_text ?? "no fit";
const groupText = (row, why = row.why) => `${groupState(row)}${why ? `: ${clean(why, 100)}` : ""}`;
const cellName = ({ colour, facet }, cell) => [facet.name && `${facet.label} ${facet.labels[cell.f]}`,
  colour.name && colour.name !== facet.name && `${colour.label} ${colour.labels[cell.c]}`].filter(Boolean).join(", ") || "all trials";

function describe(rate, cell) {
  const { fit } = cell, used = cell.points.filter((p) => !p.out), x = rate.x.label, { row } = fit;
  const local = used.slice(1).map((p, k) => fixed(-(p.mean - used[k].mean) / Math.log(p.x / used[k].x)));
  const excluded = row && Object.entries(row.excluded).map(([reason, count]) => `${count} ${reason}`).join(", ");
  return [cellName(rate, cell),
    (isLaw(fit) || isUnjudged(fit)) && `${column(view.y).label} ≈ ${format(Math.exp(fit.intercept))} ${x}^${fixed(-fit.a)}, 95 % ${interval(fit.lo, fit.hi)}, R² ${format(fit.r2 ?? NaN)}`,
    fit.why && `${fit.row ? groupText(fit.row) : "not judged by depthrate fit"}${local.length && !rate.isContinuous ? `; exponents between neighbours: ${pick(local.length, 8).map((k) => local[k]).join(", ")}` : ""}`,
    row ? `depthrate fit: ${row.n_trials} trials${row.over ? `, ${clean(row.over, 100)}` : ""}; preferred: ${clean(row.preferred, 120)}`
      : `${cell.trials.length} trials, ${fit.whole ?? 0} whole replicates${fit.partial ? `, ${fit.partial} with gaps` : ""}`,
    excluded && `excluded: ${clean(excluded, 200)}`, cell.unconverged > 0 && `${cell.unconverged} unconverged`];
}

const rates = addPanel($("#rates .pair .figure"), { draw: () => keepFocus(root, rates.host, drawRates), overlay: overlayRates, find: findRate, zoom: { key: "ratesZoom", axes: ["x", "y"] }, values: () => [
  ["group", view.x, "mean", "min", "max", "trials", "left_out", "exponent", "ci_low", "ci_high", "state"],
  ...rateState.cells.flatMap((cell) => cell.points.map((p) => [cellName(rateState, cell), p.x, ...[p.mean, p.lo, p.hi].map(Math.exp),
    p.logs.length, p.out, cell.fit.a, cell.fit.lo, cell.fit.hi, cell.fit.row?.state ?? cell.fit.why]))] });
let rateState = { cells: [] }, rateHits = [];

function drawRates() {
  rateState = rateCells();
  const { x, colour, facet, cells, isContinuous } = rateState, host = rates.host, width = host.clientWidth;
  const shownFacets = pick(facet.labels.length, MAX_PANELS).filter((f) => cells.some((cell) => cell.f === f));
  const shownColours = new Set(pick(colour.labels.length, MAX_LINES));
  const shown = cells.filter((cell) => shownFacets.includes(cell.f) && shownColours.has(cell.c));
  drawLegend($("#rates .legend"), colour, shownColours);
  const columns = Math.max(1, Math.min(shownFacets.length, Math.floor(width / 215), shownFacets.length === 4 ? 2 : 3));
  const lines = shown.length / Math.max(1, shownFacets.length), label = 94, left0 = 46;
  const cellWidth = (width - left0) / columns, cellHeight = Math.max(columns === 1 ? 250 : 300, 110 + lines * 27);
  const down = Math.ceil(shownFacets.length / columns);
  const svg = svgIn(host, width, Math.max(120, down * cellHeight), `${column(view.y)?.label} against ${x?.label}`, "group");
  rateHits = [];
  drawExponents();
  drawRateNote(cells.length - shown.length);
  drawAnswer();
  if (!shown.length) { empty(svg, "No trial of the selection has a positive value here."); return; }
  const logs = shown.flatMap((cell) => cell.points.flatMap((p) => [p.lo, p.hi])), out = dropped();
  for (const { fit, points } of shown) if (isLaw(fit) || isUnjudged(fit)) for (const p of points) logs.push(Math.log(onLine(fit, p.x)));
  const xs = shown.flatMap((cell) => [cell.points[0].x, cell.points.at(-1).x]);
  const whole = [[Math.min(...xs), Math.max(...xs)], [Math.exp(Math.min(...logs)), Math.exp(Math.max(...logs))]];
  const [xRange, yRange, isZoomed] = zoomedRanges(rates, ...whole);
  shownFacets.forEach((f, place) => {
    const x0 = left0 + (place % columns) * cellWidth, y0 = Math.floor(place / columns) * cellHeight, bottom = y0 + cellHeight - 52;
    const sx = makeScale(true, ...xRange, x0 + 6, x0 + cellWidth - label - 12), sy = makeScale(true, ...yRange, bottom, y0 + 40);
    const here = shown.filter((cell) => cell.f === f), g = s("g", {}), isFirst = place % columns === 0, clip = `clip${place}`;
    const inside = s("g", isZoomed ? { "clip-path": `url(#${clip})` } : {});
    rates.areas.push([sx, sy]);
    svg.append(g);
    if (isZoomed) g.append(s("clipPath", { id: clip }, s("rect", { x: sx.from - 4, y: sy.to - 4, width: sx.to - sx.from + 8, height: sy.from - sy.to + 8 })));
    if (facet.name) g.append(s("text", { x: x0, y: y0 + 14, class: "head" }, `${facet.label} ${facet.labels[f]}`));
    if (isFirst) g.append(s("text", { x: 0, y: y0 + (facet.name ? 14 : 24), class: "name" }, shortLabel(column(view.y).label, facet.name ? 7 : 40)));
    g.append(s("text", { x: sx.to, y: y0 + cellHeight - 12, "text-anchor": "end", class: "name" }, x.label));
    axes(g, sx, sy, { xTicks: isContinuous ? ticksOf(sx, 50) : [], yTicks: ticksOf(sy, 38), labelY: isFirst });
    if (!isContinuous) depthTicks(g, x, sx, bottom, out);
    for (const cell of here) inside.append(drawCell(cell, colour, sx, sy));
    g.append(inside);
    const labels = here.map((cell) => ({ cell, y: endOf(cell, sy) }));
    spread(labels, 27, y0 + 44, bottom - 10);
    for (const item of labels) g.append(drawRateLabel(item, colour, x0 + cellWidth - label - 6));
  });
}

function drawAnswer() {                                 // the figure in one sentence
  const { cells, headline } = rateState, best = cells.find((cell) => cell.fit.row?.is_steepest);
  const words = best ? [` Steepest: ${cellName(rateState, best)}, exponent `, h("b", {}, fixed(best.fit.a)), ` ${interval(best.fit.lo, best.fit.hi)}.`] : [];
  $("#rates .answer").hidden = !cells.length;
  $("#rates .answer").replaceChildren(headline ? h("b", {}, headline) : "Groups of this view are not judged: depthrate fit names their models", ".", ...words);
}

function depthTicks(g, x, sx, bottom, out) {            // one tick per value; a click leaves the value out
  let last = -Infinity;
  for (const v of [...x.values].filter((value) => value >= sx.lo * 0.999 && value <= sx.hi * 1.001).sort((a, b) => a - b)) {
    const isOut = out.has(v), near = sx(v) - last < 14;
    const toggle = () => setView({ drop: [...toggled(out, v)].sort((a, b) => a - b).join() });
    const onkeydown = (event) => { if (event.key !== "Enter" && event.key !== " ") return; event.preventDefault(); toggle(); };
    const attributes = { class: isOut ? "tick out" : "tick", role: "button", tabindex: 0, "data-x": v, "aria-pressed": String(isOut) };
    const button = s("g", { ...attributes, "aria-label": `leave out ${x.label} ${v}`, onclick: toggle, onkeydown },
      s("title", {}, isOut ? `use ${x.label} ${v} again` : `leave out ${x.label} ${v} and refit`),
      s("rect", { x: sx(v) - 9, y: bottom + 8, width: 18, height: 24 }), s("path", { d: `M${sx(v)},${bottom + 6}v4` }));
    if (!near) { button.append(s("text", { x: sx(v), y: bottom + 23, "text-anchor": "middle" }, format(v))); last = sx(v); }
    g.append(button);
  }
}

const onLine = (fit, x) => Math.exp(fit.intercept - fit.a * Math.log(x));
function endOf(cell, sy) {
  const y = sy(isLaw(cell.fit) || isUnjudged(cell.fit) ? onLine(cell.fit, cell.points.at(-1).x) : Math.exp(cell.points.at(-1).mean));
  return Math.min(Math.max(y, sy.to), sy.from);
}

function drawCell(cell, colour, sx, sy) {
  const { fit, points } = cell, used = points.filter((p) => !p.out), many = rateState.isContinuous;
  const g = s("g", { class: "cell", "data-group": cell.c, style: `--c:${colour.colour(cell.c)}` });
  const path = (list, value) => list.map((p) => `${sx(p.x)},${sy(value(p))}`);
  if (view.band === "1" && !many) {
    const edges = [...path(points, (p) => Math.exp(p.hi)), ...path(points, (p) => Math.exp(p.lo)).reverse()];
    g.append(s("path", { class: "band", d: `M${edges.join("L")}Z` }));
  }
  if (fit.form?.length) g.append(s("path", { class: "fit form", d: `M${path(fit.form, (p) => Math.exp(p.mean)).join("L")}` }));
  else if ((isLaw(fit) || isUnjudged(fit)) && used.length) g.append(s("path", { class: "fit", d: `M${path([used[0], used.at(-1)], (p) => onLine(fit, p.x)).join("L")}` }));
  else if (!many) g.append(s("path", { class: "join", d: `M${path(points, (p) => Math.exp(p.mean)).join("L")}` }));
  for (const p of many ? pick(points.length, 1500).map((k) => points[k]) : points) {
    for (const k of pick(p.logs.length, 12)) {          // at most 12 trials of a point answer to the pointer
      const [px, py] = [sx(p.x), sy(Math.exp(p.logs[k]))];
      if (px > sx.from - 5 && px < sx.to + 5 && py > sy.to - 5 && py < sy.from + 5) rateHits.push({ px, py, i: p.trial[k], cell });
      if (many || (p.logs.length > 1 && p.logs.length <= 6)) g.append(s("circle", { class: "seed", cx: px, cy: py, r: many ? 1.8 : 1.3 }));
    }
    if (!many) g.append(s("circle", { class: p.out || !isLaw(fit) ? "mean hollow" : "mean", cx: sx(p.x), cy: sy(Math.exp(p.mean)), r: 3.1 }));
  }
  return g;
}

const onCell = (cell) => ({                             // a line's label or dot: its whole story, the other colours dimmed
  onpointermove: (event) => { showTip(event, describe(rateState, cell)); setHover(-1, cell.c); },
  onpointerleave: () => { showTip(); setHover(-1); },
});

function drawRateLabel({ cell, at, y }, colour, x0) {
  const { fit } = cell, isApart = Math.abs(at - y) > 4, law = isLaw(fit);
  return s("g", { class: "label", "data-group": cell.c, style: `--c:${colour.colour(cell.c)}`, ...onCell(cell) },
    isApart && s("path", { class: "lead", d: `M${x0 - 4},${y}L${x0 + 6},${at - 4}` }),
    s("circle", { cx: x0 + 11, cy: at - 4, r: 3.1, class: law ? "mean" : "mean hollow" }),
    s("text", { x: x0 + 19, y: at, class: law ? null : "none" }, law || isUnjudged(fit) ? fixed(fit.a) : groupState(fit.row)),
    s("text", { x: x0 + 19, y: at + 12, class: "small" }, law || isUnjudged(fit) ? interval(fit.lo, fit.hi) : shortLabel(fit.why ?? "", 14)));
}

function drawLegend(host, groups, shown) {
  const key = (label, k) => h("button", { class: "key", style: `--c:${groups.colour(k)}`, title: groups.isClasses ? "" : `keep ${groups.label} ${label}`,
    onclick: () => !groups.isClasses && toggleValue(groups.name, groups.values[k]), onpointerenter: () => setHover(-1, k), onpointerleave: () => setHover(-1) },
  h("i"), label);
  const keys = groups.name ? groups.labels.map((label, k) => (shown && !shown.has(k) ? null : key(label, k))).filter(Boolean) : [];
  host.replaceChildren(groups.name && shown ? h("span", {}, groups.label) : "", ...keys);
}

function drawRateNote(hidden) {
  const { cells, left, mixed, x, isContinuous, isServer } = rateState, sum = (value) => cells.reduce((total, cell) => total + value(cell), 0);
  const unconverged = sum((cell) => cell.unconverged), label = x?.label;
  const chosen = metrics.filter((c) => filters.has(c.name) || view.expression.includes(c.name)).map((c) => c.label);
  const leftOut = [...left].map(([reason, count]) => `${counted(count)} ${reason}`).join(", ");
  const method = isServer ? "Exponents, intervals and states: depthrate fit. Hollow: another form, or none. Dashed: the preferred form. " : isContinuous
    ? "Exponents: one line through all dots, computed in this page; depthrate fit has the interval. "
    : `Exponent a of ${label}⁻ᵃ: mean of the slopes of single seeds, with Student’s t over whole seeds, 95 %, computed in this page; `
      + `depthrate fit also uses seeds with gaps, and judges which form holds. `;
  const parts = [
    mixed.length > 0 && h("b", {}, `Each line mixes values of ${mixed.join(", ")}: filter to one value, or use it as colour or panels. `),
    isContinuous ? "Dots: trials. " : "Dots: geometric means. Bands: range over seeds. ", method,
    chosen.length > 0 && h("b", {}, `The filter selects on results (${chosen.join(", ")}), which biases exponents. `),
    unconverged > 0 && h("b", {}, `${counted(unconverged)} of ${counted(sum((cell) => cell.trials.length))} trials are unconverged, so exponents describe this training budget. `),
    leftOut && `Left out: ${leftOut}. `, view.drop && `Left out by you: ${label} ${view.drop.replaceAll(",", ", ")}. `,
    hidden > 0 && `${hidden} more lines are not drawn (at most ${MAX_PANELS} panels of ${MAX_LINES}). `];
  $("#rates .note").replaceChildren(...parts.filter(Boolean));
}

function drawExponents() {                              // against the panels' parameter, or the colours' if there is one panel
  const host = $("#exponents .figure"), { colour, facet, cells } = rateState, width = host.clientWidth, height = 300;
  const svg = svgIn(host, width, height, "exponent against parameter"), main = facet.name ? facet : colour, right = width - 34;
  const fitted = cells.filter((cell) => cell.fit.a != null), mainCode = (cell) => (facet.name ? cell.f : cell.c);
  $("#exponents .name").textContent = main.label;
  $("#exponents").hidden = !main.name || fitted.length < 2;
  if ($("#exponents").hidden) return;
  const ends = fitted.some((cell) => isLaw(cell.fit)) ? fitted.filter((cell) => isLaw(cell.fit)) : fitted, half = (fit) => (fit.lo == null ? 0 : Math.min(fit.a - fit.lo, 0.5));
  const lo = Math.min(0.4, ...ends.map(({ fit }) => fit.a - half(fit))) - 0.04, hi = Math.max(0.6, ...ends.map(({ fit }) => fit.a + half(fit))) + 0.04;
  const sy = makeScale(false, lo, hi, height - 52, 40), inside = (v) => Math.min(Math.max(v, lo), hi);
  const numeric = !main.isClasses && main.values.every((v) => typeof v === "number"), log = numeric && main.values[0] > 0 && main.values.at(-1) / main.values[0] > 4;
  const position = (k) => (numeric ? main.values[k] : k), present = [...new Set(fitted.map(mainCode))].sort((a, b) => a - b);
  const sx = makeScale(log, position(present[0]), position(present.at(-1)), 68, right);
  const xTicks = pick(present.length, numeric ? 8 : 3).map((k) => position(present[k])), xText = (v) => (numeric ? format(v) : shortLabel(main.labels[v], 9));
  axes(svg, Object.assign(sx, { from: 58 }), sy, { xTicks, yTicks: ticksOf(sy, 44), xText, xLabel: main.label, yLabel: "" });
  for (const [v, text] of [[0.5, "½"], [1, "1"]]) {
    if (v <= lo || v >= hi) continue;
    svg.append(s("path", { class: "reference", d: `M${sx.from - 6},${sy(v)}H${right + 12}` }), s("text", { x: right + 14, y: sy(v) + 3, class: "small" }, text));
  }
  const lines = facet.name ? colour.labels.length : 1;
  for (let k = 0; k < lines; k++) {
    const cellsOfLine = fitted.filter((cell) => !facet.name || cell.c === k).sort((a, b) => mainCode(a) - mainCode(b));
    const at = (cell) => [sx(position(mainCode(cell))) + (k - (lines - 1) / 2) * Math.min(7, 30 / lines), sy(inside(cell.fit.a))];
    if (cellsOfLine.length) svg.append(s("path", { class: "join", style: facet.name ? `--c:${colour.colour(k)}` : "", d: pathOf(cellsOfLine, at) }));
    for (const cell of cellsOfLine) svg.append(drawExponent(cell, at(cell), colour, sy, inside));
  }
}

function drawExponent(cell, [px, py], colour, sy, inside) {
  const { fit } = cell, isBeyond = fit.a !== inside(fit.a), law = isLaw(fit);
  return s("g", { class: "cell", "data-group": cell.c, style: `--c:${colour.colour(cell.c)}`, ...onCell(cell) },
    fit.lo != null && law && s("path", { class: "bar", d: `M${px},${sy(inside(fit.lo))}V${sy(inside(fit.hi ?? fit.a))}` }),
    isBeyond ? s("text", { x: px, y: py + 4, "text-anchor": "middle", class: "small" }, fit.a > inside(fit.a) ? "▵" : "▿")
      : s("circle", { class: law ? "mean" : "mean hollow", cx: px, cy: py, r: 3.4 }),
    s("circle", { cx: px, cy: py, r: 12, fill: "transparent" }));
}

function overlayRates() {
  for (const g of $$("#rates [data-group]")) g.classList.toggle("dim", hoverGroup != null && g.dataset.group !== String(hoverGroup));
  const svg = $("svg", rates.host);
  svg?.querySelectorAll(".mark").forEach((node) => node.remove());
  for (const i of marked()) {
    const hit = rateHits.find((item) => item.i === i);
    if (!hit) continue;
    const { replicate, isContinuous } = rateState;
    const same = isContinuous ? [] : rateHits.filter((item) => item.cell === hit.cell && replicate[item.i] === replicate[i]);
    svg.append(s("g", { class: "mark" }, same.length > 1 && s("path", { d: `M${same.map((item) => `${item.px},${item.py}`).join("L")}` }),
      s("circle", { cx: hit.px, cy: hit.py, r: 5 })));
  }
}

function findRate(px, py) {
  const { i } = rateHits[nearest(rateHits.length, (k) => [rateHits[k].px, rateHits[k].py], px, py, 12)] ?? {};
  return i === undefined ? null : { i, text: valueText(view.y, i) };
}

// ------------------------------------------------------------------------------------- curves and layers
// Both are lines over the rows of a trial. `choose()` says which columns, axes, groups, panels and lines to draw.

const MAX_CURVES = 300;

function linePanel(host, label, zoom, choose) {
  let drawn = [], choice = null;
  const panel = addPanel(host, { draw, overlay, find, zoom, values: () => [["trial_id", ...params.map((c) => c.name), choice?.xName ?? "x", choice?.y.name ?? "y"],
    ...drawn.flatMap(({ i, xs, ys }) => xs.map((x, k) => [idOf(i), ...params.map((c) => c.get(i)), x, ys[k]]))] });
  function points(i) {
    const xs = [], ys = [], { start, y, x, logX, logY, smooth } = choice;
    let smoothed = null;
    for (let r = start[i]; r < start[i + 1]; r++) {
      const at = x(i, r), v = y.data[r];
      if (!Number.isFinite(v) || !Number.isFinite(at) || (logY && v <= 0) || (logX && at <= 0)) continue;
      const now = logY ? Math.log(v) : v;
      smoothed = smoothed == null ? now : smooth * smoothed + (1 - smooth) * now;
      xs.push(at);
      ys.push(smooth ? (logY ? Math.exp(smoothed) : smoothed) : v);
    }
    return { i, xs, ys };
  }
  function draw() {
    drawn = [];
    choice = choose();
    const note = $(".note", host.parentElement);
    if (!choice) {
      note.textContent = server?.isLoading ? "Loading the rows of the selection." : "No rows of the selected trials.";
      host.plot = null;
      empty(svgIn(host, host.clientWidth, 60, label), "");
      return;
    }
    const { start, groups, facet } = choice, withRows = [];
    for (let k = 0; k < selectedCount; k++) if (start[selected[k] + 1] > start[selected[k]]) withRows.push(selected[k]);
    drawn = pick(withRows.length, MAX_CURVES).map((k) => points(withRows[k])).filter((item) => item.xs.length);
    for (const item of drawn) Object.assign(item, { code: groups.code(item.i), f: facet.code(item.i) });
    note.textContent = `${trialsText(drawn.length, withRows.length)}. ${choice.note}`;
    const facets = pick(facet.labels.length, MAX_PANELS).filter((f) => drawn.some((item) => item.f === f)), width = host.clientWidth;
    const across = Math.max(1, Math.min(facets.length, Math.floor(width / 180))), down = Math.max(1, Math.ceil(facets.length / across));
    const cellHeight = facets.length > 1 ? 210 : 270, part = frame(host, down * cellHeight, label, { left: 46, right: 78, top: 30, bottom: 46 });
    if (!drawn.length) return empty(part.svg, "No value to draw.");
    const strokes = facets.flatMap((f) => linesOf(drawn.filter((item) => item.f === f)).map((stroke) => ({ ...stroke, f })));
    const range = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { xs, ys, lo = ys, hi = ys } of strokes) {
      for (const x of xs) [range[0], range[1]] = [Math.min(range[0], x), Math.max(range[1], x)];
      for (let k = 0; k < ys.length; k++) [range[2], range[3]] = [Math.min(range[2], lo[k]), Math.max(range[3], hi[k])];
    }
    const gap = (part.right - part.left) / across, [xRange, yRange, isZoomed] = zoomedRanges(panel, range.slice(0, 2), range.slice(2));
    facets.forEach((f, place) => {
      const left = part.left + (place % across) * gap, bottom = (Math.floor(place / across) + 1) * cellHeight - 46, top = bottom - cellHeight + 76;
      const sx = makeScale(choice.logX, ...xRange, left, left + gap - (across > 1 ? 22 : 0)), sy = makeScale(choice.logY, ...yRange, bottom, top);
      panel.areas.push([sx, sy]);
      for (const item of drawn) if (item.f === f) Object.assign(item, { sx, sy });
      drawLines(part, strokes.filter((stroke) => stroke.f === f), sx, sy, place % across === 0);
      if (facet.name) part.svg.append(s("text", { x: left, y: top - 12, class: "head" }, shortLabel(`${facet.label} ${facet.labels[f]}`, 22)));
    });
    drawEnds(part, strokes, isZoomed);
  }
  function linesOf(items) {                             // the lines to stroke: means with their bands, or single trials
    if (choice.mode !== "mean") return items;
    return [...Map.groupBy(items, (item) => choice.key(item.i)).values()].map((bundle) => average(bundle, choice.logY)).filter((item) => item.xs.length);
  }
  function drawLines(part, strokes, sx, sy, isFirst) {
    const { marks } = part, { groups } = choice;
    clipTo(marks, sx, sy);
    for (const { xs, lo, hi, code } of strokes) {
      if (!lo) continue;
      marks.beginPath();
      xs.forEach((x, k) => marks.lineTo(sx(x), sy(hi[k])));
      for (let k = xs.length - 1; k >= 0; k--) marks.lineTo(sx(xs[k]), sy(lo[k]));
      marks.fillStyle = alpha(groups.colour(code), choice.band);
      marks.fill();
    }
    for (const { xs, ys, lo, code } of strokes) {
      marks.beginPath();
      xs.forEach((x, k) => marks.lineTo(sx(x), sy(ys[k])));
      const lineWidth = lo ? 1.7 : Math.max(0.5, Math.min(1.2, 60 / drawn.length));
      Object.assign(marks, { strokeStyle: alpha(groups.colour(code), lo ? 1 : 0.75), lineWidth });
      marks.stroke();
    }
    marks.restore();
    const xTicks = ticksOf(sx, 64), yTicks = ticksOf(sy, 40), yLabel = isFirst && !choice.facet.name ? choice.y.label : "";
    axes(part.svg, sx, sy, { xTicks, yTicks, xLabel: choice.xLabel, yLabel, labelY: isFirst });
  }
  function drawEnds(part, strokes, isZoomed) {          // a label per colour: at the end of its longest line, or next to all lines
    const { groups } = choice, { sx, sy } = drawn[0], ends = new Map();
    const isUneven = choice.mode === "mean" && new Set(strokes.map(({ xs }) => xs.at(-1))).size > 1 && !choice.facet.name && !isZoomed;
    for (const { xs, ys, code } of strokes) if (!(ends.get(code)?.x > xs.at(-1))) ends.set(code, { x: xs.at(-1), y: sy(ys.at(-1)), code });
    const labels = [...ends.values()];
    if (!groups.name) return;
    spread(labels, isUneven ? 12 : 14, part.top, Math.max(sy.from, part.top + 14 * labels.length));
    for (const { x, at, code } of labels) {
      part.svg.append(...(isUneven ? [s("text", { class: "halo", x: sx(x) + 5, y: at + 4 }, shortLabel(groups.labels[code], 10))] : swatch(part.right + 13, at, groups, code, 8)));
    }
    if (!isUneven) part.svg.append(s("text", { x: part.width, y: Math.min(...labels.map(({ at }) => at)) - 14, "text-anchor": "end", class: "small" }, shortLabel(groups.label, 14)));
  }
  function overlay() {
    if (!host.plot || !choice || !drawn.length) return;
    const placeOf = (i) => drawn.find((item) => item.i === i) ?? drawn.find((item) => item.f === choice.facet.code(i));
    const trace = (over, i, [sx, sy]) => { const { xs, ys } = points(i); xs.forEach((x, k) => over.lineTo(sx(x), sy(ys[k]))); };
    strokeMarked(panel, trace, (i) => { const { sx, sy } = placeOf(i) ?? {}; return sx && [sx, sy]; });
  }
  function find(px, py) {                               // the line nearest at the pointer's x
    let best = null, distance = 24;
    for (const { i, xs, ys, sx, sy } of drawn) {
      if (!sx || px < sx.from - 8 || px > sx.to + 8 || py < sy.to - 8 || py > sy.from + 8) continue;
      let k = 0;
      while (k < xs.length - 1 && sx(xs[k + 1]) <= px) k++;
      const next = Math.min(k + 1, xs.length - 1), [a, b] = [sx(xs[k]), sx(xs[next])];
      const share = b > a ? Math.min(Math.max((px - a) / (b - a), 0), 1) : 0, off = Math.abs(sy(ys[k]) + share * (sy(ys[next]) - sy(ys[k])) - py);
      const at = share > 0.5 ? next : k;
      if (off < distance) { distance = off; best = { i, text: `${choice.xName} ${format(xs[at], 4)}: ${choice.y.label} ${format(ys[at])}` }; }
    }
    return best;
  }
}

function average(items, log) {                          // mean and range (from 20 lines on: 10 to 90 %) at each common x
  const at = new Map();
  for (const { xs, ys } of items) { xs.forEach((x, k) => { if (!at.has(x)) at.set(x, []); at.get(x).push(ys[k]); }); }
  const xs = [...at.keys()].sort((a, b) => a - b).filter((x) => at.get(x).length >= items.length / 2), middle = [], lo = [], hi = [];
  for (const x of xs) {
    const ys = at.get(x).sort((a, b) => a - b), cut = ys.length >= 20 ? Math.floor(ys.length / 10) : 0;
    middle.push(log ? Math.exp(mean(ys.map(Math.log))) : mean(ys));
    lo.push(ys[cut]);
    hi.push(ys[ys.length - 1 - cut]);
  }
  return { xs, ys: middle, lo, hi, code: items[0].code };
}

const trialsText = (shown, all) => (shown < all ? `${counted(shown)} of ${counted(all)} trials, evenly chosen` : `${counted(all)} trial${all === 1 ? "" : "s"}`);

linePanel($("#curves .figure"), "curves over steps", { key: "curvesZoom", axes: ["curve", "curveX", "curveLog"] }, () => {
  const source = curveSource(view.curve);
  if (!source) return null;
  const { table, start } = source, groups = groupsOf(view.colour), step = table.by.get("step").data, wall = column("wall_s");
  const isTime = view.curveX === "time" && wall;
  // no clock is recorded per step: a trial's steps are taken as equally long
  const x = isTime ? (i, r) => (wall.get(i) * step[r]) / step[start[i + 1] - 1] : (i, r) => step[r];
  const mode = isTime ? "trials" : view.curveMode;
  const drawing = mode === "mean" ? "Mean and range, from 20 trials on 10 to 90 %." : "One line per trial.";
  return { start, y: table.by.get(view.curve), x, groups, facet: groupsOf(view.curveFacet), mode, band: 0.16, key: groups.code,
    logX: view.curveLog.includes("x"), logY: view.curveLog.includes("y"), smooth: Number(view.smooth) || 0,
    xName: isTime ? "time" : "step", xLabel: isTime ? "seconds of training" : "step", note: isTime ? `${drawing} Steps count as equally long.` : drawing };
});

linePanel($("#layers .figure"), "metric over layers", { key: "layersZoom", axes: ["layerY", "layerX"] }, () => {
  const source = rows.layers, y = source?.table.by.get(view.layerY);
  if (!y) return null;
  const { table, start } = source, groups = groupsOf(view.layerColour), layer = table.by.get("layer").data, isRelative = view.layerX !== "layer";
  const last = (i) => layer[start[i + 1] - 1], key = (i) => `${groups.code(i)}/${last(i)}`;
  let lo = Infinity;
  for (const v of y.data) if (v < lo) lo = v;
  const x = isRelative ? (i, r) => layer[r] / Math.max(1, last(i)) : (i, r) => layer[r];
  return { start, y, x, groups, key, facet: ONE_GROUP, logX: false, logY: column(view.layerY)?.log ?? lo > 0, smooth: 0, mode: "mean", band: 0.1,
    xName: view.layerX, xLabel: isRelative ? "layer / depth" : "layer", note: "Mean and range per colour and number of layers, at the last step." };
});

// ----------------------------------------------------------------------------------------------- scatter

const DENSE = 20000;                                    // above, a density image instead of dots
const scatter = addPanel($("#scatter .figure"), { draw: drawScatter, overlay: overlayScatter, find: findDot, drag: brushDots, values: selectedRows,
  zoom: { key: "scatterZoom", axes: ["sx", "sy"] }, clear: () => [view.sx, view.sy].forEach((name) => filterBy(name, null)) });
let scatterAt = null;

const rangeFilter = (c, lo, hi) => (c.values ? { set: new Set(c.values.filter((v) => v >= lo && v <= hi)) } : { lo, hi });

function paddedRange(c) {
  const pad = (c.hi - c.lo) * 0.03;
  return c.log ? [c.lo / 1.06, c.hi * 1.06] : [c.lo - pad, c.hi + pad];
}

function drawScatter() {
  const [cx, cy, groups] = [column(view.sx), column(view.sy), groupsOf(view.sc)];
  scatterAt = null;
  scatter.areas = [];
  const longest = Math.min(11, Math.max(...groups.labels.map((label) => label.length)));
  const part = frame(scatter.host, 290, "scatter", { left: 46, right: Math.max(60, 24 + longest * 6.4), top: 30, bottom: 46 }), { marks } = part;
  if (!cx?.isNumber || !cy?.isNumber) return empty(part.svg, "No two columns of numbers.");
  const [xRange, yRange] = zoomedRanges(scatter, paddedRange(cx), paddedRange(cy)), isDense = selectedCount > DENSE;
  const sx = makeScale(cx.log, ...xRange, part.left, part.right), sy = makeScale(cy.log, ...yRange, part.bottom, part.top);
  scatter.areas.push([sx, sy]);
  clipTo(marks, sx, sy);
  const jitter = (c, i) => (c.values && selectedCount > 60 ? ((((i * 2654435761) >>> 8) % 1000) / 1000) * 7 - 3.5 : 0);
  const at = (scatterAt = (i) => [sx(cx.get(i)) + jitter(cx, i), sy(cy.get(i)) - jitter(cy, i * 7 + 1)]);
  if (!isDense && n <= 5000) {                          // the trials outside the filter stay as a faint ground
    marks.fillStyle = palette.faint;
    for (let i = 0; i < n; i++) {
      const [px, py] = at(i);
      if (misses[i] !== 0 && Number.isFinite(px + py)) marks.fillRect(px - 1, py - 1, 2, 2);
    }
  }
  if (isDense) drawDensity(part, cx, cy, sx, sy); else drawDots(marks, groups, at);
  marks.restore();
  const ticks = (c, scale, spacing) => (c.values?.length < 9 ? c.values.filter((v) => v >= scale.lo && v <= scale.hi) : ticksOf(scale, spacing));
  axes(part.svg, sx, sy, { xTicks: ticks(cx, sx, 64), yTicks: ticks(cy, sy, 40), xLabel: cx.label, yLabel: cy.label });
  if (!isDense && groups.name) {
    groups.labels.forEach((_, k) => part.svg.append(...swatch(part.right + 13, part.top + 6 + k * 16, groups, k, longest)));
    part.svg.append(s("text", { x: part.width, y: part.top - 10, "text-anchor": "end", class: "small" }, shortLabel(groups.label, 14)));
  }
  const density = isDense ? `Density of ${counted(selectedCount)} trials; below ${counted(DENSE)} they are dots with colour. ` : "";
  $("#scatter .note").textContent = `${density || "Cross: failed, untrained or diverged. "}Drag to filter, with Shift to zoom; double-click to clear.`;
}

function drawDots(marks, groups, at) {
  const radius = selectedCount > 3000 ? 1.4 : selectedCount > 500 ? 2.2 : 3.2, colours = groups.labels.map((_, code) => alpha(groups.colour(code), 0.85));
  for (let k = 0; k < selectedCount; k++) {
    const i = selected[k], [px, py] = at(i);
    if (!Number.isFinite(px + py)) continue;
    marks.fillStyle = marks.strokeStyle = colours[groups.code(i)];
    if (!isOk[state.data[i]]) marks.stroke(new Path2D(`M${px - 3},${py - 3}l6,6m0,-6l-6,6`));
    else if (radius < 2) marks.fillRect(px - radius, py - radius, 2 * radius, 2 * radius);
    else { marks.beginPath(); marks.arc(px, py, radius, 0, 6.3); marks.fill(); }
  }
}

function drawDensity({ marks, left, right, top, bottom }, cx, cy, sx, sy) {
  const size = 2, across = Math.ceil((right - left) / size), down = Math.ceil((bottom - top) / size), counts = new Uint32Array(across * down);
  const [fx, fy] = [positions(cx, sx), positions(cy, sy)];
  let most = 0;
  for (let k = 0; k < selectedCount; k++) {
    const i = selected[k], jx = cx.values ? (i * 40503) & 7 : 0;
    const gx = ((fx[i] - left + jx) / size) | 0, gy = ((fy[i] - top) / size) | 0;
    if (gx >= 0 && gx < across && gy >= 0 && gy < down) most = Math.max(most, ++counts[gy * across + gx]);
  }
  for (let cell = 0; cell < counts.length; cell++) {
    if (!counts[cell]) continue;
    marks.fillStyle = palette.ramp(1 - Math.log1p(counts[cell]) / Math.log1p(most));
    marks.fillRect(left + (cell % across) * size, top + Math.floor(cell / across) * size, size, size);
  }
}

const positionCache = new Map();
function positions(c, scale) {                          // pixels of all trials; they stay while the scale does
  const key = JSON.stringify([c.name, scale.from, scale.to, scale.lo, scale.hi]);
  if (!positionCache.has(key)) {
    if (positionCache.size > 40) positionCache.clear();
    positionCache.set(key, Float32Array.from({ length: n }, (_, i) => scale(c.get(i))));
  }
  return positionCache.get(key);
}

function overlayScatter() {
  if (scatterAt) strokeMarked(scatter, (over, i) => over.arc(...scatterAt(i).map((v) => (Number.isFinite(v) ? v : -99)), 6, 0, 6.3), () => scatter.areas[0]);
}

function brushDots(x0, y0) {
  const [area] = scatter.areas, filter = (scale, name, a, b) => {
    filters.set(name, rangeFilter(column(name), ...[scale.invert(a), scale.invert(b)].sort((p, q) => p - q)));
    applyFilter(name);
  };
  const move = (px, py) => {
    filter(area[0], view.sx, x0, px);
    filter(area[1], view.sy, y0, py);
    collect();
    schedule();
  };
  return area && { isBox: true, move, end: writeAddress };
}

function findDot(px, py) {
  const [area] = scatter.areas;
  if (!area) return null;
  const [fx, fy] = [positions(column(view.sx), area[0]), positions(column(view.sy), area[1])];
  const i = selected[nearest(selectedCount, (k) => [fx[selected[k]], fy[selected[k]]], px, py, 12)];
  return i === undefined ? null : { i, text: `${valueText(view.sx, i)}, ${valueText(view.sy, i)}` };
}

// ---------------------------------------------------------------------------------- parallel coordinates

const MOST_LINES = 3000, MAX_AXES = 9;
const parallel = addPanel($("#parallel .figure"), { draw: drawParallel, overlay: overlayParallel, find: findLine, drag: brushAxis, click: clearAxis, values: selectedRows });
let parallelScales = [];

function parallelAxes(width) {                          // the parameters, the metrics of the sweep's fits, and y
  const metrics = [...data.sweep.axes, view.y].filter((name, k, all) => column(name)?.hi > column(name)?.lo && all.lastIndexOf(name) === k).map(column);
  const few = width > 520 ? metrics : metrics.slice(-2);
  return [...grouping.slice(0, MAX_AXES - few.length), ...few];
}

// A word's place on its axis is its number in the dictionary.
const axisValue = (c) => (c.isNumber ? c.get : (i) => c.data[i]);
const axisScale = (c, from, to) => (c.isNumber ? makeScale(c.log, c.lo, c.hi, from, to) : makeScale(false, 0, c.values.length - 1, from, to));

function drawParallel() {
  const part = frame(parallel.host, 290, "parallel coordinates", { left: 40, right: 40, top: 44, bottom: 34 }), { marks } = part;
  const shownAxes = parallelAxes(part.width), gap = (part.right - part.left) / Math.max(1, shownAxes.length - 1), groups = groupsOf(view.pc);
  parallelScales = shownAxes.map((c, k) => ({ c, x: part.left + k * gap, scale: axisScale(c, part.bottom, part.top) }));
  if (parallelScales.length < 2) return empty(part.svg, "Fewer than two columns vary.");
  const jitter = (i, k) => (shownAxes[k].values ? ((((i + k * 13) * 2654435761) >>> 8) % 1000) / 1000 * 14 - 7 : 0);
  const missing = part.bottom + 20, tables = parallelScales.map(({ c, scale }) => positions({ name: c.name, get: axisValue(c) }, scale));
  parallel.path = (context, i) => {
    let lastY = 0;
    tables.forEach((table, k) => {
      const y = Number.isFinite(table[i]) ? table[i] + jitter(i, k) : missing, { x } = parallelScales[k];
      if (k === 0) context.moveTo(x, y); else context.bezierCurveTo(x - gap * 0.62, lastY, x - gap * 0.38, y, x, y);
      lastY = y;
    });
  };
  if (n <= MOST_LINES && selectedCount < n) {
    marks.beginPath();
    for (let i = 0; i < n; i++) if (misses[i] !== 0) parallel.path(marks, i);
    Object.assign(marks, { strokeStyle: palette.faint, lineWidth: 0.6 });
    marks.stroke();
  }
  const shown = pick(selectedCount, MOST_LINES), byCode = groups.labels.map(() => []);
  for (const k of shown) byCode[groups.code(selected[k])].push(selected[k]);
  byCode.forEach((list, code) => {
    marks.beginPath();
    for (const i of list) parallel.path(marks, i);
    Object.assign(marks, { strokeStyle: alpha(groups.colour(code), Math.max(0.12, Math.min(0.6, 60 / shown.length))), lineWidth: 1 });
    marks.stroke();
  });
  parallelScales.forEach((axis, k) => part.svg.append(drawAxis(axis, k, gap, parallelScales.length)));
  const some = shown.length < selectedCount ? `${trialsText(shown.length, selectedCount)}. ` : "";
  $("#parallel .note").textContent = `${some}Below the axes: no value. Drag along an axis to filter, click it to clear.`;
  drawLegend($("#parallel .legend"), groups);
}

function drawAxis({ c, x, scale }, k, gap, count) {
  const f = filters.get(c.name), g = s("g", { class: "axes halo" }), words = c.values && !c.isNumber;
  const ticks = words ? pick(c.values.length, 9) : c.values && c.values.length < 12 ? c.values : ticksOf(scale, 46);
  const text = (t) => (words ? shortLabel(format(c.values[t]), 9) : format(t)), isLast = k === count - 1;
  const head = shortLabel(c.label, Math.max(8, Math.floor((gap < 84 ? 2 : 1) * gap / 7)));
  g.append(s("path", { d: `M${x},${scale.from}V${scale.to}${ticks.map((t) => `M${x},${scale(t)}h-4`).join("")}` }),
    ...ticks.map((t) => s("text", { x: x - 7, y: scale(t) + 4, "text-anchor": "end" }, text(t))),
    s("text", { x: k === 0 ? 0 : isLast ? x + 40 : x, y: scale.to - (gap < 84 && k % 2 ? 28 : 15), class: "head", "text-anchor": k === 0 ? "start" : isLast ? "end" : "middle" }, head));
  if (!f) return g;
  const values = words ? [...f.set].map((v) => c.values.indexOf(v)) : f.set ? [...f.set] : [Math.max(c.lo, f.lo), Math.min(c.hi, f.hi)];
  const [a, b] = [scale(Math.min(...values)), scale(Math.max(...values))];
  g.append(s("rect", { class: "brush", x: x - 3, y: b - 4, width: 6, height: Math.max(8, a - b + 8), rx: 3 }));
  return g;
}

function overlayParallel() {
  const { path, host: { plot } } = parallel;
  if (path && plot) strokeMarked(parallel, path, () => [{ from: 0, to: plot.width }, { from: plot.height, to: 0 }]);
}

const axisAt = (px) => parallelScales.find(({ x }) => Math.abs(x - px) < 22);

function brushAxis(x, start) {
  const axis = axisAt(x), { c, scale } = axis ?? {};
  return axis && { move(px, py) {
    const [lo, hi] = [scale.invert(Math.max(py, start)), scale.invert(Math.min(py, start))], words = (_, k) => k >= lo - 0.01 && k <= hi + 0.01;
    filterBy(c.name, c.isNumber ? rangeFilter(c, lo - Math.abs(lo) * 1e-9, hi + Math.abs(hi) * 1e-9) : { set: new Set(c.values.filter(words)) });
  } };
}

function clearAxis(px) {
  const axis = axisAt(px);
  if (axis) filterBy(axis.c.name, null);
  return axis;
}

function findLine(px, py) {
  parallel.host.style.cursor = axisAt(px) ? "ns-resize" : "default";
  const k = parallelScales.findIndex(({ x }) => x >= px);
  if (k < 1) return null;
  const [a, b] = [parallelScales[k - 1], parallelScales[k]], share = (px - a.x) / (b.x - a.x), ease = share * share * (3 - 2 * share);
  const [ya, yb] = [a, b].map(({ c, scale }) => positions({ name: c.name, get: axisValue(c) }, scale));
  let near = -1, distance = 8;
  for (let j = 0; j < selectedCount; j++) {
    const i = selected[j], off = Math.abs(ya[i] + (yb[i] - ya[i]) * ease - py);
    if (off < distance) { distance = off; near = i; }
  }
  return near < 0 ? null : { i: near, text: valueText(b.c.name, near) };
}

// ------------------------------------------------------------------------------------------------- table

const ROW = 28, tableHost = $("#trials .scroll");
const table = addPanel(tableHost, { draw: drawTable, overlay: drawTable, values: selectedRows });
let tableRows = [], sortedOnce = { key: null, order: null };

const hasTags = () => Object.values(marks.trials).some(({ tags }) => tags.length);

const firstMetrics = () => [...new Set([view.y, ...data.sweep.axes, "wall_s"])].map(column).filter(Boolean);

function sortedOrder() {                                // all trials in order; it stays, so that a brush does not sort
  if (sortedOnce.key !== view.sort) {
    const c = column(view.sort.replace("-", "")), sign = view.sort.startsWith("-") ? -1 : 1, order = Int32Array.from({ length: n }, (_, i) => i);
    const value = (i) => (Number.isNaN(c.get(i)) ? Infinity * sign : c.isNumber ? c.get(i) : c.data[i]);
    sortedOnce = { key: view.sort, order: c ? order.sort((a, b) => (value(a) < value(b) ? -sign : value(a) > value(b) ? sign : a - b)) : order };
  }
  return sortedOnce.order;
}

function refreshRows() {
  tableRows = view.sort ? sortedOrder().filter((i) => misses[i] === 0) : selected.subarray(0, selectedCount);
}

function drawTable() {
  refreshRows();
  const columns = [...params, ...firstMetrics()], first = Math.max(0, Math.floor(tableHost.scrollTop / ROW) - 4), count = Math.ceil(tableHost.clientHeight / ROW) + 8;
  drawTableHead(columns);
  const made = [];
  for (let k = first; k < Math.min(first + count, tableRows.length); k++) {
    const i = tableRows[k], kind = [i === pin && "pin", i === hover && "over"].filter(Boolean).join(" ");
    made.push(h("tr", { class: kind || null, "data-i": i, "aria-selected": String(i === pin) },
      h("td", { title: stateText(i) || "ok" }, h("i", { class: `state ${state.get(i)}` })),
      hasTags() && h("td", {}, marksOf(i).tags.map((tag) => h("span", { class: "tag" }, clean(tag, 20)))),
      columns.map((c) => h("td", {}, c.role === "param" ? format(c.get(i), 6) : padded(c.get(i)))),
      h("td", { class: "spark" }, sparkline(i))));
  }
  const space = (height) => h("tr", { style: `height:${Math.max(0, height)}px` });
  $("#trials tbody").replaceChildren(space(first * ROW), ...made, space((tableRows.length - first - made.length) * ROW));
}

function drawTableHead(columns) {
  const key = JSON.stringify([columns.map((c) => c.name), view.sort, view.curve, hasTags()]), row = $("#trials thead tr");
  if (row.dataset.key === key) return;                  // the focus stays on its button
  row.dataset.key = key;
  keepFocus(root, row, () => row.replaceChildren(h("th", {}, h("span", { class: "hidden" }, "state")), ...(hasTags() ? [h("th", {}, "tags")] : []), ...columns.map((c) => {
    const isSorted = view.sort.replace("-", "") === c.name, isDown = view.sort.startsWith("-"), arrow = isSorted ? (isDown ? " ↓" : " ↑") : "";
    const next = !isSorted ? c.name : isDown ? "" : `-${c.name}`;                                   // up, down, as planned
    return h("th", { "aria-sort": !isSorted ? "none" : isDown ? "descending" : "ascending" },
      h("button", { onclick: () => setView({ sort: next }), "data-sort": c.name }, c.label + arrow));
  }), h("th", {}, clean(view.curve))));
}

function sparkline(i) {                                 // the chosen curve on log axes, in the common range of the trials
  const source = curveSource(view.curve);
  if (!source) return "";
  const { table: of, start } = source, c = of.by.get(view.curve), step = of.by.get("step").data, end = start[i + 1], points = [];
  if (!c.range) {
    c.range = [Infinity, 0];
    for (const v of c.data) if (v > 0 && v < Infinity) c.range = [Math.min(c.range[0], v), Math.max(c.range[1], v)];
  }
  const sx = makeScale(true, 1, Math.max(2, step[end - 1]), 1, 109), sy = makeScale(true, ...c.range, 21, 3);
  for (let r = start[i]; r < end; r++) if (step[r] > 0 && c.data[r] > 0 && c.data[r] < Infinity) points.push(`${sx(step[r]).toFixed(1)},${sy(c.data[r]).toFixed(1)}`);
  return points.length ? s("svg", { width: 112, height: 24, "aria-hidden": "true" }, s("path", { d: `M${points.join("L")}` })) : "";
}

tableHost.addEventListener("scroll", () => schedule(table));
const rowOf = (event) => Number(event.target.closest("[data-i]")?.dataset.i ?? -1);
tableHost.addEventListener("pointermove", (event) => setHover(rowOf(event)));
tableHost.addEventListener("pointerleave", () => setHover(-1));
tableHost.addEventListener("click", (event) => { if (!event.target.closest("th")) setPin(rowOf(event)); });
tableHost.addEventListener("keydown", (event) => {
  if (event.target !== tableHost || !tableRows.length) return;
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === "Enter" && hover >= 0) setPin(hover);
  if (!by) return;
  event.preventDefault();
  const place = Math.min(Math.max(tableRows.indexOf(hover >= 0 ? hover : pin) + by, 0), tableRows.length - 1);
  tableHost.scrollTop = Math.min(Math.max(tableHost.scrollTop, (place + 2) * ROW - tableHost.clientHeight), place * ROW);
  setHover(tableRows[place]);
});

// ---------------------------------------------------------------------------------------------- side bar

const BINS = 28, MAX_CHIPS = 200, sideHost = $("#filters");
let blocks = [];

function buildSide() {
  const isOpen = $("#filters details")?.open ?? false, first = [view.y, ...data.sweep.axes.slice(0, 2)];
  const usable = metrics.filter((c) => c.hi > c.lo), chipped = [...params, state].filter(varies);
  blocks = chipped.map((c) => (c.isNumber && !(c.values?.length <= MAX_GROUPS) ? sliderBlock(c) : chipBlock(c)));
  blocks.push(...usable.filter((c) => first.includes(c.name)).map(sliderBlock));
  const rest = usable.filter((c) => !first.includes(c.name)).map(sliderBlock), nodes = (list) => list.map((block) => block.node);
  const more = rest.length > 0 && h("details", { open: isOpen, ontoggle: () => schedule(side) }, h("summary", {}, "more metrics"), nodes(rest));
  keepFocus(root, sideHost, () => sideHost.replaceChildren(...nodes(blocks), more || ""));
  blocks.push(...rest);
}

function chipBlock(c) {
  const values = c.values.slice(0, MAX_CHIPS), total = new Uint32Array(c.values.length);
  const chips = values.map((value) => h("button", { class: "chip", onclick: () => toggleValue(c.name, value) },
    c === state && h("i", { class: `state ${value}` }), format(value, 6), h("i", { class: "count" })));
  const more = c.values.length > MAX_CHIPS && h("span", { class: "range" }, `and ${c.values.length - MAX_CHIPS} more`);
  const node = h("div", { class: "block" }, h("h3", {}, c.label), h("div", { class: "chips" }, chips, more));
  for (let i = 0; i < n; i++) total[c.data[i]]++;
  return { node, draw() {
    const counts = new Uint32Array(c.values.length), f = filters.get(c.name);
    const keeps = (value) => !f || (f.set ? f.set.has(value) : value >= f.lo && value <= f.hi);
    for (let k = 0; k < selectedCount; k++) counts[c.data[selected[k]]]++;
    chips.forEach((chip, k) => {
      chip.setAttribute("aria-pressed", String(Boolean(f) && keeps(values[k])));
      chip.classList.toggle("off", !keeps(values[k]));
      chip.style.setProperty("--share", counts[k] / Math.max(1, total[k]));
      chip.title = `${counted(counts[k])} of ${counted(total[k])} trials`;
    });
  } };
}

function sliderBlock(c) {
  const scale = makeScale(c.log, c.lo, c.hi, 0, 1000), bin = new Uint8Array(n).fill(255);
  for (let i = 0; i < n; i++) {
    const at = scale(c.get(i));
    if (Number.isFinite(at)) bin[i] = Math.min(BINS - 1, Math.max(0, Math.floor((at / 1000) * BINS)));
  }
  const all = histogram(bin, null), most = Math.max(...all), bars = s("svg", { viewBox: `0 0 ${BINS} 24`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const [low, high] = ["least", "most"].map((end) => h("input", { type: "range", min: 0, max: 1000, value: end === "least" ? 0 : 1000, "aria-label": `${c.label} at ${end}` }));
  const text = h("span", { class: "range" }), node = h("div", { class: "block slider" }, h("h3", {}, c.label, text), h("div", { class: "bars" }, bars, low, high));
  const change = (event) => {
    let [a, b] = [Number(low.value), Number(high.value)];
    if (a > b) [a, b] = event.target === low ? [b, b] : [a, a];
    low.value = a;
    high.value = b;
    filterBy(c.name, a === 0 && b === 1000 ? null : { lo: a === 0 ? -Infinity : scale.invert(a), hi: b === 1000 ? Infinity : scale.invert(b) });
  };
  low.addEventListener("input", change);
  high.addEventListener("input", change);
  const bar = (counts) => Array.from(counts, (count, k) => (count ? `M${k},24h.8v${-2 - 22 * Math.sqrt(count / most)}h-.8Z` : "")).join("");
  return { node, draw() {
    if (node.offsetParent === null) return;
    const f = filters.get(c.name), values = f?.set ? [Math.min(...f.set), Math.max(...f.set)] : f ? [f.lo, f.hi] : [-Infinity, Infinity];
    const [lo, hi] = [Math.max(c.lo, values[0]), Math.min(c.hi, values[1])];
    if (root.activeElement !== low) low.value = scale(lo);
    if (root.activeElement !== high) high.value = scale(hi);
    text.textContent = `${format(lo)} to ${format(hi)}`;
    bars.replaceChildren(s("path", { class: "all", d: bar(all) }), s("path", { class: "now", d: bar(histogram(bin, misses)) }));
  } };
}

function histogram(bin, mask) {
  const counts = new Uint32Array(256);
  for (let i = 0; i < n; i++) if (!mask || mask[i] === 0) counts[bin[i]]++;
  return counts.subarray(0, BINS);
}

const side = addPanel(sideHost, { draw() {
  for (const block of blocks) block.draw();
  $("#count").replaceChildren(h("b", {}, counted(selectedCount)), ` of ${counted(n)} trials`);
  const chip = (name, text, act) => h("button", { class: "active", onclick: act, "aria-label": `remove filter ${name}` }, text, h("span", {}, "×"));
  const chips = [...filters].map(([name, f]) => chip(clean(name), `${clean(name)} ${describeFilter(f)}`, () => filterBy(name, null)));
  if (view.expression) chips.push(chip("expression", clean(view.expression, 80), () => setView({ expression: "" })));
  if (chips.length > 1) chips.push(h("button", { class: "quiet", onclick: clearFilters }, "clear all"));
  $("#active").replaceChildren(...chips);
  $("#expression-error").textContent = expressionError;
  const count = filters.size + (view.expression ? 1 : 0);
  $("#filter-count").textContent = count ? `(${count})` : "";
  server?.select();
} });
side.visible = true;
watcher.unobserve(sideHost);                            // the counts are drawn even if the side bar is folded

function describeFilter(f) {
  if (f.set) return clean([...f.set].slice(0, 12).map((v) => format(v, 6)).join(", "), 80);
  return f.lo === -Infinity ? `≤ ${format(f.hi)}` : f.hi === Infinity ? `≥ ${format(f.lo)}` : `${format(f.lo)} to ${format(f.hi)}`;
}

function clearFilters() {
  filters.clear();
  masks.clear();
  setView({ expression: "" });
}

// ----------------------------------------------------------------------- controls, pinned trial, top bar

function buildControls() {
  const names = (list) => list.map((c) => c.name), numbers = names(trials.columns.filter((c) => c.isNumber)), all = [...names(grouping), ...names(metrics)];
  const small = names(grouping.filter((c) => c.values));
  const lists = { y: names(metrics.filter((c) => c.hi > 0)), x: names(grouping.filter((c) => c.isNumber && c.hi > 0)), colour: all, facet: small,
    curve: curveNames(), curveFacet: small, layerY: names(valueColumns(rows.layers)), layerColour: all, sx: numbers, sy: numbers, sc: [...all, "state"], pc: [...all, "state"] };
  for (const [name, list] of Object.entries(lists)) {   // an option for none is in the template
    const select = $(`select[name="${name}"]`);
    select.replaceChildren(...$$('option[value=""]', select), ...list.map((value) => h("option", { value }, clean(value))));
  }
  $('option[value="time"]').disabled = !column("wall_s");
}

function fitWidth(control) {                            // a select as wide as its word
  const ghost = h("span", { class: "ghost" }, control.selectedOptions[0]?.text ?? "");
  control.after(ghost);
  control.style.width = `${ghost.offsetWidth + 2}px`;
  ghost.remove();
}

function refreshControls() {
  for (const control of $$("select[name], input[name]")) {
    if (control.type === "checkbox") control.checked = view[control.name] === "1"; else control.value = view[control.name];
    if (control.tagName === "SELECT") fitWidth(control);
  }
}

function drawPin() {
  const bar = $("#pin");
  bar.hidden = pin < 0;
  $("#page").classList.toggle("pinned", pin >= 0);
  if (pin < 0 || (bar.dataset.trial === idOf(pin) && root.activeElement?.closest("#pin form"))) return;            // not while a note is typed
  bar.dataset.trial = idOf(pin);
  const facts = [state, ...firstMetrics()].map((c) => h("span", {}, h("i", {}, c.label), format(c.get(pin))));
  const button = (text, name, act) => h("button", { onclick: act, "aria-label": name }, text), error = data.errors[pin];
  keepFocus(root, bar, () => bar.replaceChildren(h("i", { class: `state ${state.get(pin)}` }), h("b", {}, title(pin)), h("span", { class: "facts" }, facts, error && h("span", {}, clean(error, 300))),
    ...(server ? [h("a", { href: `trial/${idOf(pin)}` }, "log and code")] : [h("span", { class: "id" }, idOf(pin))]),
    button("←", "previous trial", () => step(-1)), button("→", "next trial", () => step(1)), button("×", "release", () => setPin(-1)),
    h("div", { class: "marks", "data-trial": idOf(pin) })));
  drawMarks();
}

// Tags and the note of a trial, or of the sweep, with a form if the server takes changes (`depthrate serve --write`).
function markNodes(trial) {
  const { tags, note } = trial ? marks.trials[trial] ?? NO_MARKS : marks.sweep, alarm = h("span", { class: "alarm", role: "alert" });
  const lines = note.split("\n").map((text) => clean(text, 2000)).join("\n");
  if (!marks.writable) return [...tags.map((tag) => h("span", { class: "tag" }, clean(tag))), lines && h("span", { class: "text" }, lines)].filter(Boolean);
  const save = (change) => attempt(alarm, () => server.annotate({ trial, ...change }));
  const remove = (tag) => h("button", { type: "button", class: "tag", title: "remove", "aria-label": `remove tag ${clean(tag)}`, onclick: () => save({ remove: [tag] }) }, clean(tag), h("span", {}, "×"));
  const added = h("input", { placeholder: "add a tag", "aria-label": "add a tag" }), text = h("textarea", { rows: 1, placeholder: "note", "aria-label": "note" }, note);
  const onsubmit = (event) => {
    event.preventDefault();
    save({ add: [added.value.trim()].filter(Boolean), ...(text.value !== note && { note: text.value }) });
  };
  return [h("form", { onsubmit }, tags.map(remove), added, text, h("button", {}, "save"), alarm)];
}

function drawMarks(isAnswer = false) {                  // what is typed stays, except after its answer
  for (const host of $$(".marks")) {
    const isFocused = host.contains(root.activeElement);
    if (isFocused && !isAnswer) continue;
    host.replaceChildren(...markNodes(host.dataset.trial));
    if (isFocused) $("input", host)?.focus();
  }
}

function step(by) {
  refreshRows();
  setPin(tableRows[(tableRows.indexOf(pin) + by + tableRows.length) % tableRows.length] ?? -1);
}

// ------------------------------------------------------------------------------------------ saved panels

function save(name, blob) {                             // as `<sweep>-<name>`
  const link = h("a", { href: URL.createObjectURL(blob), download: `${data.sweep.name}-${name}`.replace(/[^\w.-]+/g, "-") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A text that a spreadsheet would read as a formula gets an apostrophe, as in `depthrate query -o`.
function csvCell(value) {
  if (value == null || Number.isNaN(value)) return "";
  if (typeof value === "number") return String(value);
  const text = clean(value, Infinity), safe = /^[=+\-@\uff1d\uff0b\uff0d\uff20]/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function selectedRows() {
  const columns = trials.columns;
  return [["trial_id", ...columns.map((c) => c.name)], ...Array.from(selected.subarray(0, selectedCount), (i) => [idOf(i), ...columns.map((c) => c.get(i))])];
}

const csvOf = (list) => new Blob([list.map((row) => `${row.map(csvCell).join(",")}\n`).join("")], { type: "text/csv" });
const SAVED_STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "paint-order", "opacity", "font-size", "font-weight", "font-family"];

function figureSvg(section) {                           // the panel's figures side by side, with computed colours; canvases become images
  const whole = s("svg", { xmlns: "http://www.w3.org/2000/svg" });
  let width = 0, height = 0;
  for (const host of section.querySelectorAll(".figure")) {
    const real = $("svg", host), canvas = $("canvas.ground", host);
    if (!real || !host.clientWidth) continue;
    const copy = real.cloneNode(true), originals = real.querySelectorAll("*");
    copy.querySelectorAll("*").forEach((node, k) => {
      const style = getComputedStyle(originals[k]);
      for (const name of SAVED_STYLES) node.style.setProperty(name, style.getPropertyValue(name));
    });
    const size = { width: Number(real.getAttribute("width")), height: Number(real.getAttribute("height")) };
    if (canvas) copy.prepend(s("image", { href: canvas.toDataURL(), ...size }));
    copy.setAttribute("x", width);
    whole.append(copy);
    width += size.width + 20;
    height = Math.max(height, size.height);
  }
  whole.prepend(s("rect", { width, height, fill: palette.page }));
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) whole.setAttribute(name, value);
  return whole;
}

async function savePanel(section, kind) {
  const name = `${section.id}.${kind}`;
  if (kind === "csv") return save(name, csvOf(panels.find((panel) => section.contains(panel.host) && panel.values).values()));
  const svg = figureSvg(section), text = new XMLSerializer().serializeToString(svg);
  if (kind === "svg") return save(name, new Blob([text], { type: "image/svg+xml" }));
  const image = new Image(), canvas = h("canvas", { width: 2 * svg.getAttribute("width"), height: 2 * svg.getAttribute("height") });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => save(name, blob), "image/png");
}

// ------------------------------------------------------------------------------------------------- hosts

// In `depthrate serve` the data are polled, and curves, layers and fits are fetched for the view. A file has no server.

const POLL_MS = 2000, SELECT_MS = 250, RELOAD_MS = 5000;
let server = null, isPressed = false;                   // no new data arrive in the middle of a brush

function connect() {
  const base = document.body.dataset.trial ? "../" : "", problem = $("#problem"), fits = new Map();
  const askData = requestOf(`${base}data.bin`), askMarks = requestOf(`${base}marks.json`), ask = (path) => requestOf(base + path)();
  let wanted = "", timer = 0;
  async function poll() {                               // whether something is new
    const [answer, marksAnswer] = await Promise.all([askData(), askMarks()]);
    if (marksAnswer) marks = await marksAnswer.json();
    if (!answer) return marksAnswer;
    adopt(await unpack(await answer.arrayBuffer()));
    fits.clear();
    wanted = "";
    return answer;
  }
  async function load(chosen) {                         // curves and layers of these trials
    const head = await unpack(await (await ask(`rows.bin?of=${chosen.map(idOf).join()}`)).arrayBuffer());
    for (const { by } of Object.values(head.tables)) by.get("trial").data = Int32Array.from(by.get("trial").data, (k) => chosen[k]);
    adoptRows(head.tables);
    server.isLoading = false;
    setDefaults();
    buildControls();
    refreshControls();
    schedule();
  }
  return {
    isLoading: true,
    first: poll,
    watch: () => setInterval(() => document.hidden || isPressed || attempt(problem, async () => {
      if (await poll()) rebuild();
      else if (state.values.includes("running")) { wanted = ""; server.select(); }
    }), POLL_MS),
    async annotate(change) {
      const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(change) };
      marks = await (await requestOf(`${base}marks.json`)(options)).json();
      rebuild();
      drawMarks(true);
    },
    select() {                                          // after each change of the selection, and once it rests
      const done = selected.subarray(0, selectedCount).filter((i) => state.get(i) !== "pending");
      const chosen = pick(done.length, MAX_CURVES).map((k) => done[k]), key = chosen.join();
      if (key === wanted) return;
      wanted = key;
      clearTimeout(timer);
      const again = (error) => { wanted = ""; timer = setTimeout(() => server.select(), POLL_MS); throw error; };
      timer = setTimeout(() => chosen.length && attempt(problem, () => load(chosen).catch(again)), SELECT_MS);
    },
    fits(query) {                                       // the fits of a view, or null until they arrive
      if (!query.keep || !query.metric) return null;
      const text = JSON.stringify(query);
      if (!fits.has(text)) {
        fits.set(text, null);
        const again = (error) => { setTimeout(() => { fits.delete(text); schedule(rates); }, POLL_MS); throw error; };
        attempt(problem, async () => { fits.set(text, await (await ask(`fits.json?of=${encodeURIComponent(text)}`).catch(again)).json()); schedule(rates); });
      }
      return fits.get(text);
    },
  };
}

// The page of one trial: its curves and layers as in the explorer, its neighbours, values, log and code.
async function showTrial(id) {
  const i = indexOf.get(id) ?? -1, link = (to, text) => h("a", { href: idOf(to) }, text);
  document.body.classList.add("single");
  $("#name").textContent = i < 0 ? id : title(i);
  document.title = `${$("#name").textContent} · depthrate`;
  setView({ expression: id });
  const near = h("section", { id: "near" }), values = h("section", { id: "trial" }), log = h("div", { class: "log", tabindex: 0, role: "region", "aria-label": "log" }, "…");
  $("main").prepend(near);
  $("main").append(values);
  if (i >= 0) {
    const others = params.map((c) => [c, neighbours(i, c)]).filter(([, list]) => list.length);
    const facts = [...Object.entries(data.constants), ...trials.columns.map((c) => [c.name, c.get(i)])];
    near.append(h("p", {}, h("i", { class: `state ${state.get(i)}` }), `${state.get(i)}${data.errors[i] ? `: ${clean(data.errors[i], 300)}` : ""}`),
      h("dl", {}, others.map(([c, list]) => [h("dt", {}, `other ${c.label}`), h("dd", {}, list.map((j) => link(j, format(c.get(j), 6))))])),
      h("p", {}, i > 0 && link(i - 1, "← previous trial"), i < n - 1 && link(i + 1, "next trial →")), h("div", { class: "marks", "data-trial": id }));
    drawMarks();
    values.append(h("h2", {}, "Values"), h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, clean(name)), h("dd", {}, format(value, 6))))));
  }
  values.append(h("h2", {}, "Log"), log);
  const answer = await (await requestOf(`${id}.log`)()).json();
  log.replaceChildren(...foldFrames(answer.log));
  for (const [path, text] of Object.entries(answer.code)) values.append(h("details", {}, h("summary", {}, clean(path, 100)), h("pre", { tabindex: 0 }, text)));
}

// A log with the frames of depthrate in its tracebacks folded: every other part.
const OUR_FRAMES = /((?:^  File ".*\/depthrate\/(?:orchestrator|slurm|storage|sweeps|tasks)\/.*\n(?: {4}.*\n?)*)+)/m;

function foldFrames(text) {
  return text.split(OUR_FRAMES).map((part, k) => {
    const block = h("pre", {}, part), count = part.match(/^  File "/gm)?.length;
    return k % 2 ? h("details", {}, h("summary", {}, `${count} ${count === 1 ? "frame" : "frames"} of depthrate`), block) : block;
  });
}

function neighbours(i, c) {                             // the trials that differ from this one in one parameter
  const same = (j) => params.every((other) => other === c || other.data[j] === other.data[i] || Object.is(other.data[j], other.data[i]));
  return [...Array(n).keys()].filter((j) => j !== i && same(j)).slice(0, 40);
}

function drawProgress() {
  const counts = {}, name = clean(data.sweep.name, 100);
  for (let i = 0; i < n; i++) counts[state.get(i)] = (counts[state.get(i)] ?? 0) + 1;
  const done = data.num_done, made = document.body.dataset.made;  // a file's data are of its time, a server's are new
  const rest = ["failed", "diverged", "untrained", "running"].filter((word) => counts[word]).map((word) => `, ${counted(counts[word])} ${word}`);
  $("#progress").replaceChildren(h("i", { style: `--share:${done / Math.max(1, n)}` }), `${counted(done)} of ${counted(n)} done${rest.join("")}${made ? `, as of ${made}` : ""}`);
  if (document.body.dataset.trial) return;
  if (!root.host) document.title = `${name} · depthrate`;
  $("#name").textContent = name;
}

function drawSections() {                               // fits over layers and in several variables, which come as text and pictures
  const sections = data?.sections ?? [], details = $$("#several details");
  $("#several").hidden = !sections.length || "trial" in document.body.dataset;
  keepFocus(root, $("#several"), () => $("#several div").replaceChildren(...sections.map(({ title, header, rows, notes, pictures }, k) => h("details", { open: details[k]?.open ?? k === 0 },
    h("summary", {}, clean(title, 200)),
    rows.length > 0 && h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": clean(title, 200) }, h("table", {},
      h("thead", {}, h("tr", {}, header.map((name) => h("th", {}, name)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, clean(cell, 200)))))))),
    notes.map((note) => h("p", { class: "note" }, clean(note, 1000))),
    pictures.length > 0 && h("div", { class: "picture" }, h("img", { alt: clean(title, 200), src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(pictures[isDarkNode(themed) ? 1 : 0])}` }))))));
}

function rebuild() {                                    // after new data: everything that depends on the columns and their values
  setDefaults();
  buildControls();
  buildSide();
  refreshControls();
  applyAll();
  drawProgress();
  drawPin();
  drawMarks();
  drawSections();
  schedule();
}

function applyAddress() {
  readAddress();
  readPalette();
  pin = indexOf.get(view.pin) ?? -1;
  rebuild();
}

function changeTheme() {
  toggleTheme(themed);
  readPalette();
  drawSections();
  setView({ theme: themed.dataset.theme });
}

async function copyLink() {
  await navigator.clipboard?.writeText(location.href).catch(() => {});
  $("#share").textContent = "copied";
  setTimeout(() => ($("#share").textContent = "copy link"), 1500);
}

function listen() {
  for (const control of $$("select[name], input[name]")) {
    const value = () => (control.type !== "checkbox" ? control.value : control.checked ? "1" : "0");
    control.addEventListener("input", () => setView({ [control.name]: value() }));
  }
  for (const select of $$(".save")) {
    select.addEventListener("change", () => { if (select.value) savePanel(select.closest("section"), select.value); select.value = ""; });
  }
  const clicks = { csv: () => save("trials.csv", csvOf(selectedRows())), theme: changeTheme, share: copyLink, "help-button": () => $("#help").showModal() };
  for (const [id, act] of Object.entries(clicks)) $(`#${id}`).addEventListener("click", act);
  $("#side").open = themed.clientWidth > 860 && !root.host;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readPalette(); drawSections(); schedule(); });
  place.watch(applyAddress);
  root.addEventListener("keydown", onKey);
  for (const [name, pressed] of [["pointerdown", true], ["pointerup", false], ["pointercancel", false]]) root.addEventListener(name, () => (isPressed = pressed), true);
}

function onKey(event) {
  const isTyping = event.target.closest?.("input:not([type=range]):not([type=checkbox]), select, textarea");
  if (event.key === "Escape") { event.target.blur?.(); setPin(-1); showTip(); }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || $("#help").open) return;
  if (event.key === "/") { event.preventDefault(); $("#side").open = true; $("#expression").focus(); }
  if (event.key === "?") $("#help").showModal();
  if (event.key === "t") changeTheme();
  if (event.key === "c") clearFilters();
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (by && pin >= 0 && event.target.type !== "range") step(by);
}

async function start() {
  const base64 = $("#data")?.textContent.trim();
  packed ??= base64 && Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  if (packed) adopt(await unpack(packed));
  else { server = connect(); await server.first(); }
  $("#page").hidden = $("nav").hidden = false;
  setDefaults();
  listen();
  applyAddress();
  server?.watch();
  if (document.body.dataset.trial) await showTrial(document.body.dataset.trial);
  performance.mark("ready");
}

await start().catch((error) => {
  attempt($("#problem"), () => { throw error; });
  if (server) setTimeout(() => location.reload(), RELOAD_MS);
  throw error;
});
return {
  filterBy, setView, setPin, clean, panels,
  get data() { return data; }, get count() { return selectedCount; }, get rates() { return rateState; },
  async receive(bytes) { adopt(await unpack(bytes)); rebuild(); },
};
}
