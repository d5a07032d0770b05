"use strict";
(() => {
  const drawings = JSON.parse(document.getElementById("drawings").textContent);

  // -- learning curves: which value, over what, on which axis
  const chosen = (id) => document.getElementById(id);

  function curve() {
    const item = drawings.curves[Number(chosen("curve-name").value)];
    const figure = Charts.curve(item, chosen("curve-x").value === "time", chosen("curve-log").checked);
    const hidden = figure.layout.yaxis.range ? item.outside : 0;
    chosen("curve-note").textContent = hidden ? `${hidden} points lie outside; double-click to see all` : "";
    return figure;
  }

  function figureOf(name) {
    return name === "curves" ? curve() : drawings[name];
  }

  function draw(box) {
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
      if (entry.isIntersecting && !Charts.shown.has(entry.target)) draw(entry.target);
    }
  }, { rootMargin: "600px" });
  boxes.forEach((box) => seen.observe(box));
  window.addEventListener("beforeprint", () => boxes.filter((box) => !Charts.shown.has(box)).forEach(draw));

  if (location.hash === "#dark" || location.hash === "#light") document.documentElement.dataset.theme = location.hash.slice(1);
  Charts.theme(document.getElementById("theme"));
})();
