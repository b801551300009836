// Makes pages quicker to use where scripts run; everything works without it, by links and forms.
"use strict";
document.documentElement.classList.add("js");

// A filter takes effect while it is typed: htmx replaces the list by that of the same page.
for (const form of document.querySelectorAll("form[data-live]")) {
  const list = form.dataset.live;
  const attributes = {
    "hx-get": form.getAttribute("action") || location.pathname,
    "hx-trigger": "input delay:250ms, submit",
    "hx-target": list,
    "hx-select": list,
    "hx-swap": "outerHTML",
    "hx-push-url": "true",
    "hx-sync": "this:replace",
  };
  for (const [name, value] of Object.entries(attributes)) form.setAttribute(name, value);
  htmx.process(form);
}

// Numbers that change: fetched again every few seconds while the page is looked at, and nothing is selected in it.
for (const part of document.querySelectorAll("[data-refresh]")) {
  setInterval(() => {
    const shown = document.getElementById(part.id);
    const isUsed = document.visibilityState !== "visible" || String(getSelection()) || shown.contains(document.activeElement);
    if (isUsed) return;
    const select = "#" + part.id;
    htmx.ajax("GET", location.href, { target: select, select, swap: "outerHTML" });
  }, 1000 * Number(part.dataset.refresh));
}

// A table that is wider than its place is scrolled by keyboard, too.
function reach() {
  for (const place of document.querySelectorAll(".scroll, pre")) {
    if (place.scrollWidth > place.clientWidth || place.scrollHeight > place.clientHeight) place.tabIndex = 0;
    else place.removeAttribute("tabindex");
  }
}
reach();
addEventListener("resize", reach);
document.addEventListener("htmx:afterSettle", reach);

// A chart with a cursor in place of the one that the page has; it is fetched from the API.
let chart = null;
async function draw() {
  const place = document.querySelector(".chart[data-src]");
  if (!place || !window.uPlot) return;
  const answer = await fetch(place.dataset.src);
  if (!answer.ok) return;
  const answered = (await answer.json())[place.dataset.series];
  const values = answered.map((value) => value || null);
  const minute = Math.floor(Date.now() / 60000) * 60;
  const times = values.map((_, index) => minute - 60 * (values.length - 1 - index));
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const clock = (time) => new Date(time * 1000).toISOString().slice(11, 16);
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  if (chart) chart.destroy();
  place.replaceChildren();
  const inner = place.clientWidth - 30;
  chart = new uPlot(
    {
      width: Math.max(inner, 200), height: 110, legend: { show: true }, cursor: { y: false },
      axes: [{ ...axis, size: 28, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 44, splits: (plot) => [0, plot.scales.y.max] }],
      scales: { y: { range: (_, __, most) => [0, Math.max(most, 1)] } },
      series: [{ label: "at", value: (_, time) => (time ? clock(time) : "–") }, { label: "commits", value: (_, value, __, at) => (at === null ? "–" : answered[at] === null ? "no longer kept" : value ?? 0), stroke: colour("--accent"), fill: colour("--accent"), paths: uPlot.paths.bars({ size: [0.8, 20] }), points: { show: false } }],
    },
    [times, values],
    place,
  );
}
draw();
setInterval(() => { if (document.visibilityState === "visible") draw(); }, 20000);
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
