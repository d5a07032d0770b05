"use strict";
// Draws what score_charts.py, slot_charts.py and charts.py make; the report and the live page share it.
const Charts = (() => {
  const NARROW = 600;  // pixels; a narrower drawing has its legend below, and fewer ticks
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shown = new Map();  // by box: its drawing, hover texts and width, and which view each panel has

  // -- how a figure looks on this page, at this width
  function themed(figure) {
    const look = { ...figure.layout, paper_bgcolor: css("--card"), plot_bgcolor: css("--card") };
    look.font = { ...look.font, color: css("--ink") };
    look.hoverlabel = { ...look.hoverlabel, bgcolor: css("--page"), bordercolor: css("--line"), font: { size: 12, color: css("--ink") } };
    look.uirevision = "kept";  // a zoom stays when more comes
    const data = figure.data.map((trace) => (trace.meta === "ink" ? { ...trace, insidetextfont: { color: css("--ink") } } : trace));
    return { data, layout: look };
  }

  // Users' texts come escaped: what plotly shows as one character may be written as &#x27;.
  const letters = (text) => text.match(/&#?\w+;|./gsu) ?? [];
  const size = (text) => letters(text).length;
  const cut = (text, most) => (size(text) > most ? `${letters(text).slice(0, most - 1).join("")}…` : text);

  function legendLines(figure, width) {
    let lines = 1;
    let used = 0;
    const items = figure.data.filter((trace) => trace.showlegend !== false && trace.name);
    const widest = Math.max(...items.map((trace) => 44 + 7 * size(trace.name)));
    for (const _ of items) {  // plotly gives each item as much as the longest needs
      if (used && used + widest > width) { lines += 1; used = 0; }
      used += widest;
    }
    return lines;
  }

  function fitted({ data, layout }, width) {
    const look = { ...layout, width };
    const inside = width - look.margin.l - look.margin.r;
    for (const name of Object.keys(look)) {
      if (/^xaxis/.test(name)) look[name] = thinned(look[name], inside * ratio(look[name]), false);
      if (/^yaxis/.test(name)) look[name] = thinned(look[name], (look.height - look.margin.t - look.margin.b) * ratio(look[name]), true);
    }
    if (width >= NARROW) return { data, layout: look };
    const margin = { ...look.margin, l: Math.min(look.margin.l, 46), r: Math.min(look.margin.r, 14) };
    if (look.showlegend) {
      const room = 20 * legendLines({ data }, width - margin.l - margin.r) + 10;
      const inner = look.height - margin.t - margin.b;
      margin.t = Math.min(margin.t, look.annotations?.length ? 34 : 16);
      margin.b = 48 + room;
      look.height = inner + margin.t + margin.b;
      look.legend = { ...look.legend, orientation: "h", x: 0, xanchor: "left", y: -46 / inner, yanchor: "top", font: { size: 11 }, maxheight: room + 40 };
    }
    look.margin = margin;
    for (const name of Object.keys(look)) {
      if (/^xaxis/.test(name)) look[name] = { ...look[name], nticks: 5 };
      if (/^yaxis/.test(name)) look[name] = { ...look[name], title: { ...look[name].title, standoff: 6 }, tickfont: { size: 11 }, ticktext: look[name].ticktext?.map((text) => cut(text, 16)) };
    }
    return { data, layout: look };
  }

  const ratio = (axis) => (axis.domain ? axis.domain[1] - axis.domain[0] : 1);

  // No tick's text lies over another one. `length`: of the axis in pixels.
  function thinned(axis, length, across) {
    if (!axis.ticktext) return axis;
    const at = axis.tickvals.map((value) => (axis.type === "log" ? Math.log10(value) : value));
    const [low, high] = axis.range ?? [Math.min(...at), Math.max(...at)];
    const kept = apart(at.map((value) => ((value - low) / (high - low || 1)) * length), axis.ticktext.map((text) => (across ? 15 : 6.6 * size(text) + 10)));
    return { ...axis, tickvals: axis.tickvals.filter((_, n) => kept.has(n)), ticktext: axis.ticktext.filter((_, n) => kept.has(n)) };
  }

  // Of texts at these places those that have room, both ends first.
  function apart(places, sizes) {
    const order = [...places.keys()].sort((a, b) => places[a] - places[b]);
    const kept = new Set();
    for (const n of [order[0], order.at(-1), ...order]) {
      if ([...kept].every((m) => Math.abs(places[m] - places[n]) >= (sizes[m] + sizes[n]) / 2)) kept.add(n);
    }
    return kept;
  }

  // -- parallel coordinates: axes side by side, or one below the other where their names have no room
  function hasRoom(axes, width) {
    const longest = Math.max(...axes.map((axis) => size(axis.name)));
    return width >= Math.min(130, Math.max(72, 7 * longest + 12)) * axes.length;
  }

  function parallel({ axes, customdata, shades, colours }, width, picks) {
    const beside = hasRoom(axes, width);
    const height = beside ? 400 : 66 * axes.length + 20;
    const margin = beside ? { l: 30, r: 20, t: 20, b: 40 } : { l: 18, r: 18, t: 30, b: 12 };
    const length = beside ? height - margin.t - margin.b : width - margin.l - margin.r;
    const room = (width - margin.l - margin.r) / (axes.length - 0.3);
    const place = (along, at) => (beside ? { x: along, y: at } : { x: at, y: along });

    const colour = [...colours, css("--line")];
    const traces = colour.map((line, n) => ({
      type: "scatter", mode: "lines", x: [], y: [], customdata: [], line: { color: line, width: n === colours.length - 1 ? 2 : 1.1 },
      opacity: n === colours.length ? 0.6 : 0.75, hovertemplate: "%{text}<extra></extra>", showlegend: false,
    }));
    customdata.forEach((number, n) => {
      const out = Object.entries(picks).some(([axis, [low, high]]) => axes[axis].at[n] < low || axes[axis].at[n] > high);
      const trace = traces[out ? colours.length : shades[n]];
      axes.forEach((axis, along) => {
        const { x, y } = place(along, axis.at[n]);
        trace.x.push(x); trace.y.push(y); trace.customdata.push(number);
      });
      trace.x.push(null); trace.y.push(null); trace.customdata.push(null);
    });

    const shapes = [];
    const annotations = [];
    const text = (more) => annotations.push({ showarrow: false, bgcolor: css("--card"), borderpad: 1, opacity: 0.9, ...more });
    axes.forEach((axis, along) => {
      const line = (from, to, look) => { const [a, b] = [place(along, from), place(along, to)]; shapes.push({ type: "line", x0: a.x, y0: a.y, x1: b.x, y1: b.y, line: look }); };
      line(0, 1, { color: css("--soft"), width: 1 });
      if (picks[along]) line(...picks[along], { color: css("--accent"), width: 5 });
      const sizes = axis.ticks.map(([, words]) => (beside ? 15 : 6.2 * size(words) + 8));
      const kept = apart(axis.ticks.map(([at]) => at * length), sizes);
      axis.ticks.forEach(([at, words], n) => {
        if (!kept.has(n)) return;
        const anchor = beside ? { xanchor: "right", xshift: -4 } : { yanchor: "top", yshift: -3, xanchor: at < 0.02 ? "left" : at > 0.98 ? "right" : "center" };
        text({ ...place(along, at), text: cut(words, beside ? Math.max(4, Math.floor((room - 14) / 6.4)) : 18), font: { size: 10.5 }, ...anchor });
      });
      const name = cut(axis.name, beside ? Math.max(6, Math.floor(room / 7)) : Math.floor(length / 7));
      if (beside) text({ ...place(along, 0), yanchor: "top", yshift: -12, text: name });
      else text({ ...place(along, 0), xanchor: "left", yanchor: "bottom", yshift: 2, text: name });
    });
    const hidden = { visible: false, fixedrange: true };
    const along = { ...hidden, range: beside ? [-0.35, axes.length - 0.65] : [axes.length - 0.6, -0.15] };
    const across = { ...hidden, range: [-0.02, 1.02] };
    const layout = {
      height, margin, shapes, annotations, showlegend: false, hovermode: "closest", dragmode: "select", selections: [], newselection: { line: { width: 1 } },
      xaxis: beside ? along : across, yaxis: beside ? across : along,
    };
    return { data: [traces.at(-1), ...traces.slice(0, -1)].filter((trace) => trace.x.length), layout };
  }

  // What was dragged over: a range of the axes in the box, or of the nearest one.
  function pick(lines, picks, width, range) {
    const beside = hasRoom(lines.axes, width);
    const [from, to] = [...(beside ? range.x : range.y)].sort((a, b) => a - b);
    const picked = [...(beside ? range.y : range.x)].sort((a, b) => a - b).map((at) => Math.min(1, Math.max(0, at)));
    const nearest = Math.min(lines.axes.length - 1, Math.max(0, Math.round((from + to) / 2)));
    lines.axes.forEach((_, n) => { if ((from <= n && n <= to) || n === nearest) picks[n] = picked; });
  }

  // -- a learning curve over epochs or time, on a linear or a log axis
  function curve({ figure, times, unit }, timed, log) {
    const layout = structuredClone(figure.layout);
    if (timed) {
      layout.xaxis.title.text = `${unit} of the study`;
      delete layout.xaxis.dtick;
    }
    if (log !== (layout.yaxis.type === "log")) {
      delete layout.yaxis.range;
      layout.yaxis.type = log ? "log" : "linear";
    }
    const data = timed ? figure.data.map((trace, n) => ({ ...trace, x: times[n] })) : figure.data;
    return { data, layout };
  }

  // -- one figure
  function viewed(panel, number) {
    const view = panel.views?.[number];
    if (!view) return panel.figure;
    const layout = { ...panel.figure.layout };
    layout.xaxis = { ...layout.xaxis, title: { ...layout.xaxis.title, text: view.title } };
    return { data: panel.figure.data.map((trace, n) => ({ ...trace, ...view.traces[n] })), layout };
  }

  function plot(box, panel, now, number) {
    const width = Math.floor(box.clientWidth);
    if (!width || !window.Plotly) return;
    const picks = (now.picks[number] ??= {});
    const figure = panel.lines ? parallel(panel.lines, width, picks) : viewed(panel, now.views[number] ?? 0);
    const told = (trace) => (trace.customdata && !trace.text ? { ...trace, text: trace.customdata.map((trial) => now.hover?.[trial] ?? "") } : trace);
    const { data, layout } = fitted(themed({ ...figure, data: figure.data.map(told) }), width);
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false;  // a finger moves the page
    const first = !box.classList.contains("js-plotly-plot");
    try {
      box.style.minHeight = `${layout.height}px`;
      Plotly.react(box, data, layout, {
        displaylogo: false,
        modeBarButtons: panel.lines ? [["toImage"]] : [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
        toImageButtonOptions: { scale: 2 },
        displayModeBar: width < NARROW ? false : "hover",
      });
    } catch (error) {
      box.classList.add("failed");
      box.textContent = `This drawing needs more than this browser offers (${error}).`;
      return;
    }
    if (!first || !panel.lines) return;
    const again = () => setTimeout(() => {  // when plotly is done with the event
      Plotly.relayout(box, { selections: [] });
      draw(box.closest(".drawing"));
    });
    box.on("plotly_selected", (event) => {
      if (!event?.range) return;
      pick(now.drawing.panels[number].lines, now.picks[number], Math.floor(box.clientWidth), event.range);
      again();
    });
    for (const all of ["plotly_deselect", "plotly_doubleclick"]) box.on(all, () => { now.picks[number] = {}; again(); });
  }

  // -- a drawing: a note, and a panel or several
  const element = (name, kind, text) => {
    const made = document.createElement(name);
    made.className = kind;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  function chooser(box, number, views) {
    const label = element("label", "", "over ");
    const select = document.createElement("select");
    select.append(...views.map((view, n) => new Option(view.name, n)));
    select.addEventListener("change", () => { shown.get(box).views[number] = Number(select.value); draw(box); });
    label.append(select);
    return label;
  }

  function build(box, drawing) {
    box.replaceChildren(element("p", "says"), element("div", "panels"));
    box.lastChild.classList.toggle("many", drawing.panels.length > 1);
    drawing.panels.forEach((panel, number) => {
      const made = element("div", "panel");
      if (panel.title) made.append(element("h4", "", panel.title));
      if (panel.views) made.append(chooser(box, number, panel.views));
      made.append(element("div", "plot"));
      box.lastChild.append(made);
    });
  }

  // What the reader's choices are about: they end when it changes.
  const shape = (drawing) => JSON.stringify(drawing.panels.map((panel) => [panel.title, panel.views?.length, panel.lines?.axes.map((axis) => axis.name)]));

  // Draw, or draw again as the page is now. A drawing without panels is one figure.
  function draw(box, drawing, hover) {
    const now = shown.get(box) ?? {};
    if (drawing) {
      now.drawing = drawing.panels ? drawing : { panels: [{ figure: drawing }] };
      now.hover = hover;
    }
    shown.set(box, now);
    now.width = box.clientWidth;
    box.style.minHeight = "";
    const outline = shape(now.drawing);
    if (now.outline !== outline) {
      build(box, now.drawing);
      Object.assign(now, { outline, views: [], picks: [] });
    }
    box.querySelector(".says").textContent = now.drawing.note ?? "";
    box.querySelectorAll(".plot").forEach((place, number) => {
      plot(place, now.drawing.panels[number], now, number);
    });
    resized.observe(box);
  }

  function forget(box) {
    if (window.Plotly) box.querySelectorAll(".js-plotly-plot").forEach((plotted) => Plotly.purge(plotted));
    shown.delete(box);
    resized.unobserve(box);
  }

  let waiting = 0;
  const resized = new ResizeObserver(() => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      for (const [box, now] of shown) if (box.clientWidth && box.clientWidth !== now.width) draw(box);
    }, 120);
  });

  // How high a drawing will be, for those who wait for it.
  const height = (drawing) => (drawing.panels ?? [{ figure: drawing }]).reduce((sum, panel) => Math.max(sum, panel.figure?.layout.height ?? 400), 0);
  const repaint = () => { for (const box of shown.keys()) draw(box); };

  // -- light and dark: as the system says, until this button says otherwise
  function theme(button) {
    const root = document.documentElement;
    const system = matchMedia("(prefers-color-scheme: dark)");
    const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
    const changed = () => { button.textContent = dark() ? "light" : "dark"; repaint(); };
    button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; changed(); });
    system.addEventListener("change", changed);
    changed();
  }

  return { curve, draw, forget, height, repaint, shown, theme };
})();
