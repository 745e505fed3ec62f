// Frames of a picture, chosen by one or more controls. Each distinct SVG element is sent once (pool) and named by number.
function render({ model, el }) {
  const controls = model.get("controls");
  const pool = model.get("pool");
  const frames = model.get("frames");
  const steps = model.get("steps");
  const title = model.get("title");
  const [width, height] = model.get("size");
  const numbers = (i) => { // a frame is whole, or the changes to another one
    const frame = frames[i];
    if (frame.all) return frame.all;
    const list = [...numbers(frame.from)];
    for (let k = 0; k < frame.set.length; k += 2) list[frame.set[k]] = frame.set[k + 1];
    return list;
  };
  let values = [...model.get("values")];

  const view = make("div", { class: "bk-view", role: "region", tabindex: "0", "aria-label": title });
  const out = make("output", { class: "bk-step", "aria-live": "polite" });
  const bar = make("div", { class: "bk-controls" });
  const root = make("div", { class: "bk-widget bk-explorer", role: "group", "aria-label": title, "data-widget": model.get("name") });
  root.append(view, bar, out);
  const caption = model.get("caption");
  if (caption) root.append(make("p", { class: "bk-cap", html: caption }));
  const head = `<svg class="bk" xmlns="${SVG_NS}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img">`;

  const frameOf = () => controls.reduce((at, c, i) => at * c.options.length + values[i], 0);
  const length = (i) => (controls[i].limits ? controls[i].limits[values[0]] : controls[i].options.length);
  const shows = [];
  const draw = () => {
    const at = frameOf();
    view.innerHTML = head + numbers(at).map((i) => pool[i]).join("") + "</svg>";
    view.firstChild.setAttribute("aria-label", title);
    out.innerHTML = steps[at] || "";
    shows.forEach((show, i) => show(values[i]));
    root.setAttribute("data-state", controls.map((c, i) => `${c.name}=${values[i]}`).join(";"));
  };
  const set = (control, value) => {
    const n = length(control);
    const v = ((value % n) + n) % n;
    if (v === values[control]) return;
    values[control] = v;
    controls.forEach((c, i) => { values[i] = Math.min(values[i], length(i) - 1); });
    model.set("values", [...values]);
    model.save_changes();
    draw();
  };

  let stop = () => {};
  const primary = controls.findIndex((c) => c.kind === "range");
  controls.forEach((control, index) => {
    if (control.kind !== "range") {
      const { node, show } = choice(control, values[index], (v) => set(index, v));
      shows[index] = show;
      bar.append(node);
      return;
    }
    const range = make("input", { type: "range", class: "bk-range", min: 0, max: control.options.length - 1, step: 1,
      "data-control": control.name, "aria-label": control.label });
    const count = make("span", { class: "bk-count", "aria-hidden": "true" });
    range.addEventListener("input", () => { stop(); set(index, +range.value); });
    shows[index] = (v) => {
      range.max = length(index) - 1;
      range.value = v;
      range.setAttribute("aria-valuetext", control.options[v]);
      count.textContent = control.options[v];
    };
    const box = make("div", { class: "bk-grow" });
    if (index === primary) {
      const buttons = transport((d) => set(index, values[index] + d), model.get("interval"),
        (playing) => out.setAttribute("aria-live", playing ? "off" : "polite"));
      stop = buttons.stop;
      box.append(...buttons.nodes);
    }
    box.append(make("span", { class: "bk-label" }, control.label), range, count);
    bar.append(box);
  });

  // Parts of the drawing are controls too: data-set="row:3" (several: "row:3,mode:1"); with class "hov" already under the pointer.
  const fromPicture = (event, hovering) => {
    const target = event.target.closest("[data-set]");
    if (!target || (hovering && !target.closest(".hov"))) return;
    stop();
    for (const part of target.getAttribute("data-set").split(",")) {
      const [name, value] = part.split(":");
      const index = controls.findIndex((c) => c.name === name);
      if (index >= 0) set(index, +value);
    }
  };
  view.addEventListener("click", (e) => fromPicture(e, false));
  view.addEventListener("pointerover", (e) => e.pointerType === "mouse" && fromPicture(e, true));
  view.addEventListener("keydown", (e) => {
    const d = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (d && primary >= 0 && view.scrollWidth <= view.clientWidth) { e.preventDefault(); stop(); set(primary, values[primary] + d); }
  });

  const outside = () => { values = [...model.get("values")]; draw(); };
  model.on("change:values", outside);
  draw();
  el.append(root);
  root.setAttribute("data-ready", "1");
  return () => { stop(); model.off("change:values", outside); };
}
export default { render };
