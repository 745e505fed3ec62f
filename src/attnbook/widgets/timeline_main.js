function render({ model, el }) {
  const title = model.get("title");
  const root = make("div", { class: "bk-widget bk-timeline", role: "group", "aria-label": title, "data-widget": model.get("name"), "data-state": "loading" });
  el.append(root);
  const window_ = model.get("window");
  const stop = mountTimeline(root, model.get("data"), { title, window: window_.length ? window_ : null, cursor: model.get("cursor") });
  root.append(make("div", { class: "bk-print", html: model.get("still") }));
  const caption = model.get("caption");
  if (caption) root.append(make("p", { class: "bk-cap", html: caption }));
  return stop;
}
export default { render };
