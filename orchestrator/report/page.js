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
  const cell = (value) => /[",\n]/.test(String(value ?? "")) ? `"${String(value).replaceAll('"', '""')}"` : value ?? "";
  const csv = (target) => target.data.flatMap((trace, number) => trace.type === "heatmap"
    ? trace.z.flatMap((row, i) => row.map((z, j) => [number, trace.name, trace.x[j], trace.y[i], z]))
    : trace.x.map((x, i) => [number, trace.name, x, trace.y[i], ""]).filter((row) => row[2] !== null));
  document.querySelectorAll("button[data-save]").forEach((button) => button.addEventListener("click", async () => {
    const figure = button.closest("figure"), target = figure.querySelector(".plot");
    const name = figure.querySelector("b").textContent.trim().replace(/\W+/g, "-").replace(/-$/, "").toLowerCase();
    if (button.dataset.save === "csv") {
      const rows = [["trace", "name", "x", "y", "z"], ...csv(target)];
      save(`${name}.csv`, "text/csv", rows.map((row) => row.map(cell).join(",")).join("\n") + "\n");
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
