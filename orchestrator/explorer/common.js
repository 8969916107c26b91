// What the explorer and the home page of `depthrate serve` share: elements, texts, numbers, scales, the theme, requests.
// page.py puts this text before theirs. All texts of users become text nodes or attributes, never markup.

function element(namespace, tag, attributes, children) {
  const node = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false && child !== ""));
  return node;
}
const h = (tag, attributes, ...children) => element(null, tag, attributes, children);
const s = (tag, attributes, ...children) => element("http://www.w3.org/2000/svg", tag, attributes, children);

const MAX_LABEL = 40;
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/gu;

// A text of a user on one line: characters that hide or turn text are shown by their numbers, and long texts are cut.
function clean(text, most = MAX_LABEL) {
  return shortLabel(String(text), most).replace(INVISIBLE, (character) => `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`);
}
const shortLabel = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const fixed = (v) => v.toFixed(Math.abs(v) < 10 ? 2 : 1).replace("-", "−");
const counted = (k) => k.toLocaleString("en");
const interval = (lo, hi) => (lo == null || hi == null ? "no interval" : `[${fixed(lo)}, ${fixed(hi)}]`);

function makeScale(log, lo, hi, from, to) {
  if (!(hi > lo)) [lo, hi] = log ? [lo / 1.5, lo * 1.5] : [lo - 1, lo + 1];
  const f = log ? Math.log : (v) => v, g = log ? Math.exp : (v) => v;
  const start = f(lo), k = (to - from) / (f(hi) - start);
  const scale = (v) => from + (f(v) - start) * k;
  scale.invert = (position) => g(start + (position - from) / k);
  return Object.assign(scale, { log, lo, hi, from, to });
}

const pathOf = (xs, y) => `M${xs.map(y).join("L")}`;

// Makes the content of a node anew, with the focus on the same link, or on the control in the same place.
function keepFocus(root, host, act) {
  const controls = () => [...host.querySelectorAll("a, button, input, summary, [tabindex]")], focused = root.activeElement, place = controls().indexOf(focused);
  act();
  if (place >= 0) controls().find((control, k) => (focused.href ? control.href === focused.href : k === place))?.focus({ preventScroll: true });
}

function isDarkNode({ dataset: { theme } }) {
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function toggleTheme(node) {
  node.dataset.theme = isDarkNode(node) ? "light" : "dark";
}

// A function that requests an address and returns the answer, or null if it has not changed since the last call.
function requestOf(path) {
  let tag = "";
  return async (options) => {
    const answer = await fetch(path, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store", ...options });
    if (answer.status === 304) return null;
    if (!answer.ok) throw new Error(await answer.text());
    tag = answer.headers.get("ETag");
    return answer;
  };
}

let answered = "";                                      // time of the last answer, and so of the data on the page
async function attempt(node, act) {                     // a failure is shown, and the next poll tries again
  let problem = "";
  try {
    problem = (await act()) ?? "";
  } catch (error) {
    problem = error instanceof TypeError ? `The server does not answer. Retrying.${answered ? ` Data of ${answered}.` : ""}` : error.message;
  }
  if (!problem) answered = new Date().toLocaleTimeString("en-GB");
  node.textContent = clean(problem, 500);
  node.hidden = !problem;
}
