"use strict";
// Draws the figures with Plotly, sorts the tables, switches the theme. Everything it shows comes from this file's page.
(() => {
  const COLOUR = /^var\((--[a-z0-9-]+)\)$/;
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);

  // CSS variables are named in the figures' JSON; Plotly needs the colours themselves.
  const resolved = (value) => {
    if (Array.isArray(value)) return value.map(resolved);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, key.endsWith("color") ? colour(inner) : plain(inner)]));
    }
    return value;
  };
  const plain = (inner) => (inner && typeof inner === "object" ? resolved(inner) : inner);
  const colour = (name) => {
    const match = COLOUR.exec(name);
    return match ? getComputedStyle(probe).getPropertyValue(match[1]).trim() : name;
  };

  const plots = () => document.querySelectorAll(".plot[data-figure]");
  const specification = (plot) => JSON.parse(document.getElementById(plot.dataset.figure).textContent);
  const picked = (plot) => {
    const button = plot.closest(".panels").querySelector('.legend button[aria-pressed="true"]');
    return button ? button.dataset.series : null;
  };
  const draw = (plot) => {
    const figure = resolved(specification(plot));
    const chosen = picked(plot);
    for (const trace of figure.data) {
      if (chosen !== null && "name" in trace && trace.name !== chosen) trace.opacity = 0.12;
    }
    widths.observe(plot);
    return Plotly.react(plot, figure.data, figure.layout, { displayModeBar: false });
  };
  // The place of a figure changes with the window, but also by a scroll bar or what comes beside it. A drawing
  // for paper, which has a view box, keeps its width.
  const widths = new ResizeObserver((entries) => {
    for (const { target: plot } of entries) {
      const drawing = plot.querySelector(".main-svg:not([viewBox])");
      if (drawing && plot.offsetWidth && Math.abs(drawing.getAttribute("width") - plot.offsetWidth) > 1) Plotly.Plots.resize(plot);
    }
  });
  const drawAll = () => plots().forEach(draw);

  // Figures near the screen first; then all others, one whenever the page has nothing else to do. Those in a
  // closed fold have no width yet: they are drawn when it opens.
  const later = window.requestIdleCallback ?? ((work) => setTimeout(work, 20));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) drawOnce(entry.target);
  }, { rootMargin: "800px 0px" });
  const drawOnce = (plot) => {
    seen.unobserve(plot);
    if (!plot.querySelector(".main-svg") && plot.isConnected) draw(plot);
  };
  const drawNext = () => {
    const next = [...plots()].find((plot) => plot.offsetWidth && !plot.querySelector(".main-svg"));
    if (!next) return;
    drawOnce(next);
    later(drawNext);
  };
  const watch = () => {
    seen.disconnect();
    plots().forEach((plot) => seen.observe(plot));
    later(drawNext);
  };
  watch();
  // Sent by a page that has put new figures and tables into itself.
  document.addEventListener("figures-changed", watch);

  const pick = (button) => {
    const was = button.getAttribute("aria-pressed") === "true";
    const panels = button.closest(".panels");
    panels.querySelectorAll(".legend button").forEach((each) => each.setAttribute("aria-pressed", "false"));
    button.setAttribute("aria-pressed", String(!was));
    panels.querySelectorAll(".plot[data-figure]").forEach(draw);
  };

  const order = (isNumber, sign) => (a, b) => {
    if (a.key === "" || b.key === "") return (a.key === "") - (b.key === "");
    return sign * (isNumber ? Number(a.key) - Number(b.key) : a.key.localeCompare(b.key, undefined, { numeric: true }));
  };
  const sort = (button) => {
    const head = button.closest("th");
    const up = head.getAttribute("aria-sort") !== "ascending";
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, key: row.cells[head.cellIndex].dataset.key ?? "" }));
    rows.sort(order(head.classList.contains("number"), up ? 1 : -1));
    body.append(...rows.map((each) => each.row));
    head.parentElement.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".legend button, th button");
    if (button) (button.closest(".legend") ? pick : sort)(button);
  });

  const dark = document.getElementById("dark");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const toggle = document.querySelector(".theme");
  const isDark = () => matchMedia(dark.media).matches;
  const label = () => { toggle.textContent = isDark() ? "Light theme" : "Dark theme"; };
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    dark.media = isDark() ? "not all" : "screen";
    label();
    drawAll();
    document.dispatchEvent(new CustomEvent("theme-chosen", { detail: isDark() ? "dark" : "light" }));
  });
  system.addEventListener("change", () => { label(); drawAll(); });
  label();

  // Paper shows every fold and every figure, light and as wide as the page.
  let closed = [];
  let screenMedia = dark.media;
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open]):not(.aside)")];
    closed.forEach((fold) => { fold.open = true; });
    screenMedia = dark.media;
    dark.media = "not all";
    drawAll();
    // A drawing has the screen's width: a view box lets the style sheet fit it to the paper.
    for (const drawing of document.querySelectorAll(".plot .main-svg")) {
      const [width, height] = [drawing.getAttribute("width"), drawing.getAttribute("height")];
      drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
      drawing.closest(".plot").style.setProperty("--drawn", `${width} / ${height}`);
    }
  });
  addEventListener("afterprint", () => {
    closed.forEach((fold) => { fold.open = false; });
    dark.media = screenMedia;
    document.querySelectorAll(".plot .main-svg").forEach((drawing) => drawing.removeAttribute("viewBox"));
    drawAll();
  });
})();
