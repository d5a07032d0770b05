"use strict";
(async () => {
  const one = (id) => document.getElementById(id);
  const here = new URLSearchParams(location.search);

  // -- the key: it stands behind the # of the address, and is kept for this origin alone
  const KEPT = "shoal-key";
  if (here.has("token")) {  // the first page: the server has given the cookie
    if (location.hash.length > 1) localStorage.setItem(KEPT, location.hash.slice(1));
    location.replace("/");
    return;
  }
  const headers = { "X-Shoal-Key": localStorage.getItem(KEPT) ?? "" };
  let study = here.get("study") ?? undefined;
  const address = (path, query = {}) => {
    const params = new URLSearchParams(study === undefined ? {} : { study });
    for (const [name, value] of Object.entries(query)) {
      for (const item of [value].flat()) params.append(name, item);
    }
    return `${path}?${params}`;
  };

  async function fetched(path, query) {
    const answer = await fetch(address(path, query), { headers });
    if (answer.ok) return answer;
    const why = [401, 403].includes(answer.status) ? "open the whole address that shoal ui has printed last, with what follows #" : answer.status;
    throw new Error(`${path}: ${why}`);
  }

  // -- the frame, which the parts of the page fill
  try {
    const frame = await (await fetched("/frame")).json();
    study = frame.study;
    document.title = `${frame.title} · Shoal`;
    document.body.innerHTML = frame.html;  // escaped by the server
  } catch (error) {
    document.body.textContent = `The server does not show the page (${error.message}).`;
    return;
  }
  Charts.theme(one("theme"));

  // -- a part of the page is replaced only if it has changed; the focus stays where it was
  const shown = new Map();

  // What is replaced between press and release is never clicked: so parts wait for the release.
  let release = null;
  let released = Promise.resolve();
  function letGo() { release?.(); release = null; }
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest("button, input, label, select, summary, a")) return;
    letGo();
    released = new Promise((resolve) => { release = resolve; });
    setTimeout(release, 5000);  // whatever became of the release
  }, true);
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => setTimeout(letGo), true);  // the click comes first

  async function fill(box, html) {
    await released;
    if (shown.get(box) === html) return;
    const active = document.activeElement;
    const key = box.contains(active) ? active.dataset.key : undefined;
    const places = [...box.querySelectorAll(".tall, .wide")].map((part) => [part.scrollTop, part.scrollLeft, part.scrollTop + part.clientHeight > part.scrollHeight - 8]);
    const open = [...box.querySelectorAll("details")].map((part) => part.open);
    box.innerHTML = html;  // the server has escaped all that a journal says
    shown.set(box, html);
    tables.settle(box);
    [...box.querySelectorAll(".tall, .wide")].forEach((part, n) => {
      const [top, left, atEnd] = places[n] ?? [0, 0, true];
      part.scrollTop = atEnd && part.tagName === "PRE" ? part.scrollHeight : top;  // the end of a log stays in sight
      part.scrollLeft = left;
    });
    [...box.querySelectorAll("details")].forEach((part, n) => { if (open[n] !== undefined) part.open = open[n]; });
    if (key !== undefined) [...box.querySelectorAll("[data-key]")].find((part) => part.dataset.key === key)?.focus();
  }

  // -- one request of a kind at a time; if more was asked for meanwhile, it is made once more
  function loader(work) {
    let busy = false;
    let again = false;
    return async function run() {
      if (busy) { again = true; return; }
      busy = true;
      again = false;
      try { await work(); } catch (error) { lost(error); }
      busy = false;
      if (again) run();
    };
  }

  function lost(error) {
    const said = one("said");
    if (said) { said.className = "bad"; said.textContent = `The server does not answer (${error.message}).`; }
  }

  // News as the server sends them. An EventSource would do the same, but cannot send the key.
  async function follow(take) {
    for (;;) {
      try {
        const reader = (await fetched("/news")).body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          const events = (rest + value).split("\n\n");
          rest = events.pop();
          for (const event of events) if (event.startsWith("data: ")) take(JSON.parse(event.slice(6)));
        }
      } catch (error) { lost(error); }
      await new Promise((again) => setTimeout(again, 3000));
    }
  }

  // -- the list of studies
  if (study === undefined) {
    const list = loader(async () => fill(one("list"), await (await fetched("/list")).text()));
    follow(list);
    setInterval(list, 10000);
    list();
    return;
  }

  // -- trials
  const wanted = { sort: "", down: "0", status: "", text: "", page: 0 };
  const ticked = new Set();
  const count = new Intl.NumberFormat("en");

  const trials = loader(async () => {
    const page = wanted.page;
    const answer = await (await fetched("/trials", wanted)).json();
    if (wanted.page === page) wanted.page = answer.page;  // unless a click wants another one meanwhile
    await fill(one("trials-part"), answer.html);
    for (const box of document.querySelectorAll("[data-tick]")) box.checked = ticked.has(box.dataset.tick);
    one("count").textContent = answer.count === answer.all ? `${count.format(answer.all)} trials`
      : `${count.format(answer.count)} of ${count.format(answer.all)} trials`;
    await pages(answer);
    one("trials").dataset.ready = "yes";
  });

  async function pages(answer) {
    const box = one("pages");
    const button = (page, text, off) => `<button type="button" data-page="${page}" data-key="page ${text}" ${off ? "disabled" : ""}>${text}</button>`;
    const last = answer.pages - 1;
    await fill(box, last === 0 ? "" : button(0, "first", answer.page === 0) + button(answer.page - 1, "back", answer.page === 0)
      + `<span>page ${count.format(answer.page + 1)} of ${count.format(answer.pages)}</span>`
      + button(answer.page + 1, "next", answer.page === last) + button(last, "last", answer.page === last));
  }

  let typing = 0;
  one("find").addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => { wanted.text = event.target.value; wanted.page = 0; trials(); }, 200);
  });
  one("status").addEventListener("change", (event) => { wanted.status = event.target.value; wanted.page = 0; trials(); });

  // -- drawings: drawn while they are in sight, once plotly is there
  const sight = new Set();
  const late = new Set();
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) { sight.delete(entry.target); continue; }
      sight.add(entry.target);
      if (late.delete(entry.target)) load(entry.target);
    }
  }, { rootMargin: "300px" });

  function blank(box, text) {
    Charts.forget(box);
    box.textContent = text;
  }

  let curve = null;
  const curves = loader(async () => {
    curve = await (await fetched("/drawing/curves", { name: one("curve-name").value, trial: [...ticked] })).json();
    if (!curve.names.length) { blank(one("curves-drawing"), "No value was recorded yet."); return; }
    const options = curve.names.map((name, n) => new Option(curve.labels[n], name, false, name === curve.name));
    const now = [...one("curve-name").options].map((option) => option.value);
    if (now.join("\n") !== curve.names.join("\n")) one("curve-name").replaceChildren(...options);
    one("curve-note").textContent = ticked.size ? `${ticked.size} chosen in the table` : "the best; tick trials in the table to see those";
    curveDrawn();
  });

  function curveDrawn() {
    if (!curve?.figure) return;
    const log = one("curve-log");
    if (log.dataset.name !== curve.name) { log.dataset.name = curve.name; log.checked = curve.figure.layout.yaxis.type === "log"; }
    Charts.draw(one("curves-drawing"), Charts.curve(curve, one("curve-x").value === "time", log.checked));
  }
  one("curve-name").addEventListener("change", curves);
  one("curve-x").addEventListener("change", curveDrawn);
  one("curve-log").addEventListener("change", curveDrawn);

  const slots = loader(async () => {
    const drawings = await (await fetched("/drawing/slots")).json();
    for (const name of ["gantt", "use"]) {
      if (drawings[name]) Charts.draw(one(name), drawings[name]);
      else blank(one(name), "No slot was there yet.");
    }
  });
  const scores = (box) => loader(async () => {
    const { hover, ...drawing } = await (await fetched(`/drawing/${box.dataset.drawing}`)).json();
    if (drawing.panels) Charts.draw(box, drawing, hover);
    else blank(box, "No trial has a score yet.");
  });
  const part = (name) => loader(async () => fill(one(`${name}-part`), await (await fetched(`/part/${name}`)).text()));
  const loads = new Map([
    [one("curves-drawing"), curves], [one("gantt"), slots],
    ...[...document.querySelectorAll("[data-drawing]")].map((box) => [box, scores(box)]),
    [one("decisions-part"), part("decisions")], [one("failures-part"), part("failures")], [one("log-part"), part("log")],
  ]);
  const load = (box) => loads.get(box)();
  for (const box of loads.keys()) { late.add(box); seen.observe(box); }
  document.querySelector('script[src$="plotly.js"]').addEventListener("load", Charts.repaint);

  // -- news: the heading comes with it; what is in sight is asked for, the rest when it comes into sight
  let version = null;
  follow((news) => {
    fill(one("heading"), news.heading);
    const works = news.standing === "running" || news.run === "begun";
    one("pause").disabled = news.standing !== "running" && news.standing !== "open";
    one("resume").disabled = works;
    if (news.version === version) { late.add(one("log-part")); return; }
    version = news.version;
    trials();
    for (const box of loads.keys()) {
      if (sight.has(box)) load(box);
      else late.add(box);
    }
  });
  setInterval(() => { if (sight.has(one("log-part"))) load(one("log-part")); }, 3000);
  trials();

  // -- actions
  const dialog = one("dialog");

  async function act(action) {
    const said = one("said");
    said.className = "";
    said.textContent = `${action.do} ${action.trial ?? ""} …`;
    try {
      const answer = await fetch("/do", {
        method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify({ study, ...action }),
      });
      const result = await answer.json();
      said.className = answer.ok ? "good" : "bad";
      said.textContent = result.said ?? result.error;
    } catch (error) { lost(error); }
  }

  async function open(path, query) {
    dialog.innerHTML = await (await fetched(path, query)).text();  // escaped by the server
    for (const input of dialog.querySelectorAll("[data-value]")) input.dataset.was = input.value;
    if (!dialog.open) dialog.showModal();
  }

  const does = {
    open: (trial) => open("/part/trial", { trial }),
    new: () => open("/part/new"),
    close: () => dialog.close(),
    pause: () => act({ do: "pause" }),
    resume: () => act({ do: "resume" }),
    stop: (trial) => { dialog.close(); act({ do: "stop", trial }); },
    csv: async () => {  // all that the filter lets through, in the order of the table
      const { rows } = await (await fetched("/trials", { ...wanted, whole: 1 })).json();
      tables.save("trials", rows);
    },
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const { do: what, trial, sort, page } = button.dataset;
    if (what) Promise.resolve(does[what](trial)).catch(lost);
    if (page !== undefined) { wanted.page = Number(page); trials(); }
    if (sort !== undefined) {
      const sorted = (wanted.sort || "#") === sort;  // up, down, and then by rank again
      wanted.sort = sorted && wanted.down === "1" ? "" : sort;
      wanted.down = sorted && wanted.down === "0" ? "1" : "0";
      wanted.page = 0;
      trials();
    }
  });

  document.addEventListener("change", (event) => {
    const { tick } = event.target.dataset;
    if (tick === undefined) return;
    if (event.target.checked) ticked.add(tick);
    else ticked.delete(tick);
    curves();
  });

  dialog.addEventListener("close", () => dialog.replaceChildren());
  dialog.addEventListener("submit", (event) => {
    event.preventDefault();
    const form = event.target;
    const what = form.dataset.form;
    const values = {};
    for (const input of form.querySelectorAll("[data-value]")) {
      const always = what === "add" && input.dataset.secret === undefined;
      if (always || input.value !== input.dataset.was) values[input.dataset.value] = input.value;
    }
    const action = { do: what, trial: form.dataset.trial, values, max_epochs: form.elements.max_epochs.value, cold: form.elements.cold?.checked };
    dialog.close();
    act(action);
  });
})();
