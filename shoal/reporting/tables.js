"use strict";
// What the tables of the report and of the live page can do: sort, choose columns, be saved as CSV.
const tables = (() => {
  // -- a click on a head sorts by it: up, down, and then as it was; what is missing comes last
  const orders = new WeakMap();  // the rows of a table as they came
  const sorted = new Map();  // by the titles of tables: what they are sorted by, for when they are filled anew

  function key(cell) {
    const text = cell.dataset.k ?? cell.textContent;  // a cell whose text is its key names no other
    return text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  function sort(table, column, way) {
    const heads = [...table.tHead.rows[0].cells];
    for (const head of heads) head.removeAttribute("aria-sort");
    if (!orders.has(table)) orders.set(table, [...table.tBodies[0].rows]);
    let rows = orders.get(table);
    if (way && heads[column]) {
      heads[column].setAttribute("aria-sort", way);
      const keyed = rows.map((row, n) => ({ row, n, key: key(row.cells[column]) }));
      keyed.sort((a, b) => {
        if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.n - b.n;
        return (way === "ascending" ? 1 : -1) * compare(a.key, b.key) || a.n - b.n;
      });
      rows = keyed.map((item) => item.row);
    }
    table.tBodies[0].append(...rows);
  }

  const title = (element) => element.closest(".data").dataset.title;
  const NEXT = { ascending: "descending", descending: "" };

  function clicked(head) {
    const table = head.closest("table");
    const by = { column: head.cellIndex, way: NEXT[head.getAttribute("aria-sort")] ?? "ascending" };
    sorted.set(title(table), by);
    sort(table, by.column, by.way);
  }

  // -- CSV, as RFC 4180 has it. A spreadsheet must take no text for a formula, as in csv_cells.py; numbers stay as they are
  const FORMULA = /^'*(\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n])/;
  const NUMBER = /^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|nan)$/i;

  function field(text) {
    const safe = FORMULA.test(text) && !NUMBER.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }

  const csv = (rows) => rows.map((row) => row.map(field).join(",") + "\r\n").join("");

  function texts(table) {
    const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent + (head.dataset.unit ? ` (${head.dataset.unit})` : ""));
    const value = (cell) => cell.dataset.v ?? cell.dataset.k ?? cell.textContent;
    return [heads, ...[...table.tBodies[0].rows].map((row) => [...row.cells].map(value))];
  }

  function save(name, rows) {
    const link = document.createElement("a");
    const page = document.title.replace(/ · Shoal$/, "");
    link.download = `${page} ${name}`.replace(/[^\p{L}\p{N}.]+/gu, "-") + ".csv";
    link.href = URL.createObjectURL(new Blob([csv(rows)], { type: "text/csv;charset=utf-8" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  // -- columns: as many as there is room for in the order of their worth, until somebody chooses
  const LEAST = 3;  // the name, the status, and most often the score
  const sheet = new CSSStyleSheet();
  const holders = [];  // what is known of each table with a choice, by its number
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];

  const place = (holder) => `shoal-columns ${location.protocol === "file:" ? location.pathname : new URLSearchParams(location.search).get("study") ?? document.title} ${holder.dataset.title}`;

  function kept(holder) {
    try { return JSON.parse(localStorage.getItem(place(holder))); } catch { return null; }
  }

  function keep(holder, chosen) {
    try {
      if (chosen) localStorage.setItem(place(holder), JSON.stringify(chosen));
      else localStorage.removeItem(place(holder));
    } catch { /* this browser keeps nothing for files: the choice holds as long as the page */ }
    about(holder).chosen = chosen;
  }

  function about(holder) {
    holder.dataset.choice ||= holders.push({ names: [], widths: [], hidden: [], chosen: kept(holder) });
    return holders[holder.dataset.choice - 1];
  }

  const columnsOf = (holder) => [...holder.querySelector("thead").rows[0].cells].filter((head) => !("fixed" in head.dataset));

  // Two columns may have one head, as a value of a configuration that is called "epochs".
  const named = (heads) => heads.map((head, n) => {
    const same = heads.slice(0, n).filter((other) => other.textContent === head.textContent).length;
    return head.textContent + (same ? ` (${same + 1})` : "");
  });

  function style() {
    const rules = holders.flatMap((one, n) => one.hidden.map((column) => `[data-choice="${n + 1}"] tr > :nth-child(${column + 1}):not([colspan])`));
    sheet.replaceSync(rules.length ? `${rules.join(",")} { display: none }` : "");
  }

  // How wide each column is if nothing limits it; it never shrinks, so that news do not make columns come and go.
  function measure(holder, one, heads) {
    one.hidden = [];
    style();
    holder.classList.add("measured");
    one.widths = heads.map((head, n) => Math.max(one.widths[n] ?? 0, head.getBoundingClientRect().width));
    const fixed = [...holder.querySelectorAll("thead [data-fixed]")];
    one.rest = fixed.reduce((sum, head) => sum + head.getBoundingClientRect().width, 0);
    holder.classList.remove("measured");
  }

  function room(holder) {
    const section = holder.closest("section");
    const frame = getComputedStyle(section.parentNode);
    const outer = section.parentNode.clientWidth - parseFloat(frame.paddingLeft) - parseFloat(frame.paddingRight);
    return outer - (section.offsetWidth - holder.offsetWidth);
  }

  function fitting(holder, one) {
    let left = room(holder) - one.rest;
    return one.names.map((_, n) => {
      left -= one.widths[n];
      return n < LEAST || left >= 0;
    });
  }

  function choose(holder) {
    if (!holder.querySelector("thead")) return;
    const one = about(holder);
    const heads = columnsOf(holder);
    const names = named(heads);
    if (names.join("\n") !== one.names.join("\n")) { one.names = names; one.widths = []; offer(holder, one); }
    measure(holder, one, heads);
    const shown = one.chosen ? names.map((name, n) => n === 0 || (one.chosen[name] ?? true)) : fitting(holder, one);
    one.hidden = names.map((_, n) => n).filter((n) => !shown[n]);
    style();
    const count = shown.filter(Boolean).length;
    holder.querySelector(".columns summary").textContent = `columns: ${count} of ${names.length}`;
    [...holder.querySelectorAll(".choice input")].forEach((box, n) => { box.checked = shown[n]; });
    holder.querySelector(".choice button").disabled = !one.chosen;
  }

  // The boxes to tick; the name of a trial is always there.
  function offer(holder, one) {
    const boxes = one.names.map((name, n) => {
      const label = document.createElement("label");
      const box = Object.assign(document.createElement("input"), { type: "checkbox", disabled: n === 0 });
      label.append(box, ` ${name}`);
      return label;
    });
    const fit = Object.assign(document.createElement("button"), { type: "button", textContent: "as many as fit" });
    fit.addEventListener("click", () => { keep(holder, null); choose(holder); });
    holder.querySelector(".choice").replaceChildren(...boxes, fit);
  }

  function ticked(holder) {
    const boxes = [...holder.querySelectorAll(".choice input")];
    keep(holder, Object.fromEntries(boxes.map((box, n) => [about(holder).names[n], box.checked])));
    choose(holder);
  }

  // -- what a part of the page shows is new
  function settle(part) {
    for (const table of part.querySelectorAll("table.sortable")) {
      const by = sorted.get(title(table));
      if (by) sort(table, by.column, by.way);
    }
    const around = part.closest?.("[data-choice]");
    for (const holder of around ? [around] : part.querySelectorAll("[data-choice]")) choose(holder);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.closest("table.sortable th")) clicked(button.closest("th"));
    if (button.matches(".csv:not([data-do])")) save(title(button), texts(button.closest(".data").querySelector("table")));
  });
  document.addEventListener("change", (event) => {
    if (event.target.closest(".choice")) ticked(event.target.closest("[data-choice]"));
  });

  // A text that is cut is told whole where the pointer rests.
  document.addEventListener("pointerover", (event) => {
    const cut = event.target.closest(".long, th button");
    if (cut && !cut.title && cut.scrollWidth > cut.clientWidth) cut.title = cut.textContent;
  });

  let width = 0;
  window.addEventListener("resize", () => {
    if (width === innerWidth) return;
    width = innerWidth;
    requestAnimationFrame(() => document.querySelectorAll("[data-choice]").forEach(choose));
  });

  return { settle, save, csv };
})();
tables.settle(document);
