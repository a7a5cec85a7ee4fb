"use strict";
// What pages do beyond HTML: figures, colours without a reload, progress of jobs.
// Each part finds its elements by data attributes and leaves pages without them alone.
(function () {
  const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // Long work is cut into tasks: between two of them the browser answers clicks and draws.
  const breathe = () => (window.scheduler && window.scheduler.yield ? window.scheduler.yield() : new Promise((done) => { setTimeout(done); }));
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);

  // Figures: drawn when they come near the window, in the colours of the reader's choice.
  const drawn = new Map();
  let printing = false, watched = false;
  function template() {
    const themes = read("themes");
    return isDark() && !printing ? themes.dark : themes.light;
  }
  function fitted(layout) {
    if (window.innerWidth >= 640) return layout;
    // The legend takes many lines: below all else, wherever the figure ends.
    const narrow = { ...layout, legend: { ...layout.legend, yref: "container", yanchor: "bottom", y: 0 } };
    const grid = layout.grid; // panels beside each other do not fit
    if (!grid || grid.columns < 2) return narrow;
    return { ...narrow, grid: { ...grid, rows: grid.columns, columns: 1 }, height: layout.height * 0.85 * grid.columns };
  }
  // Fills are those of the legend: on dark each has its twin.
  function coloured(part) {
    if (!(isDark() && !printing)) return part;
    const twins = read("themes").twins;
    return JSON.parse(JSON.stringify(part).replace(/#[0-9a-f]{6}/g, (hex) => twins[hex] || hex));
  }
  const sources = new Map();
  function figureOf(plot) { // in the page, or fetched when it is drawn
    if (!sources.has(plot)) {
      const inside = document.getElementById(plot.dataset.figure);
      const fetched = () => fetch(plot.dataset.source).then((answer) => {
        if (!answer.ok) throw new Error("no figure");
        return answer.json();
      });
      sources.set(plot, inside ? Promise.resolve(JSON.parse(inside.textContent)) : fetched());
      sources.get(plot).catch(() => sources.delete(plot)); // it is asked for again
    }
    return sources.get(plot);
  }
  function draw(plot) { // one that a newer answer has replaced has no data any more
    if (plot.isConnected && !drawn.has(plot) && window.Plotly) figureOf(plot).then((figure) => drawNow(plot, coloured(figure)), () => {});
  }
  function drawNow(plot, figure) {
    if (!plot.isConnected || drawn.has(plot)) return;
    plot.given = { layout: structuredClone(figure.layout) }; // Plotly changes what it draws
    const layout = fitted(figure.layout);
    if (layout.height) plot.style.height = layout.height + "px";
    const options = {
      responsive: true, displaylogo: false, plotlyServerURL: "", showSendToCloud: false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    };
    drawn.set(plot, window.Plotly.newPlot(plot, figure.data, { ...layout, uirevision: "kept", template: template() }, options)
      .then(() => {
        plot.dispatchEvent(new CustomEvent("planner:drawn", { bubbles: true }));
        plot.dataset.drawn = "yes"; // it answers clicks now
      }));
  }
  function recolour() {
    const width = printing ? { width: 660, autosize: false } : { width: null, autosize: true };
    drawn.forEach((_, plot) => figureOf(plot).then((given) => {
      const figure = coloured(given);
      window.Plotly.react(plot, figure.data, { ...fitted(figure.layout), uirevision: "kept", template: template(), ...width });
    }));
  }
  // Plotly is many times larger than all else: it comes when a figure is about to be seen, and not
  // before the first sign of a reader, so that the first view is there at once. Where it has been
  // fetched before, it lies in the browser's cache and waits for nobody.
  const SIGNS = ["pointermove", "pointerdown", "keydown", "wheel", "touchstart", "scroll"];
  let library = null;
  function remembered(source) {
    try {
      if (source) window.localStorage.setItem("planner-plotly", source);
      return window.localStorage.getItem("planner-plotly");
    } catch (error) { return null; } // storage is off: it is as if nothing were there
  }
  const reader = new Promise((resolve) => {
    const seen = () => { SIGNS.forEach((sign) => window.removeEventListener(sign, seen, true)); resolve(); };
    SIGNS.forEach((sign) => window.addEventListener(sign, seen, { capture: true, passive: true }));
  });
  function plotly() {
    const source = document.querySelector("meta[name=plotly]").content;
    library = library || (remembered() === source ? Promise.resolve() : reader).then(() => new Promise((resolve, reject) => {
      const script = element("script", { src: source });
      script.addEventListener("load", () => { remembered(source); resolve(); }, { once: true });
      script.addEventListener("error", () => { library = null; reject(new Error("no figures")); }, { once: true });
      document.head.append(script);
    }));
    return library;
  }
  function figures() {
    const plots = all(".plot[data-figure]").filter((plot) => !drawn.has(plot));
    if (!plots.length) return;
    const source = document.querySelector("meta[name=plotly]");
    if (!source.content) { // the service has no Plotly; the tables below have what would be drawn
      plots.forEach((plot) => { plot.style.height = "auto"; plot.textContent = "No figure: plotly is not installed where this service runs. To change that: " + source.dataset.fix; });
      return;
    }
    const seen = new IntersectionObserver((entries) => {
      entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
        plotly().then(() => { seen.unobserve(entry.target); draw(entry.target); }, () => {});
      });
    }, { rootMargin: "160px" });
    plots.forEach((plot) => seen.observe(plot));
    if (watched) return; // figures of a page may come anew
    watched = true;
    dark.addEventListener("change", recolour);
    window.addEventListener("beforeprint", () => { printing = true; all(".plot[data-figure]").filter((plot) => plot.checkVisibility()).forEach(draw); recolour(); });
    window.addEventListener("afterprint", () => { printing = false; setTimeout(recolour); });
  }

  // What the server renders anew takes the place of what is there. Figures stay where they are and
  // change their data: no flicker, the same zoom; so do what is open, scrolled and has the focus.
  function renew(results, fresh) {
    const again = [];
    const told = (each) => [each.tagName, (each.closest("[id]") || {}).id, each.getAttribute("aria-label") || each.textContent].join();
    const focused = results.contains(document.activeElement) ? told(document.activeElement) : "";
    all(".plot[data-figure]", fresh).forEach((plot) => {
      const old = results.querySelector('.plot[data-figure="' + plot.dataset.figure + '"]');
      if (!old || !drawn.has(old)) return;
      old.setAttribute("aria-label", plot.getAttribute("aria-label"));
      plot.replaceWith(old);
      again.push(old);
    });
    const named = (each) => each.closest("figure") ? each.closest("figure").id : each.querySelector("summary").textContent;
    const open = all("details[open]", results).map(named);
    all("details", fresh).forEach((each) => { each.open = open.includes(named(each)); });
    const scrolled = new Map(all(".scroll", results).map((each) => [each.getAttribute("aria-label"), [each.scrollLeft, each.scrollTop]]));
    drawn.forEach((_, plot) => { if (results.contains(plot) && !again.includes(plot)) { drawn.delete(plot); window.Plotly.purge(plot); } });
    results.replaceChildren(...fresh.childNodes);
    all(".scroll", results).forEach((each) => each.scrollTo(...(scrolled.get(each.getAttribute("aria-label")) || [0, 0])));
    const next = focused && all("a, button, summary, [tabindex]", results).find((each) => told(each) === focused);
    if (next) next.focus({ preventScroll: true });
    again.forEach((plot) => {
      sources.delete(plot);
      const figure = coloured(read(plot.dataset.figure));
      window.Plotly.react(plot, figure.data, { ...fitted(figure.layout), uirevision: "kept", template: template() })
        .then(() => { if (plot.isConnected) window.Plotly.Plots.resize(plot); }); // columns may be others now
    });
    figures();
  }

  // Colours: the form works alone; here it changes them without opening the page anew.
  function colours() {
    all("form.theme").forEach((form) => form.addEventListener("submit", (event) => {
      const chosen = event.submitter ? event.submitter.value : "";
      event.preventDefault();
      if (chosen) root.dataset.theme = chosen; else delete root.dataset.theme;
      all("button", form).forEach((button) => button.setAttribute("aria-pressed", String(button.value === chosen)));
      const body = new URLSearchParams({ theme: chosen, next: "/ui" });
      fetch(form.action, { method: "POST", body, redirect: "manual" }).catch(() => {});
      recolour();
    }));
  }

  // Jobs: their events until they have ended; then the page is opened anew and shows the answer.
  function duration(seconds) {
    if (seconds >= 1) return seconds.toPrecision(4) + " s";
    return (seconds * 1e3).toPrecision(4) + " ms";
  }
  // What there is of an answer, asked for again as more of it comes; the dearer it is the seldomer.
  function following(part) {
    let done = 0, busy = false;
    const shown = () => Number(part.dataset.rowsSoFar);
    async function ask() {
      if (busy || done <= shown()) return;
      busy = true;
      const begun = performance.now();
      try {
        const answer = await fetch(window.location.href);
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = answer.ok && page.getElementById(part.id);
        if (fresh && fresh.dataset.rowsSoFar !== part.dataset.rowsSoFar) {
          part.dataset.rowsSoFar = fresh.dataset.rowsSoFar;
          renew(part, fresh);
        }
      } catch (error) { /* it is asked again, or the end of the job opens the page anew */ }
      window.setTimeout(() => { busy = false; ask(); }, Math.max(2000, 4 * (performance.now() - begun)));
    }
    return (n) => { done = n; ask(); };
  }
  function jobs() {
    all("[data-events]").forEach((box) => {
      const bar = box.querySelector("progress");
      const said = box.querySelector("[data-said]");
      const best = box.querySelector("[data-best]");
      const events = new EventSource(box.dataset.events);
      all("form", box).forEach((form) => form.addEventListener("submit", () => events.close()));
      const part = box.dataset.follows && document.getElementById(box.dataset.follows);
      const more = part ? following(part) : () => {};
      let saidAt = 0;
      events.addEventListener("progress", (event) => {
        const now = JSON.parse(event.data);
        more(now.done);
        if (now.total) { bar.max = now.total; bar.value = now.done; }
        if (now.best_step_time_s && best) best.textContent = "Best so far: a step of " + duration(now.best_step_time_s);
        if (Date.now() - saidAt < 3000) return; // screen readers are told now and then
        saidAt = Date.now();
        const words = { search: "Searching", points: "Searching the points", sizes: "Searching the sizes" };
        const part = now.total ? ": " + now.done.toLocaleString("en") + " of " + now.total.toLocaleString("en") : "";
        said.textContent = (words[now.phase] || "Working") + part;
      });
      events.addEventListener("state", (event) => {
        const state = JSON.parse(event.data).state;
        if (state === "RUNNING") said.textContent = "Running";
        if (state === "PENDING" || state === "RUNNING") return;
        events.close();
        said.textContent = "Done: opening the answer";
        window.location.reload();
      });
    });
  }

  // Tables of many rows: sorted, filtered and paged here as `service/pages/rows.py` does there. The
  // address follows, so that what is seen can be sent on.
  const PAGE_ROWS = 100;
  const ROWS_AT_ONCE = 25; // rows of a table that one task makes
  const MOST_TICKED = 4; // plans side by side
  function termOf(word) {
    return /^([a-z_][a-z0-9_]*)(<=|>=|!=|=|<|>)(.*)$/.exec(word);
  }
  function holds(row, keys, word, term) {
    if (term && keys.includes(term[1])) {
      const value = row[keys.indexOf(term[1])];
      if (typeof value === "number") {
        const number = term[3].trim() === "" ? NaN : Number(term[3]);
        if (Number.isNaN(number)) return false;
        return { "=": value === number, "!=": value !== number, "<": value < number, ">": value > number,
          "<=": value <= number, ">=": value >= number }[term[2]];
      }
      const text = value === null ? "" : String(value).toLowerCase();
      return term[2] === "!=" ? text !== term[3] : term[2] === "=" && text === term[3];
    }
    return row.some((cell) => typeof cell === "string" && cell.toLowerCase().includes(word));
  }
  function element(name, attributes, text) {
    const found = document.createElement(name);
    Object.entries(attributes || {}).forEach(([key, value]) => found.setAttribute(key, value));
    if (text !== undefined) found.textContent = text; // never as HTML: names are those of users
    return found;
  }
  function tables() {
    all("section[data-rows]").forEach((section) => {
      const { columns } = read(section.dataset.rows);
      const rows = [];
      // Rows come in parts, each read in a task of its own; the first page stands there already.
      const whole = (async () => {
        for (const part of all("[data-rows-part]", section)) { await breathe(); rows.push(...JSON.parse(part.textContent)); }
        section.dataset.read = "yes";
      })();
      const keys = columns.map((column) => column.key);
      const place = Object.fromEntries(keys.map((key, i) => [key, i]));
      const made = new Map(); // one for every number of digits, when it is needed
      const formatted = (value, digits) => {
        if (!made.has(digits)) made.set(digits, new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
        return made.get(digits).format(value);
      };
      const body = section.querySelector("tbody");
      const count = section.querySelector("[data-count]");
      const paper = section.querySelector("[data-paper]");
      const pages = section.querySelector("[data-pages]");
      const form = section.querySelector("[data-filter]");
      const input = form.querySelector("[name=filter]");
      const compare = section.querySelector("[data-compare]");
      const address = new URL(window.location.href);
      const ticked = new Set();
      const boxes = all("[name=col]", form);
      const shown = new Set(["layout", ...boxes.filter((box) => box.checked).map((box) => box.value)]);
      const now = {
        filter: input.value, sort: address.searchParams.get("sort") || "",
        desc: address.searchParams.get("desc") === "1", page: Number(address.searchParams.get("page")) || 1,
      };
      if (!keys.includes(now.sort)) now.sort = "";

      let kept = { by: "", rows: [] }; // what another page of the same rows shows
      function chosen() {
        const by = JSON.stringify([now.filter, now.sort, now.desc]);
        if (kept.by !== by) kept = { by, rows: sorted() };
        return kept.rows;
      }
      function sorted() {
        const words = now.filter.toLowerCase().split(/\s+/).filter(Boolean).map((word) => [word, termOf(word)]);
        const found = words.length ? rows.filter((row) => words.every(([word, term]) => holds(row, keys, word, term))) : rows.slice();
        if (!now.sort) return found;
        const place = keys.indexOf(now.sort);
        const isText = columns[place].digits === null;
        const empty = (row) => row[place] === null || row[place] === "";
        const known = found.filter((row) => !empty(row));
        const sign = now.desc ? -1 : 1;
        known.sort((a, b) => {
          const [x, y] = isText ? [String(a[place]), String(b[place])] : [a[place], b[place]];
          return x < y ? -sign : x > y ? sign : 0;
        });
        return known.concat(found.filter(empty));
      }
      function line(row) {
        const tr = element("tr", row[place.tie] ? { class: row[place.tie] } : {});
        const id = row[place.plan];
        const tick = element("input", { type: "checkbox", name: "plan", value: id, "aria-label": "Compare " + row[place.layout] + ", " + row[place.details] });
        tick.checked = ticked.has(id);
        tick.disabled = !tick.checked && ticked.size >= MOST_TICKED;
        const first = element("td", { class: "tick" });
        first.append(tick);
        tr.append(first);
        row.forEach((value, i) => {
          const key = keys[i];
          if (!shown.has(key)) return;
          const isNumber = columns[i].digits !== null;
          const attributes = { class: (isNumber ? "n " : "") + "c-" + key + (key === "plan" ? " mono" : "") };
          if (key === "layout") {
            const head = element("th", { scope: "row" });
            head.append(element("a", { class: "mono", href: section.dataset.plan + encodeURIComponent(id) }, value));
            tr.append(head);
          } else if (value === null || value === "") tr.append(element("td", attributes));
          else tr.append(element("td", attributes, isNumber ? formatted(value, columns[i].digits) : value));
        });
        return tr;
      }
      function pageLink(number, text) {
        const there = new URL(address);
        if (number > 1) there.searchParams.set("page", number); else there.searchParams.delete("page");
        return element("a", { class: "button", "data-page": number, href: there.href }, text);
      }
      let listed = count.textContent;
      function counted() {
        const most = ticked.size >= MOST_TICKED ? ", as many as stand side by side" : "";
        count.textContent = listed + (ticked.size ? ", " + ticked.size + " ticked" + most : "");
        paper.textContent = listed + (now.filter.trim() ? ", filter " + now.filter.trim() : "");
      }
      let turn = 0;
      const box = section.querySelector(".scroll");
      async function show() {
        const mine = ++turn;
        section.setAttribute("aria-busy", "true");
        await whole;
        await breathe();
        if (mine !== turn) return; // another click has come since
        const found = chosen();
        const last = Math.max(1, Math.ceil(found.length / PAGE_ROWS));
        now.page = Math.min(Math.max(1, now.page), last);
        const from = (now.page - 1) * PAGE_ROWS;
        const lines = found.slice(from, from + PAGE_ROWS);
        box.style.minHeight = box.offsetHeight + "px"; // what stands below does not jump
        body.replaceChildren(...lines.slice(0, ROWS_AT_ONCE).map(line));
        const n = rows.length.toLocaleString("en");
        listed = (found.length === rows.length ? n : found.length.toLocaleString("en") + " of " + n)
          + " plans, page " + now.page + " of " + last;
        counted();
        [["filter", now.filter.trim()], ["sort", now.sort], ["desc", now.desc ? "1" : ""],
          ["page", now.page > 1 ? String(now.page) : ""]].forEach(([key, value]) => {
          if (value) address.searchParams.set(key, value); else address.searchParams.delete(key);
        });
        window.history.replaceState(null, "", address);
        const links = [];
        if (now.page > 1) links.push(pageLink(1, "First"), pageLink(now.page - 1, "Previous"));
        if (now.page < last) links.push(pageLink(now.page + 1, "Next"), pageLink(last, "Last"));
        pages.replaceChildren(...links);
        all("thead [data-sort]", section).forEach((link) => {
          const head = link.closest("th");
          if (link.dataset.sort === now.sort) head.setAttribute("aria-sort", now.desc ? "descending" : "ascending");
          else head.removeAttribute("aria-sort");
        });
        for (let i = ROWS_AT_ONCE; i < lines.length; i += ROWS_AT_ONCE) {
          await breathe();
          if (mine !== turn) return;
          body.append(...lines.slice(i, i + ROWS_AT_ONCE).map(line));
        }
        box.style.minHeight = "";
        section.removeAttribute("aria-busy");
      }
      function ticks() {
        compare.disabled = ticked.size < 2;
        const isFull = ticked.size >= MOST_TICKED;
        all("[name=plan]", body).forEach((each) => { if (each.disabled !== (!each.checked && isFull)) each.disabled = !each.disabled; });
        counted();
      }
      let waiting = 0;
      input.addEventListener("input", () => {
        window.clearTimeout(waiting);
        waiting = window.setTimeout(() => { now.filter = input.value; now.page = 1; show(); }, 120);
      });
      form.addEventListener("submit", (event) => {
        const top = form.querySelector("[name=top]");
        if (top && !top.querySelector("option[selected]").matches(":checked")) return; // another search
        event.preventDefault();
        now.filter = input.value;
        now.page = 1;
        show();
      });
      boxes.forEach((box) => box.addEventListener("change", () => {
        if (box.checked) shown.add(box.value); else shown.delete(box.value);
        all("thead [data-sort]", section).forEach((link) => { link.closest("th").hidden = !shown.has(link.dataset.sort); });
        address.searchParams.delete("col");
        keys.filter((key) => shown.has(key)).forEach((key) => address.searchParams.append("col", key));
        show();
      }));
      section.addEventListener("click", (event) => {
        const sort = event.target.closest("[data-sort]");
        const page = event.target.closest("[data-page]");
        if (sort) {
          event.preventDefault();
          now.desc = now.sort === sort.dataset.sort && !now.desc;
          now.sort = sort.dataset.sort;
          now.page = 1;
          show();
        } else if (page) {
          event.preventDefault();
          now.page = Number(page.dataset.page);
          show();
          section.querySelector(".scroll").focus({ preventScroll: true });
          section.scrollIntoView({ block: "start" });
        }
      });
      body.addEventListener("change", (event) => {
        if (event.target.name !== "plan") return;
        if (event.target.checked) ticked.add(event.target.value); else ticked.delete(event.target.value);
        ticks();
      });
      // What is sent is what was ticked, in that order, on other pages of the table too.
      compare.form.addEventListener("formdata", (event) => {
        event.formData.delete("plan");
        ticked.forEach((id) => event.formData.append("plan", id));
      });
      all("[name=plan]:checked", body).forEach((box) => ticked.add(box.value));
      ticks();
      // A point of the scatter is a plan: the figure leads to it.
      document.addEventListener("planner:drawn", (event) => {
        event.target.on("plotly_click", (clicked) => {
          const data = clicked.points[0].customdata;
          if (data) window.location.href = section.dataset.plan + encodeURIComponent(data[1]);
        });
      });
    });
  }

  // Documents of a form: examples found by a word, files read into the text, checked while one types.
  function forms() {
    all("[data-check]").forEach((box) => (box.dataset.kinds || box.dataset.kind).split(" ").forEach((kind) => checked(box, kind)));
    all("form[data-check-form]").forEach(looked);
  }
  // Pins, limits and changed fields: what is wrong stands beside its field while one types.
  function looked(form) {
    const said = form.querySelector("[data-form-said]");
    let waiting = 0;
    let asked = 0;
    function coded(text) {
      return text.split("`").map((part, i) => i % 2 ? element("code", {}, part) : part);
    }
    function show(found) {
      const lost = [];
      all("[data-fault]", form).forEach((place) => {
        const faults = found.faults.filter((fault) => fault.field === place.dataset.fault);
        const field = form.elements[place.dataset.fault];
        if (faults.length) field.setAttribute("aria-invalid", "true"); else field.removeAttribute("aria-invalid");
        const parts = faults.flatMap((fault, i) => [
          ...(i ? [element("br")] : []), fault.message,
          ...(fault.fix ? [" ", element("span", { class: "hint" })] : [])]);
        place.replaceChildren(...parts);
        all(".hint", place).forEach((hint, i) => hint.replaceChildren(...coded(faults.filter((fault) => fault.fix)[i].fix)));
      });
      found.faults.filter((fault) => !form.querySelector('[data-fault="' + CSS.escape(fault.field) + '"]'))
        .forEach((fault) => lost.push((fault.message + " " + fault.fix).trim()));
      const n = found.faults.length;
      const text = lost.join(" ") || (n ? (n === 1 ? "1 fault" : n + " faults") + " in layout, limits or changed fields: each stands beside its field."
        : found.looked ? "Layout, limits and changed fields: no problems found." : "");
      said.className = "said" + (n || lost.length ? " wrong" : text ? " good" : "");
      if (said.textContent !== text) said.textContent = text;
    }
    async function check() {
      const mine = ++asked;
      const fields = Object.fromEntries(all("[name]", form)
        .filter((field) => field.type !== "file" && field.tagName !== "BUTTON" && (field.type !== "radio" || field.checked))
        .map((field) => [field.name, field.value]));
      try {
        const answer = await fetch(form.dataset.checkForm, { method: "POST", body: JSON.stringify({ kind: "form", fields }),
          headers: { "Content-Type": "application/json" } });
        const found = await answer.json();
        if (mine === asked) show(answer.ok ? found : { faults: [{ field: "", message: found.detail, fix: "" }] });
      } catch (error) {
        if (mine === asked) show({ faults: [{ field: "", message: "The service does not answer: this was not checked.", fix: "" }] });
      }
    }
    function soon(event) {
      if (!event.target.name) return; // words of a search
      window.clearTimeout(waiting);
      waiting = window.setTimeout(check, 350);
    }
    form.addEventListener("input", soon);
    form.addEventListener("change", soon);
  }
  function checked(box, kind) {
    const form = box.closest("form");
    const field = (name) => form.querySelector("[name=" + kind + "_" + name + "]");
    const text = field("text");
    const said = box.querySelector('[data-said="' + kind + '"]') || box.querySelector("[data-said]");
    const file = box.querySelector('[data-file="' + kind + '"]');
    const read = box.querySelector('[data-read="' + kind + '"]') || box.querySelector("[data-read]");
    const radios = all("[type=radio][name=" + kind + "_source]", form);
    let waiting = 0;
    let asked = 0;
    const source = () => (radios.find((radio) => radio.checked) || field("source")).value;

    function lineLink(fault) {
      const link = element("button", { type: "button", class: "line" },
        "line " + fault.line + (fault.column ? ", column " + fault.column : ""));
      link.addEventListener("click", () => {
        const lines = text.value.split("\n");
        const start = lines.slice(0, fault.line - 1).reduce((sum, line) => sum + line.length + 1, 0);
        text.focus();
        text.setSelectionRange(start, start + (lines[fault.line - 1] || "").length);
        text.scrollTop = Math.max(0, (fault.line - 4) * parseFloat(getComputedStyle(text).lineHeight));
      });
      return link;
    }
    function show(found) {
      const wrong = Boolean(found.problem);
      said.className = "said " + (wrong ? "wrong" : "good");
      const parts = [];
      if (text) text.setAttribute("aria-invalid", String(wrong && source() === "text"));
      if (wrong) {
        const list = element("ul");
        (found.problem.errors || [{ message: found.problem.detail }]).forEach((fault) => {
          const item = element("li");
          if (fault.line && source() === "text") item.append(lineLink(fault), ": ");
          if (fault.field) item.append(element("code", {}, fault.field), " ");
          item.append(fault.message);
          if (fault.fix) item.append(" ", element("span", { class: "hint" }, fault.fix));
          list.append(item);
        });
        parts.push(list);
      } else {
        const box = found.headline ? element("details") : null;
        const more = [element("pre", {}, found.summary), ...found.notes.map((note) => element("p", { class: "note" }, note))];
        if (found.headline) { box.append(element("summary", {}, found.headline), ...more); parts.push(box); } else parts.push(...more);
      }
      said.replaceChildren(...parts);
    }
    async function check() {
      const mine = ++asked;
      const value = (name) => (field(name) || { value: "" }).value;
      const isEmpty = source() === "text" ? !text.value.trim() : source() === "words" ? !value("gpu") || !value("count") : !value("example");
      if (isEmpty) {
        said.className = "said";
        said.replaceChildren();
        return;
      }
      const names = ["source", "example", "text", "name", "gpu", "count"];
      const body = JSON.stringify({ kind, ...Object.fromEntries(names.map((name) => [name, value(name)])), source: source() });
      try {
        const answer = await fetch(box.dataset.check, { method: "POST", body, headers: { "Content-Type": "application/json" } });
        const found = await answer.json();
        if (mine === asked) show(answer.ok ? found : { problem: found });
      } catch (error) {
        if (mine === asked) show({ problem: { detail: "The service does not answer: this was not checked." } });
      }
    }
    function soon() {
      window.clearTimeout(waiting);
      waiting = window.setTimeout(check, 350);
    }
    function named(name) {
      field("name").value = name;
      if (read) read.textContent = name || "your own text, under Advanced";
    }
    if (text) text.addEventListener("input", () => {
      if (!text.value.trim()) { named(""); if (file) file.value = ""; }
      soon();
    });
    ["example", "gpu", "count"].map(field).filter(Boolean).forEach((each) => each.addEventListener("input", soon));
    radios.forEach((radio) => radio.addEventListener("change", check));
    if (file) {
      file.removeAttribute("name"); // the text is what is sent
      file.addEventListener("click", () => { file.value = ""; }); // the same file can be read again
      file.addEventListener("change", async () => {
        if (!file.files.length) return;
        const own = radios.find((radio) => radio.value === "text");
        if (own) own.checked = true;
        text.value = await file.files[0].text();
        named(file.files[0].name);
        text.dispatchEvent(new Event("input", { bubbles: true }));
      });
    }
    if (!said.children.length) check();
  }

  // Forms that answer while they are filled in: what the server renders for their address is put
  // in the place of the results. A slider moves the number of its field.
  function live() {
    all("form[data-live]").forEach((form) => {
      const results = document.getElementById(form.dataset.live);
      const fields = all("[name]", form).filter((field) => field.tagName !== "BUTTON");
      const announce = form.querySelector("[data-announce]");
      let waiting = 0, asking = null;
      function address() {
        const found = new URL(form.action);
        fields.forEach((field) => {
          const value = field.value.trim();
          if (value !== "" && value !== field.dataset.standard) found.searchParams.set(field.name, value);
        });
        return found;
      }
      function sliders(from) {
        all("[data-slider]", form).forEach((slider) => {
          const now = from && from.querySelector("[data-slider=" + slider.dataset.slider + "]");
          if (now) slider.value = now.value;
          slider.setAttribute("aria-valuetext", (slider.dataset.steps.split(" ")[slider.value] + " " + slider.dataset.unit).trim());
        });
      }
      function put(text) {
        const page = new DOMParser().parseFromString(text, "text/html");
        const fresh = page.getElementById(form.dataset.live);
        if (!fresh) return;
        all("[data-swap]", form).forEach((part) => {
          const now = page.getElementById(part.id);
          if (now && part.textContent !== now.textContent) part.textContent = now.textContent;
        });
        fields.forEach((field) => {
          const now = page.getElementById(field.id);
          if (!now) return;
          if (now.hasAttribute("aria-invalid")) field.setAttribute("aria-invalid", "true"); else field.removeAttribute("aria-invalid");
          if (now.placeholder) field.placeholder = now.placeholder;
        });
        sliders(page);
        renew(results, fresh);
        const headline = results.querySelector("[data-headline]");
        if (headline && announce.textContent !== headline.textContent) announce.textContent = headline.textContent;
      }
      async function ask() {
        if (asking) asking.abort();
        asking = new AbortController();
        const mine = asking, to = address(), part = new URL(to);
        part.searchParams.set("part", "1");
        results.setAttribute("aria-busy", "true");
        try {
          const answer = await fetch(part, { signal: mine.signal });
          if (answer.ok) {
            put(await answer.text());
            window.history.replaceState(null, "", to);
          } else if (answer.status === 429 || answer.status === 503) {
            window.clearTimeout(waiting);
            waiting = window.setTimeout(ask, 1500);
          } else window.location.assign(to);
        } catch (error) {
          if (error.name !== "AbortError") announce.textContent = "The service does not answer.";
        } finally {
          if (asking === mine) results.removeAttribute("aria-busy");
        }
      }
      function soon(wait) {
        window.clearTimeout(waiting);
        waiting = window.setTimeout(ask, wait);
      }
      all("[data-slider]", form).forEach((slider) => {
        slider.hidden = false;
        slider.addEventListener("input", () => {
          const value = slider.dataset.steps.split(" ")[slider.value];
          form.elements[slider.dataset.slider].value = value;
          slider.setAttribute("aria-valuetext", (value + " " + slider.dataset.unit).trim());
          soon(80);
        });
      });
      sliders();
      form.addEventListener("input", (event) => { if (event.target.name) soon(250); });
      form.addEventListener("submit", (event) => { event.preventDefault(); soon(0); });
    });
  }

  // Parts of a page that take a search of their own: fetched when they are asked for.
  function parts() {
    all("[data-part]").forEach((box) => box.addEventListener("click", (event) => {
      const link = event.target.closest("a");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      const status = element("p", { role: "status" }, "Searching…");
      box.replaceChildren(status);
      async function ask() {
        try {
          const answer = await fetch(box.dataset.part);
          const page = new DOMParser().parseFromString(await answer.text(), "text/html");
          const part = page.getElementById("part");
          if (part) { box.replaceWith(...part.childNodes); return; }
          if (answer.ok && page.querySelector("[data-events]")) { window.setTimeout(ask, 1500); return; }
        } catch (error) { /* the link opens the same page */ }
        box.replaceChildren("This took too long. ", link);
      }
      ask();
    }));
  }

  (async () => {
    for (const start of [figures, parts, tables, live, forms, colours, jobs]) { start(); await breathe(); }
    performance.mark("usable");
    root.dataset.ready = "yes";
  })();
})();
