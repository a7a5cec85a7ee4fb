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
  function zooms() {
    all("[data-zoom]").forEach((box) => {
      const plot = document.querySelector(`.plot[data-figure="${box.dataset.zoom}-data"]`);
      box.hidden = false;
      const given = JSON.parse(document.getElementById(plot.dataset.figure).textContent).layout;
      const axes = Object.keys(given).filter((name) => /^xaxis\d*$/.test(name));
      box.addEventListener("click", (event) => {
        const by = event.target.dataset && event.target.dataset.by;
        if (!by || !plot.layout) return;
        const change = {};
        axes.forEach((axis) => {
          const [low, high] = given[axis].range;
          let [a, b] = by === "all" ? [low, high] : STEPS[by](...plot.layout[axis].range);
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
