// Results of a kernel, one for each setting of the controls, each with its timeline; all were run when the page was made.
function render({ model, el }) {
  const controls = model.get("controls"), results = model.get("results"), timelines = model.get("timelines"), title = model.get("title");
  let values = [...model.get("values")];
  const root = make("div", { class: "bk-widget bk-runpanel", role: "group", "aria-label": title, "data-widget": model.get("name"), "data-state": "loading" });
  const bar = make("div", { class: "bk-controls" });
  const result = make("div", { class: "bk-view", role: "region", tabindex: "0", "aria-label": "Result" });
  const text = make("output", { class: "bk-step", "aria-live": "polite" });
  const events = make("div", { class: "bk-timeline" });
  root.append(bar, result, text, events);
  const caption = model.get("caption");
  if (caption) root.append(make("p", { class: "bk-cap", html: caption }));
  let stop = () => {}, mounted = -1, settings = "";
  const shows = [];
  const draw = () => {
    const entry = results[controls.reduce((at, c, i) => at * c.options.length + values[i], 0)];
    result.innerHTML = entry.svg;
    text.innerHTML = entry.text;
    shows.forEach((show, i) => show(values[i]));
    settings = controls.map((c, i) => `${c.name}=${values[i]}`).join(";");
    if (entry.timeline !== mounted) {
      stop();
      events.replaceChildren();
      mounted = entry.timeline;
      stop = mountTimeline(events, timelines[mounted], { title: `Timeline: ${title}`, report: (state) => root.setAttribute("data-state", `${settings};${state}`),
        ready: () => root.setAttribute("data-ready", "1") });
    } else {
      root.setAttribute("data-state", `${settings};same`);
    }
  };
  controls.forEach((control, i) => {
    const { node, show } = choice(control, values[i], (v) => { values[i] = v; model.set("values", [...values]); model.save_changes(); draw(); });
    shows[i] = show;
    bar.append(node);
  });
  el.append(root);
  draw();
  const outside = () => { values = [...model.get("values")]; draw(); };
  model.on("change:values", outside);
  return () => { stop(); model.off("change:values", outside); };
}
export default { render };
