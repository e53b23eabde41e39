// A chart of values by day. The library that draws it is loaded when a page first shows a chart.
import { colourOf, useTheme } from "./colours.js";
import { html, useEffect, useRef } from "./runtime.js";

const HEIGHT = 170;
const DAY_S = 86400;

/** @type {Promise<any> | undefined} */
let library;

function load() {
  library ??= (async () => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL("vendor/uplot-1.6.32.css", import.meta.url).href;
    document.head.append(style);
    const { default: Plot } = await import("uplot");
    return Plot;
  })();
  return library;
}

/**
 * One bar for each day; days without a value are shown as 0. The page must also show the numbers as text.
 * @param {{days: {day: string, value: number}[], unit: string, label: string}} props `day` is as 2026-01-31, of UTC
 */
export function DayChart({ days, unit, label }) {
  const box = useRef(null);
  const theme = useTheme();
  const told = JSON.stringify(days);
  useEffect(() => {
    let plot = null;
    let isOver = false;
    const sized = new ResizeObserver(() => plot?.setSize({ width: box.current.clientWidth, height: HEIGHT }));
    load().then((Plot) => {
      if (isOver) return;
      plot = new Plot(optionsOf(Plot, box.current, unit), filled(days), box.current);
      sized.observe(box.current);
    }).catch(() => box.current?.remove());
    return () => {
      isOver = true;
      sized.disconnect();
      plot?.destroy();
    };
  }, [told, unit, theme]);
  return html`<figure class="chart card"><figcaption class="soft">${label}</figcaption><div ref=${box} role="img" aria-label=${label}></div></figure>`;
}

/**
 * The columns for the library: times in seconds, and values; each day between the first and the last has one.
 * @param {{day: string, value: number}[]} days
 * @returns {[number[], number[]]}
 */
export function filled(days) {
  const known = new Map(days.map(({ day, value }) => [Date.parse(`${day}T00:00:00Z`) / 1000, value]));
  if (!known.size) return [[], []];
  const times = [];
  for (let at = Math.min(...known.keys()); at <= Math.max(...known.keys()); at += DAY_S) times.push(at);
  return [times, times.map((at) => known.get(at) ?? 0)];
}

function optionsOf(Plot, box, unit) {
  const [soft, line, accent] = ["--soft", "--line", "--accent"].map((token) => colourOf(box, { token }));
  const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  return {
    width: box.clientWidth, height: HEIGHT, tzDate: (seconds) => Plot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    cursor: { y: false, drag: { x: false, y: false } }, legend: { live: true, markers: { show: false } },
    scales: { x: { time: true, range: (_, from, to) => [(from ?? 0) - DAY_S / 2, (to ?? 0) + DAY_S / 2] }, y: { range: (_, __, most) => [0, (most || 1) * 1.1] } },
    axes: [{ ...axis, values: (_, at) => at.map(dayOf), incrs: [1, 2, 7, 14, 28].map((days) => days * DAY_S) }, { ...axis, size: 56 }],
    series: [{ label: "Day", value: (_, at) => (at === null || at === undefined ? "–" : dayOf(at)) },
      { label: unit, stroke: accent, fill: accent, width: 0, points: { show: false }, paths: Plot.paths.bars({ size: [0.7, 48] }),
        value: (_, value) => (value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 })) }],
  };
}

function dayOf(seconds) {
  return new Date(seconds * 1000).toISOString().slice(5, 10);
}
