// The explorer in a notebook cell: a widget of anywidget, in a shadow root, so that no style of one page reaches the other.
// Its view and its data are values of the widget: data that the kernel sends later replace those on the page.
async function render({ model, el }) {
  const host = el.appendChild(h("div", { "data-lm-suppress-shortcuts": true })), root = host.attachShadow({ mode: "open" });
  const bytes = () => { const { buffer, byteOffset, byteLength } = model.get("data"); return new Uint8Array(buffer, byteOffset, byteLength); };
  let written = model.get("view");
  const place = {
    read: () => model.get("view"),
    write: (text) => { written = text; model.set("view", text); model.save_changes(); },
    watch: (changed) => model.on("change:view", () => { if (model.get("view") !== written) changed(); }),
  };
  host.addEventListener("keydown", (event) => event.stopPropagation());             // no keys for the notebook
  root.append(h("style", {}, STYLE), document.createRange().createContextualFragment(BODY));
  const explorer = await explore(root, place, bytes());
  model.on("change:data", () => explorer.receive(bytes()));
}
export default { render };
