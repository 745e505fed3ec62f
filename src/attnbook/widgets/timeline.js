// The events of a run on a canvas: one row for each warp and unit, zoom, pan, a cursor. mountTimeline is used by the run panel too.
function mountTimeline(root, data, options) {
  const { rows, names, roles, spans, marks, infos, unit, end } = data;
  const S = 6, M = 4; // numbers of a span: row, depth, name, from, to, info; of a mark: row, name, at, info
  const canvas = make("canvas", { role: "img", "aria-label": options.title });
  const keys = "Left and right: previous and next event. Up and down: row. Plus, minus, 0: zoom.";
  const view = make("div", { class: "bk-view", tabindex: "0", role: "application", "aria-label": `${options.title}. ${keys}` }, canvas);
  const bar = make("div", { class: "bk-controls" });
  const out = make("output", { class: "bk-step", "aria-live": "polite" });
  root.append(view, bar, out);

  const LANE = 17, PAD = 7, AXIS = 26, OVERVIEW = 22, GUTTER = 104;
  const tops = [];
  let y = AXIS;
  for (const row of rows) { tops.push(y); y += row.depth * LANE + PAD; }
  const body = y, height = y + 8 + OVERVIEW + 6;
  const startOf = (i) => spans[i * S + 3], endOf = (i) => spans[i * S + 4];
  const count = spans.length / S, markCount = marks.length / M;

  const report = options.report || ((state) => root.setAttribute("data-state", state));
  const ready = options.ready || (() => root.setAttribute("data-ready", "1"));
  let from = 0, to = end, cursor = options.cursor ?? 0, chosen = -1, chosenRow = 0, hover = -1, width = 760, colours = {}, family = "sans-serif";
  const minimum = Math.min(end, 8);

  const perRow = rows.map(() => []);
  for (let i = 0; i < count; i++) perRow[spans[i * S]].push(i);
  perRow.forEach((list) => list.sort((a, b) => startOf(a) - startOf(b) || spans[a * S + 1] - spans[b * S + 1]));
  const times = [...new Set([...Array.from({ length: count }, (_, i) => startOf(i)), ...Array.from({ length: count }, (_, i) => endOf(i)),
    ...Array.from({ length: markCount }, (_, i) => marks[i * M + 2])])].sort((a, b) => a - b);

  const px = (t) => GUTTER + ((t - from) / (to - from)) * (width - GUTTER - 10);
  const time = (x) => from + ((x - GUTTER) / (width - GUTTER - 10)) * (to - from);
  const overviewX = (t) => GUTTER + (t / end) * (width - GUTTER - 10);

  function readColours() {
    const style = getComputedStyle(root);
    for (const key of ["--bk-ink", "--bk-muted", "--bk-line", "--bk-hair", "--bk-panel", "--bk-bg", "--bk-on", "--bk-accent", "--bk-focus",
      ...["load", "mma", "softmax", "correction", "epilogue", "wait"].flatMap((r) => [`--role-${r}`, `--role-${r}-soft`])]) {
      colours[key] = style.getPropertyValue(key).trim();
    }
    family = style.fontFamily;
  }
  const solid = (role) => colours[`--role-${role}`] || colours["--bk-line"];

  function hatch(c, x, top, w, h) {
    c.save();
    c.beginPath(); c.rect(x, top, w, h); c.clip();
    c.strokeStyle = colours["--role-wait"]; c.lineWidth = 1; c.globalAlpha = 0.55;
    c.beginPath();
    for (let k = x - h + ((6 - ((x - h) % 6)) % 6); k < x + w; k += 6) { c.moveTo(k, top + h); c.lineTo(k + h, top); }
    c.stroke();
    c.restore();
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    width = Math.max(320, view.clientWidth);
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`; canvas.style.display = "block";
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    c.textBaseline = "middle";
    // axis
    c.font = `12px ${family}`;
    const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 1e6];
    const pitch = steps.find((s) => (s / (to - from)) * (width - GUTTER) > 64) || 1e6;
    c.textAlign = "center";
    for (let t = Math.ceil(from / pitch) * pitch; t <= to; t += pitch) {
      c.strokeStyle = colours["--bk-hair"]; c.lineWidth = 1;
      c.beginPath(); c.moveTo(px(t) + 0.5, AXIS - 6); c.lineTo(px(t) + 0.5, body); c.stroke();
      c.fillStyle = colours["--bk-muted"];
      c.fillText(t.toLocaleString("en"), px(t), 10);
    }
    c.textAlign = "right";
    c.fillText(unit, GUTTER - 10, 10);
    // rows
    rows.forEach((row, r) => {
      const h = row.depth * LANE;
      c.fillStyle = r === chosenRow && chosen >= 0 ? colours["--bk-panel"] : "transparent";
      c.fillRect(0, tops[r] - 3, width, h + 6);
      c.fillStyle = colours["--bk-ink"]; c.font = `600 12.5px ${family}`; c.textAlign = "right";
      c.fillText(row.label, GUTTER - 10, tops[r] + Math.min(h, LANE) / 2 + 1);
      c.strokeStyle = colours["--bk-hair"];
      c.beginPath(); c.moveTo(GUTTER, tops[r] + h + PAD / 2); c.lineTo(width - 10, tops[r] + h + PAD / 2); c.stroke();
    });
    c.save();
    c.beginPath(); c.rect(GUTTER, 0, width - GUTTER - 10, body); c.clip();
    c.textAlign = "left";
    for (let i = 0; i < count; i++) {
      const t0 = startOf(i), t1 = endOf(i);
      if (t1 < from || t0 > to) continue;
      const r = spans[i * S], depth = spans[i * S + 1], name = spans[i * S + 2], role = roles[name];
      const x = px(t0), w = Math.max(px(t1) - x, 1.2), top = tops[r] + depth * LANE, h = LANE - 2;
      if (role === "wait") {
        c.fillStyle = colours["--role-wait-soft"]; c.fillRect(x, top, w, h);
        if (w > 4) hatch(c, x, top, w, h);
      } else if (depth > 0 && !rows[r].unit) {
        c.fillStyle = role ? colours[`--role-${role}-soft`] : colours["--bk-panel"]; c.fillRect(x, top, w, h);
        c.strokeStyle = solid(role); c.lineWidth = 1; if (w > 3) c.strokeRect(x + 0.5, top + 0.5, w - 1, h - 1);
      } else {
        c.fillStyle = solid(role); c.fillRect(x, top, Math.max(w - 0.6, 1), h);
      }
      const left = Math.max(x, GUTTER) + 4, room = Math.min(x + w, width - 10) - left - 3;
      if (room > 22) {
        const soft = role === "wait" || (depth > 0 && !rows[r].unit);
        c.font = `${soft ? "" : "600 "}11.5px ${family}`;
        const text = names[name];
        if (c.measureText(text).width <= room) {
          c.fillStyle = soft ? colours["--bk-ink"] : role ? colours["--bk-on"] : colours["--bk-bg"];
          c.fillText(text, left, top + h / 2 + 1);
        }
      }
      if (i === chosen || i === hover) {
        c.strokeStyle = colours["--bk-accent"]; c.lineWidth = 2; c.strokeRect(x - 1, top - 1, w + 2, h + 2);
      }
    }
    for (let i = 0; i < markCount; i++) {
      const t = marks[i * M + 2];
      if (t < from || t > to) continue;
      const r = marks[i * M], name = marks[i * M + 1], h = rows[r].depth * LANE - 2, x = px(t);
      const role = roles[name];
      c.strokeStyle = c.fillStyle = role ? solid(role) : colours["--bk-muted"];
      if (names[name] === "phase") {
        c.beginPath(); c.moveTo(x, tops[r]); c.lineTo(x + 5, tops[r] + h / 2); c.lineTo(x, tops[r] + h); c.lineTo(x - 5, tops[r] + h / 2); c.fill();
      } else {
        c.lineWidth = 1.5; c.beginPath(); c.moveTo(x, tops[r] + 2); c.lineTo(x, tops[r] + h - 2); c.stroke();
      }
    }
    c.strokeStyle = colours["--bk-accent"]; c.lineWidth = 1.5;
    c.beginPath(); c.moveTo(px(cursor), AXIS - 8); c.lineTo(px(cursor), body); c.stroke();
    c.restore();
    // overview with the window that is shown
    const top = body + 6;
    c.fillStyle = colours["--bk-panel"]; c.fillRect(GUTTER, top, width - GUTTER - 10, OVERVIEW);
    const lane = OVERVIEW / rows.length;
    for (let i = 0; i < count; i++) {
      if (spans[i * S + 1] > 0) continue;
      c.fillStyle = solid(roles[spans[i * S + 2]]);
      const x = overviewX(startOf(i));
      c.fillRect(x, top + spans[i * S] * lane, Math.max(overviewX(endOf(i)) - x, 0.6), Math.max(lane - 0.6, 0.8));
    }
    c.strokeStyle = colours["--bk-focus"]; c.lineWidth = 2;
    c.strokeRect(overviewX(from) + 1, top, Math.max(overviewX(to) - overviewX(from) - 2, 4), OVERVIEW);
    c.fillStyle = colours["--bk-muted"]; c.font = `12px ${family}`; c.textAlign = "right";
    c.fillText("all of it", GUTTER - 10, top + OVERVIEW / 2 + 1);
  }

  let asked = false;
  const redraw = () => { if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; draw(); }); } };
  const round = (t) => Math.round(t * 100) / 100;

  function describe(i) {
    const [r, , name, t0, t1, info] = spans.slice(i * S, i * S + S);
    return `<b>${rows[r].label}: ${names[name]}</b>, ${unit} ${round(t0).toLocaleString("en")} to ${round(t1).toLocaleString("en")}` +
      (infos[info] ? `. ${infos[info]}` : "");
  }
  function readout() {
    const parts = [];
    rows.forEach((row, r) => {
      const open = perRow[r].filter((i) => startOf(i) <= cursor && (cursor < endOf(i) || startOf(i) === endOf(i) && startOf(i) === cursor));
      if (!open.length) return;
      const text = [...new Set(open.map((i) => names[spans[i * S + 2]]))].join(" › ");
      parts.push(`${row.label}: ${text}`);
    });
    return `<b>${unit} ${round(cursor).toLocaleString("en")}.</b> ${parts.join("; ") || "nothing is under way"}.`;
  }
  function show() {
    out.innerHTML = chosen >= 0 ? describe(chosen) : readout();
    range.value = cursor;
    range.setAttribute("aria-valuetext", `${unit} ${round(cursor)}`);
    shown.textContent = `${unit} ${round(cursor).toLocaleString("en")}`;
    report(`cursor=${round(cursor)};from=${round(from)};to=${round(to)};event=${chosen}`);
    redraw();
  }
  function setWindow(a, b) {
    const span = Math.min(end, Math.max(minimum, b - a));
    from = Math.max(0, Math.min(end - span, a)); to = from + span;
    show();
  }
  const zoom = (factor, at = cursor < from || cursor > to ? (from + to) / 2 : cursor) => setWindow(at - (at - from) * factor, at + (to - at) * factor);
  function setCursor(t, keep = false) {
    cursor = Math.max(0, Math.min(end, t));
    if (!keep) chosen = -1;
    if (cursor < from || cursor > to) setWindow(cursor - (to - from) / 2, cursor + (to - from) / 2); else show();
  }
  function choose(i) { chosen = i; chosenRow = spans[i * S]; setCursor(startOf(i), true); }
  function stepTime(d) {
    const at = d > 0 ? times.findIndex((t) => t > cursor + 1e-9) : times.findLastIndex((t) => t < cursor - 1e-9);
    setCursor(at < 0 ? (d > 0 ? times[0] : times[times.length - 1]) : times[at]);
  }
  function stepEvent(d) {
    const list = perRow[chosenRow];
    if (!list.length) return;
    const at = chosen >= 0 && spans[chosen * S] === chosenRow ? list.indexOf(chosen) + d : list.findIndex((i) => startOf(i) >= cursor);
    choose(list[Math.max(0, Math.min(list.length - 1, at < 0 ? list.length - 1 : at))]);
  }

  // controls
  const buttons = transport(stepTime, 120, (playing) => out.setAttribute("aria-live", playing ? "off" : "polite"));
  const range = make("input", { type: "range", class: "bk-range", min: 0, max: end, step: "any", "data-control": "cursor", "aria-label": `${unit} of the cursor` });
  const shown = make("span", { class: "bk-count", "aria-hidden": "true" });
  range.addEventListener("input", () => { buttons.stop(); setCursor(+range.value); });
  const zin = iconButton("zoomin", "Zoom in", "bk-zoomin"), zout = iconButton("zoomout", "Zoom out", "bk-zoomout"), fit = iconButton("fit", "Show all", "bk-fit");
  zin.addEventListener("click", () => zoom(0.5)); zout.addEventListener("click", () => zoom(2)); fit.addEventListener("click", () => setWindow(0, end));
  bar.append(make("div", { class: "bk-grow" }, ...buttons.nodes, range, shown), make("span", { class: "bk-choice" }, zout, zin, fit));

  const at = (x, yy) => {
    for (let r = 0; r < rows.length; r++) {
      if (yy < tops[r] || yy > tops[r] + rows[r].depth * LANE) continue;
      const depth = Math.floor((yy - tops[r]) / LANE), t = time(x), slack = ((to - from) / (width - GUTTER)) * 3;
      let best = -1;
      for (const i of perRow[r]) if (spans[i * S + 1] === depth && startOf(i) - slack <= t && t <= endOf(i) + slack) best = i;
      return best;
    }
    return -1;
  };
  let drag = null;
  canvas.addEventListener("pointerdown", (e) => {
    buttons.stop();
    canvas.setPointerCapture(e.pointerId);
    const overview = e.offsetY > body;
    drag = { x: e.offsetX, from, to, moved: false, overview };
    if (overview) moveOverview(e);
  });
  const moveOverview = (e) => {
    const t = ((e.offsetX - GUTTER) / (width - GUTTER - 10)) * end, half = (to - from) / 2;
    if (to - from >= end) { cursor = Math.max(0, Math.min(end, t)); chosen = -1; show(); } else setWindow(t - half, t + half);
  };
  canvas.addEventListener("pointermove", (e) => {
    if (drag && drag.overview) return moveOverview(e);
    if (drag) {
      const d = ((drag.x - e.offsetX) / (width - GUTTER - 10)) * (drag.to - drag.from);
      if (Math.abs(drag.x - e.offsetX) > 3) drag.moved = true;
      if (drag.moved) setWindow(drag.from + d, drag.to + d);
      return;
    }
    const found = at(e.offsetX, e.offsetY);
    canvas.style.cursor = found >= 0 || e.offsetY > body ? "pointer" : "grab";
    if (found !== hover) {
      hover = found;
      out.setAttribute("aria-live", "off");
      out.innerHTML = found >= 0 ? describe(found) : chosen >= 0 ? describe(chosen) : readout();
      redraw();
    }
  });
  canvas.addEventListener("pointerup", (e) => {
    if (drag && !drag.moved && !drag.overview) {
      const found = at(e.offsetX, e.offsetY);
      out.setAttribute("aria-live", "polite");
      if (found >= 0) { chosen = found; chosenRow = spans[found * S]; cursor = Math.max(startOf(found), Math.min(endOf(found), time(e.offsetX))); show(); }
      else if (e.offsetX > GUTTER) setCursor(time(e.offsetX));
    }
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => { if (hover >= 0) { hover = -1; show(); } });
  canvas.addEventListener("wheel", (e) => {
    if (e.ctrlKey || e.metaKey) { e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : 0.8, time(e.offsetX)); }
    else if (Math.abs(e.deltaX) > Math.abs(e.deltaY) && to - from < end) {
      e.preventDefault();
      const d = (e.deltaX / width) * (to - from);
      setWindow(from + d, to + d);
    }
  }, { passive: false });
  view.addEventListener("keydown", (e) => {
    const pan = (to - from) / 8;
    const act = {
      ArrowRight: () => (e.shiftKey ? setWindow(from + pan, to + pan) : stepEvent(1)), ArrowLeft: () => (e.shiftKey ? setWindow(from - pan, to - pan) : stepEvent(-1)),
      ArrowDown: () => { chosenRow = Math.min(rows.length - 1, chosenRow + 1); chosen = -1; stepEvent(0); },
      ArrowUp: () => { chosenRow = Math.max(0, chosenRow - 1); chosen = -1; stepEvent(0); },
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => setWindow(0, end), Home: () => setCursor(0), End: () => setCursor(end),
    }[e.key];
    if (act) { e.preventDefault(); buttons.stop(); act(); }
  });

  const themes = new MutationObserver(() => { readColours(); redraw(); });
  themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "data-mode"] });
  themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
  const sizes = new ResizeObserver(redraw);
  sizes.observe(view);
  requestAnimationFrame(() => { readColours(); if (options.window) setWindow(...options.window); else show(); draw(); ready(); });
  return () => { buttons.stop(); themes.disconnect(); sizes.disconnect(); };
}
