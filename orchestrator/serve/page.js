// What the pages do: ask the server every second for what has changed, and show it. Everything that comes is text.
"use strict";
const { page, root } = document.body.dataset;
const EVERY_MS = 1000, FIGURES_MS = 3000, SHOWN_ROWS = 500;
const STATES = ["ok", "diverged", "running", "failed", "pending"];
const at = (id) => document.getElementById(id);

const make = (tag, properties = {}, ...children) => {
  const { data, ...rest } = properties, made = Object.assign(document.createElement(tag), rest);
  Object.assign(made.dataset, data ?? {});
  made.append(...children);
  return made;
};

// Measured numbers keep the zeros at their end; those that somebody wrote do not get any.
const text = (value, digits = 4, keepsZeros = false) => {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return Array.isArray(value) ? value.map((each) => text(each)).join(", ") : String(value);
  if (keepsZeros && value) return value.toPrecision(digits).includes("e") ? value.toExponential(digits - 1) : value.toPrecision(digits);
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(digits)));
};
const isMeasured = (value, digits) => typeof value === "number" && Number(value.toPrecision(digits)) !== value && !Number.isInteger(value);

// What is wrong, by who says it: the store is away, the server is, an answer is none.
const wrongs = new Map();
const say = (who, sentence) => {
  if (sentence) wrongs.set(who, sentence); else wrongs.delete(who);
  const sentences = [...new Set(wrongs.values())];
  at("errors").hidden = !sentences.length;
  if (at("errors").textContent !== sentences.join(" ")) at("errors").textContent = sentences.join(" ");
};

// Ask again and again; what has not changed is answered in one line (304). A page that nobody sees asks nothing.
const watch = (address, show, everyMs = EVERY_MS) => {
  let etag = null, asked = null, timer = null, isAsking = false;
  const ask = async () => {
    clearTimeout(timer);
    if (isAsking) return;
    isAsking = true;
    try {
      if (document.hidden) return;
      const url = address();
      if (url !== asked) [etag, asked] = [null, url];
      const answer = await fetch(root + url, { cache: "no-store", headers: etag ? { "If-None-Match": etag } : {} });
      if (answer.status === 200) {
        const found = await answer.json();
        say("store", found.error);
        say(address, "");
        if (url === address()) { await show(found); etag = answer.headers.get("ETag"); }
      } else if (answer.status === 304) say(address, "");
      else say(address, (await answer.text()).trim().slice(0, 500));
      say("server", "");
    } catch (error) {
      if (error instanceof TypeError) say("server", "The server does not answer. Retrying.");
      else { say("page", `This page could not show an answer: ${error}`); console.error(error); }
    } finally {
      isAsking = false;
      timer = setTimeout(ask, everyMs);
    }
  };
  document.addEventListener("visibilitychange", () => document.hidden || ask());
  ask();
  return ask;
};

const bar = (counts, total) => {
  const made = make("div", { className: "bar", role: "img" });
  made.ariaLabel = STATES.filter((state) => counts[state]).map((state) => `${counts[state]} ${state}`).join(", ");
  for (const state of STATES.slice(0, 4)) {
    const part = make("span", { className: state });
    part.style.width = `${100 * counts[state] / Math.max(total, 1)}%`;
    made.append(part);
  }
  return made;
};

const lines = (sentences) => make("ul", { className: "lines" }, ...sentences.map((each) => make("li", { textContent: each })));
const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString();
const cell = (label, content, className = "", digits = 4, keepsZeros = false) => {
  const made = make("td", { className, data: { label } }, content instanceof Node ? content : text(content, digits, keepsZeros));
  if (!made.textContent && !(content instanceof Node)) made.classList.add("none");
  return made;
};
const pill = (state) => make("span", { className: `pill ${state}`, textContent: state });

// A table that sorts by a click on its columns and filters by words: `ok`, `depth>=5`, `nc1<0.1`.
const makeTable = (target, { link, filter, shown, states, digits = 4 }) => {
  let data = { columns: [], rows: [] }, column = -1, isFalling = false, key = "", kept = new Map();
  const compare = (a, b) => {
    if (a === null || b === null || a === undefined || b === undefined) return (a ?? null) === null ? ((b ?? null) === null ? 0 : 1) : -1;
    return typeof a === "number" && typeof b === "number" ? a - b : text(a).localeCompare(text(b), undefined, { numeric: true });
  };
  const tests = () => (filter?.value ?? "").trim().split(/\s+/).filter(Boolean).map((word) => {
    const found = word.match(/^(.+?)(<=|>=|!=|=|<|>)(.*)$/);
    const place = found ? data.columns.findIndex((name) => name.replaceAll(" ", "_") === found[1]) : -1;
    if (place < 0) return (row) => row.some((value) => text(value).toLowerCase().includes(word.toLowerCase()));
    const [, , sign, given] = found, number = Number(given);
    return (row) => {
      const value = row[place];
      if (value === null || value === undefined) return sign === "!=";
      const order = typeof value === "number" && !Number.isNaN(number) ? value - number : text(value).localeCompare(given);
      return { "<": order < 0, ">": order > 0, "<=": order <= 0, ">=": order >= 0, "=": order === 0, "!=": order !== 0 }[sign];
    };
  });
  const body = make("tbody"), head = make("thead");
  const box = make("div", { className: "scroll", tabIndex: 0, hidden: true }, make("table", { className: "sortable" }, head, body));
  target.append(box);
  const isNumber = (place) => data.rows.some((row) => typeof row[place] === "number");
  const draw = () => {
    const numeric = data.columns.map((_, place) => isNumber(place)), wanted = tests();
    const measured = data.columns.map((_, place) => data.rows.some((row) => isMeasured(row[place], digits)));
    let rows = data.rows.filter((row) => wanted.every((test) => test(row)) && (!states?.size || states.has(row[1])));
    if (column >= 0) rows = [...rows].sort((a, b) => {
      const order = compare(a[column], b[column]);
      const isMissing = [a[column], b[column]].some((value) => value === null || value === undefined);
      return isFalling && !isMissing ? -order : order;
    });
    box.hidden = !data.columns.length;
    const drawn = new Map(); // a row that is as it was stays: most are, and a selection in them with it
    body.replaceChildren(...rows.slice(0, SHOWN_ROWS).map((row, number) => {
      const known = `${key}${measured}${JSON.stringify(row)}${link ? "" : number}`;
      const made = kept.get(known) ?? make("tr", {}, ...row.map((value, place) => {
        const name = data.columns[place];
        if (link && place === 0) return cell(name, make("a", { href: link(value) }, make("code", { textContent: value })));
        if (link && place === 1) return cell(name, pill(value));
        return cell(name, value, numeric[place] ? "number" : name === "error" ? "long" : "", digits, measured[place]);
      }));
      drawn.set(known, made);
      return made;
    }));
    kept = drawn;
    if (shown) {
      const cut = rows.length > SHOWN_ROWS ? `; the first ${SHOWN_ROWS} are shown` : "";
      shown.textContent = `${rows.length} of ${data.rows.length}${cut}`;
    }
  };
  const drawHead = () => {
    const heads = data.columns.map((name, place) => {
      const button = make("button", { type: "button", textContent: name });
      const made = make("th", { scope: "col", className: isNumber(place) ? "number" : "" }, button);
      button.addEventListener("click", () => {
        isFalling = column === place && !isFalling;
        column = place;
        [...made.parentElement.children].forEach((other) => other.removeAttribute("aria-sort"));
        made.setAttribute("aria-sort", isFalling ? "descending" : "ascending");
        draw();
      });
      if (place === column) made.setAttribute("aria-sort", isFalling ? "descending" : "ascending");
      return made;
    });
    head.replaceChildren(make("tr", {}, ...heads));
  };
  filter?.addEventListener("input", draw);
  return {
    draw,
    show: (found) => {
      const sorted = data.columns[column];
      data = found;
      column = sorted === undefined ? -1 : data.columns.indexOf(sorted);
      const now = JSON.stringify([data.columns, data.columns.map((_, place) => isNumber(place))]);
      if (now !== key) { key = now; drawHead(); }
      draw();
    },
  };
};

// Plotly reads some tags in labels: a user's text has none left.
const plain = (value) => text(value).replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]).slice(0, 60);
const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
                 modeBarButtonsToRemove: ["select2d", "lasso2d"] };
const AXIS = { showline: true, linecolor: "#333333", gridcolor: "#e8e8e8", zeroline: false, automargin: true };
const LOG = { type: "log", exponentformat: "power", minorloglabels: "none" };
const COLOURS = ["#365c8d", "#1fa187", "#b4552d", "#7a4fa3", "#c29a1b", "#4ac16d", "#a33b62", "#5b7083"];
const drawLines = (target, given, title) => {
  const traces = given.map((trace) => { // as the report has it: step 0 has no place on a log axis
    const kept = trace.x.map((_, place) => place).filter((place) => trace.x[place] > 0);
    return { ...trace, x: kept.map((place) => trace.x[place]), y: kept.map((place) => trace.y[place]) };
  }).filter((trace) => trace.x.length);
  const hasLegend = traces.length > 1 && traces.length < 9;
  const isLog = traces.length > 0 && traces.every((trace) => trace.y.every((value) => value === null || value > 0));
  const layout = {
    xaxis: { ...AXIS, ...LOG, title: { text: "Step" } },
    yaxis: { ...AXIS, ...(isLog ? LOG : {}), title: { text: plain(title) } },
    margin: { l: 56, r: 14, t: 10, b: hasLegend ? 84 : 48 }, font: { size: 12, color: "#222222" }, paper_bgcolor: "white", plot_bgcolor: "white",
    showlegend: hasLegend, hovermode: "closest",
    legend: { orientation: "h", xref: "container", yref: "container", x: 0, y: 0, yanchor: "bottom" },
    uirevision: title,
  };
  if (traces.length) { target.hidden = false; Plotly.react(target, traces, layout, { ...CONFIG, displayModeBar: false }); }
  else target.hidden = true;
};

// The report's figures, each drawn again when it has changed and is in view, one after the other: rows that come do not wait.
const makeFigures = (target) => {
  let kept = new Map(), isDrawing = false;
  const due = new Set(), inView = new Set();
  const draw = async () => {
    if (isDrawing) return;
    isDrawing = true;
    try {
      for (const each of due) {
        if (!inView.has(each.node)) continue;
        due.delete(each);
        const { data, layout, frames, rows } = JSON.parse(each.text);
        each.plot.style.setProperty("--rows", rows);
        await Plotly.react(each.plot, { data, layout: { ...layout, uirevision: "same" }, frames,
          config: { ...CONFIG, toImageButtonOptions: { format: "svg" } } });
        await new Promise((resume) => setTimeout(resume, 50));
      }
    } finally { isDrawing = false; }
  };
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) inView.add(entry.target); else inView.delete(entry.target);
    draw();
  }, { rootMargin: "200px" });
  return (figures) => {
    const now = new Map();
    figures.forEach((figure, number) => {
      const name = `${number} ${figure.title}`, text = JSON.stringify(figure);
      const each = kept.get(name) ?? { node: make("figure"), plot: make("div", { className: "plot" }), caption: make("figcaption") };
      if (!kept.has(name)) { each.node.append(each.plot, each.caption); observer.observe(each.node); }
      if (each.text !== text) due.add(each);
      each.text = text;
      each.caption.replaceChildren(make("b", { textContent: `Figure ${number + 1}. ` }), `${figure.title}. ${figure.notes}`);
      now.set(name, each);
    });
    for (const [name, each] of kept) if (!now.has(name)) {
      observer.unobserve(each.node);
      inView.delete(each.node);
      due.delete(each);
      Plotly.purge(each.plot);
    }
    kept = now;
    const nodes = [...now.values()].map((each) => each.node);
    if (nodes.some((node, place) => target.children[place] !== node) || nodes.length !== target.children.length)
      target.replaceChildren(...nodes);
    draw();
  };
};

const described = (values) => {
  const list = make("dl");
  for (const [name, value] of Object.entries(values).filter(([, value]) => text(value) !== ""))
    list.append(make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: text(value, 4, isMeasured(value, 4)) })));
  return list;
};

// The choice of the logged quantity.
const makeChooser = (changed) => {
  const select = make("select", { ariaLabel: "Logged quantity", hidden: true }), chooser = { of: "", show: null };
  chooser.show = (names, of) => {
    if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n"))
      select.replaceChildren(...names.map((name) => make("option", { value: name, textContent: name })));
    select.value = of;
    select.hidden = !names.length;
  };
  select.addEventListener("change", () => { chooser.of = select.value; changed(); });
  at("of").append(select);
  return chooser;
};
const dash = (split) => (split === "train" ? "solid" : "dot");

const pages = {
  index() {
    watch(() => "state.json", (found) => {
      const heads = ["sweep", "progress", "done", "running", "failed", "pending", "trial-hours", "cost", "attempts failed", "note"];
      const rows = found.sweeps.map((sweep) => {
        const { counts } = sweep, link = make("a", { href: `${root}sweep/${encodeURIComponent(sweep.name)}/`, textContent: sweep.name });
        return make("tr", {}, cell("sweep", link), cell("progress", bar(counts, sweep.trials), "wide"),
          cell("done", `${counts.ok + counts.diverged} of ${sweep.trials}`, "number"),
          ...["running", "failed", "pending"].map((state) => cell(state, counts[state] || null, "number")),
          cell("trial-hours", sweep.trial_hours, "number"), cell("cost", sweep.allocated),
          cell("attempts failed", sweep.failures || null, "number"), cell("note", sweep.note, "long"));
      });
      const right = ["done", "running", "failed", "pending", "trial-hours", "attempts failed"];
      const head = make("tr", {}, ...heads.map((name) => (
        make("th", { scope: "col", textContent: name, className: right.includes(name) ? "number" : "" }))));
      const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
      at("sweeps").replaceChildren(rows.length ? make("div", { className: "scroll" }, table)
        : make("p", { textContent: found.is_seen ? "No sweep was launched in this store yet." : "The store is being read …" }));
    });
  },

  sweep() {
    const states = new Set();
    const table = makeTable(at("table"), {
      link: (trial) => `trial/${encodeURIComponent(trial)}`, filter: at("filter"), shown: at("shown"), states,
    });
    watch(() => `${here}trials.json`, (found) => {
      const { counts } = found.sweep;
      const pills = STATES.filter((state) => counts[state]).map((state) => {
        const button = make("button", { type: "button", className: `pill ${state}`, ariaPressed: String(states.has(state)) },
          make("b", { textContent: counts[state] }), ` ${state}`);
        button.addEventListener("click", () => {
          if (!states.delete(state)) states.add(state);
          button.ariaPressed = String(states.has(state));
          table.draw();
        });
        return button;
      });
      const events = found.sweep.events.map((event) => `${clock(event.at)}  ${event.text}`);
      at("summary").replaceChildren(bar(counts, found.sweep.trials), make("p", { className: "pills" }, ...pills),
        lines(found.sweep.lines), ...(events.length ? [make("h3", { textContent: "Events of the last launch" }), lines(events)] : []));
      table.show(found);
    });
    const chosen = makeChooser(() => again());
    const again = watch(() => `${here}curves.json?of=${encodeURIComponent(chosen.of)}`, (found) => {
      chosen.show(found.names, found.of);
      const colours = new Map();
      const traces = found.lines.map((line) => {
        if (!colours.has(line.trial)) colours.set(line.trial, COLOURS[colours.size % COLOURS.length]);
        const name = plain(line.label + (line.split === "train" ? "" : ` (${line.split})`));
        return { x: line.x, y: line.y, mode: "lines", name, hovertemplate: `${name}<br>step %{x}: %{y}<extra></extra>`,
                 line: { color: colours.get(line.trial), width: line.running ? 2 : 1, dash: dash(line.split) },
                 opacity: line.running ? 1 : 0.5 };
      });
      drawLines(at("lines"), traces, found.of);
      const running = new Set(found.lines.filter((line) => line.running).map((line) => line.trial)).size;
      at("lines-note").textContent = traces.length
        ? `Strong: ${running} running. Light: ${colours.size - running} committed last.`
        : "Nothing has been logged yet.";
    });
    const showFigures = makeFigures(at("plots"));
    let rendered = "";
    const begin = () => watch(() => `${here}figures.json`, async (found) => {
      at("figures-note").textContent = found.render_error ? `Rendering failed: ${found.render_error}`
        : found.rendered ? "" : "Rendering …";
      if (!found.rendered || found.rendered === rendered) return;
      const answer = await fetch(`${root}${here}figures/${found.rendered}.json`);
      if (!answer.ok) return; // a newer render has replaced them
      rendered = found.rendered;
      const figures = await answer.json();
      if (!figures.length) at("figures-note").textContent = "No figures yet.";
      showFigures(figures);
    }, FIGURES_MS);
    const seen = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      at("figures-note").textContent = "Rendering …";
      begin();
    }, { rootMargin: "200px" });
    seen.observe(at("figures"));
  },

  trial() {
    const name = location.pathname.split("/").at(-1);
    let found = null;
    const draw = () => {
      const of = found.names.includes(chosen.of) ? chosen.of : found.names[0] ?? "";
      chosen.show(found.names, of);
      const traces = Object.entries(found.curves).filter(([, columns]) => columns[of]).map(([split, columns], number) => (
        { x: columns.step, y: columns[of], mode: "lines+markers", marker: { size: 4 }, name: plain(split),
          line: { color: COLOURS[number % COLOURS.length], dash: dash(split) } }));
      drawLines(at("lines"), traces, of);
      at("lines-note").textContent = traces.length ? "" : "Nothing has been logged yet.";
    };
    const chosen = makeChooser(draw);
    watch(() => `${here}trial/${name}.json`, (answer) => {
      found = answer;
      at("summary").replaceChildren(make("p", { className: "pills" }, pill(found.state)),
        ...(found.trial_error ? [lines([found.trial_error])] : []));
      at("params").replaceChildren(described(found.params));
      at("numbers").replaceChildren(described(found.numbers));
      draw();
    });
    watch(() => `${here}trial/${name}.log`, (found) => { at("text").textContent = found.log; }, 5000);
  },

  sql() {
    const table = makeTable(at("table"), { digits: 6 });
    watch(() => "state.json", (found) => {
      const chosen = at("of").value;
      at("of").replaceChildren(make("option", { value: "", textContent: "all" }),
        ...found.sweeps.map((sweep) => make("option", { value: sweep.name, textContent: sweep.name })));
      at("of").value = chosen;
    }, FIGURES_MS);
    const ask = async () => {
      at("result-note").textContent = "…";
      at("table").classList.add("busy");
      const began = performance.now();
      try {
        const body = JSON.stringify({ sql: at("query").value, sweep: at("of").value || null });
        const answer = await fetch(`${root}sql`, { method: "POST", body, headers: { "Content-Type": "application/json" } });
        if (!answer.ok) { at("result-note").textContent = (await answer.text()).trim(); return; }
        const found = await answer.json(), took = ((performance.now() - began) / 1000).toFixed(1);
        table.show(found);
        const more = found.more ? `the first ${found.rows.length} rows; there are more`
          : found.rows.length === 1 ? "1 row" : `${found.rows.length} rows`;
        at("result-note").textContent = [`${more}, in ${took} s.`, ...found.problems].join(" ");
      } catch { at("result-note").textContent = "The server does not answer."; }
      finally { at("table").classList.remove("busy"); }
    };
    at("form").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
    at("query").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); ask(); }
    });
    document.querySelectorAll(".example").forEach((button) => button.addEventListener("click", () => {
      at("query").value = button.textContent;
      ask();
    }));
  },
};
// The sweep's own folder, as the addresses below `root` have it.
const here = (location.pathname.match(/sweep\/[^/]+\//) ?? [""])[0];
pages[page]?.();
