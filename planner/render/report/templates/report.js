"use strict";
// Draws each figure when it comes near the window, in the colours of the reader's choice.
(function () {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const themes = read("themes");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = Array.from(document.querySelectorAll(".plot"));
  const drawn = new Set();
  let printing = false;
  const template = () => (dark.matches && !printing ? themes.dark : themes.light);
  const narrow = () => window.innerWidth < 640;

  function fitted(layout) {
    if (!narrow()) return layout;
    // The legend takes many lines: below all else, wherever the figure ends.
    const thin = { ...layout, legend: { ...layout.legend, yref: "container", yanchor: "bottom", y: 0 } };
    // Panels beside each other do not fit a narrow window: one below the other there.
    const grid = layout.grid;
    if (!grid || grid.columns < 2) return thin;
    return { ...thin, grid: { ...grid, rows: grid.columns, columns: 1 }, height: layout.height * 0.85 * grid.columns };
  }
  // Fills are those of the legend: on dark each has its twin.
  function coloured(part) {
    if (!(dark.matches && !printing)) return part;
    const twins = themes.twins;
    return JSON.parse(JSON.stringify(part).replace(/#[0-9a-f]{6}/g, (hex) => twins[hex] || hex));
  }
  function draw(plot) {
    if (drawn.has(plot)) return;
    drawn.add(plot);
    const figure = coloured(read(plot.dataset.figure));
    const layout = fitted(figure.layout);
    plot.given = { layout: structuredClone(figure.layout) }; // Plotly changes what it draws
    plot.style.height = layout.height + "px";
    Plotly.newPlot(plot, figure.data, { ...layout, uirevision: "kept", template: template() }, {
      responsive: true, displaylogo: false, plotlyServerURL: "", showSendToCloud: false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    }).then(() => plot.dispatchEvent(new CustomEvent("planner:drawn", { bubbles: true })));
  }
  function recolour() {
    // Paper is narrower than most windows, and tells no script how wide it is.
    const width = printing ? { width: 660, autosize: false } : { width: null, autosize: true };
    drawn.forEach((plot) => {
      const figure = coloured(read(plot.dataset.figure));
      Plotly.react(plot, figure.data, { ...fitted(figure.layout), uirevision: "kept", template: template(), ...width });
    });
  }
  if ("IntersectionObserver" in window) {
    const seen = new IntersectionObserver((entries) => {
      entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
        seen.unobserve(entry.target);
        draw(entry.target);
      });
    }, { rootMargin: "800px" });
    plots.forEach((plot) => seen.observe(plot));
  } else {
    plots.forEach(draw);
  }
  dark.addEventListener("change", recolour);
  window.addEventListener("beforeprint", () => {
    printing = true;
    plots.forEach(draw);
    recolour();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    setTimeout(recolour);
  });
})();
