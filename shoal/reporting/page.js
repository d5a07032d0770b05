"use strict";
(() => {
  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const root = document.documentElement;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const options = (data) => ({
    displaylogo: false,
    responsive: true,
    modeBarButtons: data[0].type === "parcoords" ? [["toImage"]] : [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
    toImageButtonOptions: { scale: 2 },
  });
  const drawn = new Set();

  function themed(layout) {
    const look = { ...layout, paper_bgcolor: css("--card"), plot_bgcolor: css("--card") };
    look.font = { ...layout.font, color: css("--ink") };
    look.hoverlabel = { ...layout.hoverlabel, bgcolor: css("--page"), bordercolor: css("--line") };
    look.hoverlabel.font = { ...look.hoverlabel.font, color: css("--ink") };
    return look;
  }

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
    const name = box.dataset.drawing;
    const figure = figureOf(name);
    drawn.add(box);
    try {
      Plotly.react(box, figure.data, themed(figure.layout), options(figure.data));
    } catch (error) {
      box.classList.add("failed");
      box.textContent = `This drawing needs more than this browser offers (${error}).`;
    }
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
    const figure = figureOf(box.dataset.drawing);
    box.style.minHeight = `${figure.layout.height}px`;
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
    drawn.forEach(draw);
  }
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; repaint(); });
  system.addEventListener("change", repaint);
  if (location.hash === "#dark" || location.hash === "#light") root.dataset.theme = location.hash.slice(1);
  repaint();
})();
