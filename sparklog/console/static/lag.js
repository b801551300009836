// The lag of a group and its rates, as charts with a cursor in place of those that the page has.
"use strict";
{
  const history = document.getElementById("history");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const clock = (time) => new Date(time * 1000).toISOString().slice(11, 19);
  const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 }));
  const short = new Intl.NumberFormat("en", { notation: "compact" });
  const names = { lag: "lag", consumed_per_second: "consumed", produced_per_second: "produced" };
  const shown = new Map();

  // A point without values where none was sampled for longer than this, so that no line bridges the gap.
  function withGaps(points, most) {
    return points.flatMap((point, at) => (at && point.at_ms - points[at - 1].at_ms > most ? [{ at_ms: point.at_ms - 1 }, point] : [point]));
  }

  function plot(place, points) {
    const series = place.dataset.series.split(" ");
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const strokes = [colour("--accent"), colour("--warn")];
    const fill = series.length === 1 ? colour("--accent") + "22" : undefined;
    shown.get(place)?.destroy();
    place.replaceChildren();
    shown.set(place, new uPlot(
      {
        width: Math.max(place.clientWidth - 30, 200), height: 180, cursor: { y: false, sync: { key: "lag" } },
        axes: [{ ...axis, size: 28, values: (_, ticks) => ticks.map((time) => clock(time).slice(0, 5)) }, { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => short.format(tick)) }],
        scales: { x: { range: (_, __, last) => [last - 3600, last] }, y: { range: (_, __, most) => [0, Math.max(most * 1.1, 1)] } },
        series: [
          { label: "at", value: (_, time) => (time ? clock(time) : "–") },
          ...series.map((name, at) => ({ label: names[name], value: (_, value) => number(value), stroke: strokes[at], fill, width: 2, points: { show: points.length < 3 } })),
        ],
      },
      [points.map((point) => point.at_ms / 1000), ...series.map((name) => points.map((point) => point[name] ?? null))],
      place,
    ));
  }

  async function draw() {
    if (document.visibilityState !== "visible") return;
    const answer = await fetch(history.dataset.src);
    if (!answer.ok) return;
    const found = await answer.json();
    const points = withGaps(found.points, 3 * found.interval_ms);
    if (points.length) for (const place of history.querySelectorAll(".chart")) plot(place, points);
  }

  draw();
  setInterval(draw, 10000);
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
