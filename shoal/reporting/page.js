"use strict";
(() => {
  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const root = document.documentElement;
  const drawn = new Set();

  // -- learning curves: which value, over what, on which axis
  const chosen = (id) => document.getElementById(id);

  function curve() {
    const item = drawings.curves[Number(chosen("curve-name").value)];
    const timed = chosen("curve-x").value === "time";
    const log = chosen("curve-log").checked;
    const layout = structuredClone(item.figure.layout);
    if (timed) {
      layout.xaxis.title.text = `${item.unit} of the study`;
      delete layout.xaxis.dtick;
    }
    if (log !== (layout.yaxis.type === "log")) {
      delete layout.yaxis.range;
      layout.yaxis.type = log ? "log" : "linear";
    }
    const data = timed ? item.figure.data.map((trace, n) => ({ ...trace, x: item.times[n] })) : item.figure.data;
    const hidden = layout.yaxis.range ? item.outside : 0;
    chosen("curve-note").textContent = hidden ? `${hidden} points lie outside; double-click to see all` : "";
    return { data, layout };
  }

  function figureOf(name) {
    return name === "curves" ? curve() : drawings[name];
  }

  function draw(box) {
    drawn.add(box);
    Charts.draw(box, figureOf(box.dataset.drawing), drawings.hover);
  }

  if (drawings.curves) {
    const reset = () => {
      chosen("curve-log").checked = drawings.curves[Number(chosen("curve-name").value)].figure.layout.yaxis.type === "log";
    };
    const redraw = () => draw(chosen("curves-drawing"));
    reset();
    chosen("curve-name").addEventListener("change", () => { reset(); redraw(); });
    chosen("curve-x").addEventListener("change", redraw);
    chosen("curve-log").addEventListener("change", redraw);
  }

  const boxes = [...document.querySelectorAll("[data-drawing]")];
  for (const box of boxes) {
    box.style.minHeight = `${Charts.height(figureOf(box.dataset.drawing))}px`;
  }
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
    }
  }, { rootMargin: "600px" });
  boxes.forEach((box) => seen.observe(box));
  window.addEventListener("beforeprint", () => boxes.filter((box) => !drawn.has(box)).forEach(draw));

  // -- light and dark: as the system says, until the button says otherwise
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";

  function repaint() {
    button.textContent = dark() ? "light" : "dark";
    Charts.repaint();
  }
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; repaint(); });
  system.addEventListener("change", repaint);
  if (location.hash === "#dark" || location.hash === "#light") root.dataset.theme = location.hash.slice(1);
  repaint();
})();
