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

  // -- tables: a click on a heading sorts by it, numbers as numbers, what is missing last
  function key(cell) {
    const text = cell.dataset.k ?? cell.textContent;  // a cell whose text is its key names no other
    return text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  function sort(head) {
    const table = head.closest("table");
    const column = [...head.parentNode.children].indexOf(head);
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row, n) => ({ row, n, key: key(row.cells[column]) }));
    rows.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.n - b.n;
      return (up ? 1 : -1) * compare(a.key, b.key) || a.n - b.n;
    });
    table.tBodies[0].append(...rows.map((item) => item.row));
  }
  document.querySelectorAll("table.sortable th").forEach((head) => head.addEventListener("click", () => sort(head)));
})();
