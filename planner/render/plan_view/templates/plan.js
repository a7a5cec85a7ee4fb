"use strict";
// What the plan view adds to HTML: copying of files and commands, and zoom of the step by buttons.
(function () {
  const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));

  function copies() {
    if (!navigator.clipboard) return;
    all("[data-copy]").forEach((button) => {
      const text = document.getElementById(button.dataset.copy);
      const label = button.firstChild;
      button.hidden = false;
      button.addEventListener("click", () => {
        navigator.clipboard.writeText(text.textContent).then(
          () => { label.nodeValue = "Copied"; setTimeout(() => { label.nodeValue = "Copy"; }, 2000); },
          () => { label.nodeValue = "Not allowed to copy"; },
        );
      });
    });
  }

  const STEPS = {
    in: (a, b) => [a + (b - a) / 4, b - (b - a) / 4], out: (a, b) => [a - (b - a) / 2, b + (b - a) / 2],
    back: (a, b) => [a - (b - a) / 2, b - (b - a) / 2], on: (a, b) => [a + (b - a) / 2, b + (b - a) / 2],
  };
  // One micro-batch and a little beside it: at the begin of the first window, in the middle of the
  // second, at the end of the last.
  function micro(given, place, low, high) {
    const n = given.meta.windows.length, span = 1.5 * given.meta.micro_batch;
    const start = low + (n > 1 ? place / (n - 1) : 0.5) * Math.max(0, high - low - span);
    return [start, start + span];
  }
  // Where the windows lie in the whole step, and what is seen of each.
  function minimap(box, plot) {
    const map = box.querySelector("[data-minimap]");
    const { meta } = plot.given.layout;
    const place = (each, [a, b]) => {
      each.style.left = 100 * Math.max(0, a) / meta.end + "%";
      each.style.width = 100 * (Math.min(b, meta.end) - Math.max(0, a)) / meta.end + "%";
      return each;
    };
    const parts = meta.windows.map((window, i) => place(Object.assign(document.createElement("span"), { textContent: meta.names[i] }), window));
    const seen = meta.windows.map(() => document.createElement("i"));
    map.replaceChildren(...parts, ...seen);
    const follow = () => seen.forEach((each, i) => place(each, plot.layout["xaxis" + (i ? i + 1 : "")].range));
    plot.on("plotly_relayout", follow);
    follow();
  }
  document.addEventListener("planner:drawn", (event) => {
    const plot = event.target;
    if (!plot.given || !plot.given.layout.meta) return;
    const box = document.querySelector('[data-zoom="' + plot.dataset.figure.replace(/-data$/, "") + '"]');
    if (box) minimap(box, plot);
  });
  function zooms() {
    all("[data-zoom]").forEach((box) => {
      const plot = document.querySelector(`.plot[data-figure="${box.dataset.zoom}-data"]`);
      box.hidden = false;
      box.addEventListener("click", (event) => {
        const by = event.target.dataset && event.target.dataset.by;
        if (!by || !plot.given) return;
        const given = plot.given.layout; // as it was drawn at first
        const axes = Object.keys(given).filter((name) => /^xaxis\d*$/.test(name));
        const change = {};
        axes.forEach((axis) => {
          const [low, high] = given[axis].range;
          let [a, b] = by === "all" ? [low, high] : by === "micro" ? micro(given, axes.indexOf(axis), low, high)
            : STEPS[by](...plot.layout[axis].range);
          if (b - a >= high - low) [a, b] = [low, high];
          const over = Math.min(0, a - low) || Math.max(0, b - high); // stays within the step
          change[axis + ".range"] = [a - over, b - over];
        });
        window.Plotly.relayout(plot, change);
      });
    });
  }
  // A link out of an opened number leads into the page: the number is closed, so that it shows.
  function closes() {
    window.addEventListener("hashchange", () => all("[popover]:popover-open").forEach((card) => card.hidePopover()));
  }
  copies();
  zooms();
  closes();
})();
