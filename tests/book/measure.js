// Run inside a built page: what a reader's eye would measure.
window.measure = (() => {
  const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });

  // Any CSS colour as [r, g, b, alpha]; null for paint that is no plain colour (none, url(#pattern)).
  function colour(css) {
    if (!css || css === "none" || css.startsWith("url")) return null;
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = css;
    pixel.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pixel.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  }
  const over = (top, base) => [0, 1, 2].map((i) => top[i] * top[3] + base[i] * (1 - top[3]));
  function luminance(rgb) {
    const [r, g, b] = rgb.map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }
  function ratio(one, two) {
    const [high, low] = [luminance(one), luminance(two)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  }
  function opacity(element) {
    let value = 1;
    for (let e = element; e; e = e.parentElement) value *= parseFloat(getComputedStyle(e).opacity);
    return value;
  }
  // What one element paints at a point inside it, as [r, g, b, alpha]; null when nothing.
  function paint(element) {
    const style = getComputedStyle(element);
    if (element instanceof SVGElement && !(element instanceof SVGSVGElement)) {
      if (["line", "text", "tspan", "g", "use"].includes(element.tagName)) return null;
      const fill = colour(style.fill);
      return fill && [...fill.slice(0, 3), fill[3] * parseFloat(style.fillOpacity) * opacity(element)];
    }
    const back = colour(style.backgroundColor);
    return back && [...back.slice(0, 3), back[3] * opacity(element)];
  }
  function background(x, y) {
    const layers = [];
    for (const element of document.elementsFromPoint(x, y)) {
      const layer = paint(element);
      if (!layer || layer[3] === 0) continue;
      layers.push(layer);
      if (layer[3] > 0.999) break;
    }
    return layers.reverse().reduce((base, layer) => over(layer, base), [255, 255, 255]);
  }

  // The words of figures and widgets whose contrast with what lies under them is below `least`; and how many were looked at.
  function faintText(least) {
    const hit = document.createElement("style");
    hit.textContent = "svg.bk *{pointer-events:all!important} .bd-header,.bd-header-article{visibility:hidden!important}";
    document.head.append(hit);
    const faint = [];
    let seen = 0;
    const says = (e) => [...e.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    const words = [...document.querySelectorAll("svg.bk text, svg.bk tspan, :is(.bk-fig, .bk-widget) :not(svg, svg *, option)")];
    for (const text of words.filter(says)) {
      const style = getComputedStyle(text);
      if (style.visibility !== "visible" || !text.checkVisibility()) continue;
      let box = text.getBoundingClientRect();
      if (box.width < 2 || box.height < 2) continue; // for screen readers only
      if (box.top < 0 || box.bottom > innerHeight || box.left < 0 || box.right > innerWidth) {
        text.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
        box = text.getBoundingClientRect();
      }
      const halo = style.paintOrder.startsWith("stroke") ? colour(style.stroke) : null;
      const under = halo ? halo.slice(0, 3) : background(box.left + box.width / 2, box.top + box.height / 2);
      const drawn = text instanceof SVGElement;
      const fill = colour(drawn ? style.fill : style.color);
      if (!fill) continue;
      seen += 1;
      const ink = over([...fill.slice(0, 3), fill[3] * (drawn ? parseFloat(style.fillOpacity) : 1) * opacity(text)], under);
      const contrast = ratio(ink, under);
      if (contrast < least) {
        const whole = text.closest("svg.bk, .bk-widget, .bk-fig");
        const where = whole.querySelector("title")?.textContent ?? whole.ariaLabel ?? whole.dataset.figure;
        faint.push(`${where}: "${text.textContent.trim()}" ${contrast.toFixed(2)}:1, rgb(${ink.map(Math.round)}) on rgb(${under.map(Math.round)})`);
      }
    }
    hit.remove();
    scrollTo(0, 0);
    return { seen, faint };
  }

  // What sticks out of the page to the right, outside any box that scrolls by itself.
  function wide() {
    const page = document.documentElement;
    if (page.scrollWidth <= page.clientWidth) return [];
    const scrolls = (e) => {
      for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
        if (getComputedStyle(p).overflowX !== "visible") return true;
      return false;
    };
    const out = [...document.body.querySelectorAll("*")].filter(
      (e) => e.getBoundingClientRect().right > page.clientWidth + 1 && !scrolls(e),
    );
    const name = (e) => `${e.tagName.toLowerCase()}.${[...e.classList].join(".")} (${(e.textContent || "").trim().slice(0, 40)})`;
    return [`page ${page.scrollWidth} in ${page.clientWidth} px`, ...out.slice(0, 5).map(name)];
  }

  return { faintText, wide };
})();
