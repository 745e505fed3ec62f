// Shared by every widget; put in front of each widget's own code. No imports, no network.
const SVG_NS = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "html") node.innerHTML = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

const ICONS = {
  prev: "M10 2v10L3 7z", next: "M4 2v10l7-5z", play: "M3 1.5v11l9.5-5.5z", pause: "M3 2h3v10H3zM8 2h3v10H8z",
  zoomin: "M6 2h2v4h4v2H8v4H6V8H2V6h4z", zoomout: "M2 6h10v2H2z", fit: "M1 6h3V3l4 4-4 4V8H1zM13 2h-2v10h2z",
};

function iconButton(icon, label, className) {
  const button = make("button", { type: "button", class: `bk-btn ${className}`, "aria-label": label, title: label });
  setIcon(button, icon);
  return button;
}

function setIcon(button, icon) {
  const svg = document.createElementNS(SVG_NS, "svg");
  svg.setAttribute("viewBox", "0 0 14 14");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG_NS, "path");
  path.setAttribute("d", ICONS[icon]);
  svg.append(path);
  button.replaceChildren(svg);
}

// Previous / play / next buttons that call step(+1 | -1). Returns the nodes and a stop function.
function transport(step, interval, onPlaying = () => {}) {
  const prev = iconButton("prev", "Previous step", "bk-prev");
  const play = iconButton("play", "Play", "bk-play");
  const next = iconButton("next", "Next step", "bk-next");
  let timer = null;
  const stop = () => {
    if (timer !== null) clearInterval(timer);
    timer = null;
    setIcon(play, "play");
    play.setAttribute("aria-pressed", "false");
    play.setAttribute("aria-label", "Play");
    onPlaying(false);
  };
  play.setAttribute("aria-pressed", "false");
  play.addEventListener("click", () => {
    if (timer !== null) return stop();
    step(1);
    timer = setInterval(() => step(1), interval);
    setIcon(play, "pause");
    play.setAttribute("aria-pressed", "true");
    play.setAttribute("aria-label", "Pause");
    onPlaying(true);
  });
  prev.addEventListener("click", () => { stop(); step(-1); });
  next.addEventListener("click", () => { stop(); step(1); });
  return { nodes: [prev, play, next], stop };
}

// A set of radio buttons or a select; change(index) on a choice. Returns { node, show(index) }.
let radioGroups = 0;
function choice(control, index, change) {
  if (control.kind === "select") {
    const select = make("select", { class: "bk-select", "data-control": control.name, "aria-label": control.label });
    control.options.forEach((text, i) => select.append(make("option", { value: i }, text)));
    select.value = index;
    select.addEventListener("change", () => change(+select.value));
    const label = make("span", { class: "bk-label", "aria-hidden": "true" }, control.label);
    return { node: make("span", { class: "bk-choice" }, label, select), show: (i) => { select.value = i; } };
  }
  const group = make("fieldset", { class: "bk-choice", "data-control": control.name }, make("legend", {}, control.label));
  const name = `bk-${control.name}-${Date.now().toString(36)}-${radioGroups++}`;
  const inputs = control.options.map((text, i) => {
    const input = make("input", { type: "radio", name, value: i });
    input.checked = i === index;
    input.addEventListener("change", () => input.checked && change(i));
    group.append(make("label", {}, input, text));
    return input;
  });
  return { node: group, show: (i) => { inputs[i].checked = true; } };
}
