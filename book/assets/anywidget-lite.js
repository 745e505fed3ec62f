// Brings the widgets of a page to life with no server, no kernel and no other script.
//
// A built page carries the state of its widgets as JSON. Each anywidget brings its own ES module in that state (`_esm`): this file
// reads the state, gives each module a model to talk to, and lets it draw where its output stood. Works from file://.
(() => {
  "use strict";
  const STATE = 'script[type="application/vnd.jupyter.widget-state+json"]';
  const VIEW = 'script[type="application/vnd.jupyter.widget-view+json"]';

  // Binary values are kept beside the state, as base64; a widget expects them in their place, as DataViews.
  function restoreBuffers(state, buffers) {
    for (const { path, data } of buffers || []) {
      const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
      let target = state;
      for (const key of path.slice(0, -1)) target = target[key];
      target[path[path.length - 1]] = new DataView(bytes.buffer);
    }
  }

  class Model {
    constructor(state, models) {
      this.state = state;
      this.listeners = new Map(); // event name -> set of callbacks
      this.widget_manager = { get_model: async (id) => models.get(id.replace(/^IPY_MODEL_/, "")) };
    }
    get(name) {
      return this.state[name];
    }
    set(name, value) {
      const changes = typeof name === "object" ? name : { [name]: value };
      let changed = false;
      for (const [key, next] of Object.entries(changes)) {
        if (Object.is(this.state[key], next)) continue;
        this.state[key] = next;
        this.emit(`change:${key}`, next);
        changed = true;
      }
      if (changed) this.emit("change");
    }
    save_changes() {} // there is no kernel to tell
    send() {}
    on(names, callback) {
      for (const name of names.split(" ")) {
        if (!this.listeners.has(name)) this.listeners.set(name, new Set());
        this.listeners.get(name).add(callback);
      }
    }
    off(names, callback) {
      for (const name of names ? names.split(" ") : this.listeners.keys()) {
        if (callback) this.listeners.get(name)?.delete(callback);
        else this.listeners.delete(name);
      }
    }
    emit(name, value) {
      for (const callback of [...(this.listeners.get(name) || [])]) callback(this, value);
    }
  }

  const modules = new Map(); // source text -> promise of the widget it defines
  function loadWidget(source) {
    if (!modules.has(source)) {
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      modules.set(
        source,
        import(url).then(({ default: widget }) => (typeof widget === "function" ? widget() : widget)),
      );
    }
    return modules.get(source);
  }

  const styles = new Set();
  function addStyle(text) {
    if (!text || styles.has(text)) return;
    styles.add(text);
    const style = document.createElement("style");
    style.textContent = text;
    document.head.append(style);
  }

  function say(place, text) {
    const note = document.createElement("p");
    note.className = "bk-widget-note";
    note.textContent = text;
    place.append(note);
  }

  async function mountAll() {
    const script = document.querySelector(STATE);
    if (!script) return;
    const saved = JSON.parse(script.textContent).state;
    const models = new Map();
    for (const [id, { state, buffers }] of Object.entries(saved)) {
      restoreBuffers(state, buffers);
      models.set(id, new Model(state, models));
    }
    const initialized = new Map(); // model id -> promise
    for (const view of document.querySelectorAll(VIEW)) {
      const id = JSON.parse(view.textContent).model_id;
      const model = models.get(id);
      const place = document.createElement("div");
      view.after(place);
      if (!model || typeof model.get("_esm") !== "string") {
        say(place, "This control needs a running kernel: open the chapter in JupyterLab.");
        continue;
      }
      try {
        addStyle(model.get("_css"));
        const widget = await loadWidget(model.get("_esm"));
        const experimental = { invoke: () => Promise.reject(new Error("no kernel behind this page")) };
        if (!initialized.has(id)) initialized.set(id, widget.initialize?.({ model, experimental }));
        await initialized.get(id);
        await widget.render?.({ model, el: place, experimental });
      } catch (error) {
        console.error(error);
        say(place, `This figure could not be drawn: ${error}`);
      }
    }
  }

  const ready = () => mountAll().finally(() => (document.documentElement.dataset.widgets = "ready"));
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", ready);
  else ready();
})();
