// `/usage`: usage by user, queue, day and so on. Each row has a link to its details.
import { DayChart } from "./chart.js";
import { Answered, Choice, Empty, Meter, dash } from "./components.js";
import { plural, sentence, spellDuration, trim } from "./format.js";
import { GpuUseNow } from "./gpu_use.js";
import { location_, param, setParam } from "./router.js";
import { html } from "./runtime.js";
import { useResource } from "./store.js";

const BYS = { user: "User", queue: "Queue", kind: "Kind", gpuType: "GPU type", day: "Day" };
const GPU_TYPE = "gpuType";
/** The groupings of GPU figures; the figures are read for at most `GPU_DAYS` days. */
const GPU_BYS = ["day", "user", "queue", GPU_TYPE];
const GPU_DAYS = 31;
const SPANS = [["7", "7 days"], ["30", "30 days"], ["90", "90 days"]];
const DAYS = "30";
const DAY_MS = 86400000;
const HOUR_S = 3600;
/** The filters; each is a parameter of the page and of the API. */
const FILTERS = ["user", "queue", "kind", "pool", "workspace"];

export function Usage() {
  const by = BYS[param("by")] ? param("by") : "user";
  const days = SPANS.some(([value]) => value === param("days")) ? param("days") : DAYS;
  const to = param("to") || dayOf(Date.now());
  const from = param("from") || dayOf(Date.parse(`${to}T00:00:00Z`) - (Number(days) - 1) * DAY_MS);
  const filters = FILTERS.filter((name) => param(name)).map((name) => [name, param(name)]);
  const query = new URLSearchParams({ by, from, to, ...Object.fromEntries(filters) });
  const answer = useResource(`/usage?${query}`, { isSlow: true, isAbout: () => false });
  const isShort = (Date.parse(to) - Date.parse(from)) / DAY_MS < GPU_DAYS;
  const others = filters.some(([name]) => !["user", "workspace"].includes(name));
  const gpuDays = useResource(isShort && !others && GPU_BYS.includes(by) ? `/gpu-use/days?${query}` : "", { isSlow: true, isAbout: () => false });
  const ofDays = new URLSearchParams({ ...Object.fromEntries(query), by: "day" });
  const daily = useResource(by === "day" ? "" : `/usage?${ofDays}`, { isSlow: true, isAbout: () => false });
  const perDay = by === "day" ? answer.data : daily.data;
  const choose = (value) => {
    setParam("from", "");
    setParam("to", "");
    setParam("days", value === DAYS ? "" : value);
  };
  return html`<div class="head"><h1 tabindex="-1">Usage</h1>
      <a class="button" href=${`/api/v1/usage?${query}&format=csv`} download>CSV</a></div>
    <div class="bar">
      <${Choice} label="By" options=${Object.entries(BYS).map(([value, text]) => [value, value === GPU_TYPE ? "By GPU type" : `By ${text.toLowerCase()}`])} chosen=${by}
        onChoose=${(value) => setParam("by", value === "user" ? "" : value)} />
      <${Choice} label="Days" options=${SPANS} chosen=${param("from") || param("to") ? "" : days} onChoose=${choose} />
      <label>From <input type="date" value=${from} max=${to} onChange=${(event) => setParam("from", event.target.value)} /></label>
      <label>to <input type="date" value=${to} min=${from} onChange=${(event) => setParam("to", event.target.value)} /></label>
    </div>
    ${filters.length ? html`<p class="filters">Only ${filters.map(([name, value]) => html`<button key=${name} type="button" class="filter"
      aria-label=${`Only ${name} ${value}: remove this filter`} onClick=${() => setParam(name, "")}>${name} <b>${value}</b> ×</button>`)}</p>` : null}
    ${perDay && perDay.items.length > 1 ? html`<${DayChart} days=${perDay.items.map((row) => ({ day: row.by.day, value: row.slotSeconds / HOUR_S }))} unit="GPU hours" label="GPU hours by day" />` : null}
    <${Answered} answer=${answer} what="the usage" rows=${5}>${(found) => found.items.length
      ? html`<${by === GPU_TYPE ? Types : Sums} by=${by} found=${found} used=${gpuDays.data?.isConfigured ? gpuDays.data : null} />`
      : html`<${Empty} title=${by === GPU_TYPE ? "No GPU was used" : "Nothing was used"}>From ${from} to ${to} no workload ran${by === GPU_TYPE ? " on GPUs" : ""}${filters.length ? " that matches the filters" : ""}. Choose more days.<//>`}<//>
    ${by === GPU_TYPE ? html`<${ByModel} answer=${gpuDays} />` : null}
    ${gpuDays.error && by !== GPU_TYPE ? html`<p class="warning" role="status">${sentence(gpuDays.error.message)}</p>` : null}
    <p class="soft">Days are those of UTC. GPU hours are counted from the moment that a workload gets its GPUs until it releases them.</p>
    <${GpuUseNow} />`;
}

// GPU hours by flavor. The other figures are stored per allocation, not per flavor.
function Types({ found }) {
  const items = [...found.items].sort((a, b) => b.slotSeconds - a.slotSeconds);
  const most = Math.max(...items.map((row) => row.slotSeconds));
  const row = (name, each, share) => html`<th scope="row">${name || html`<span class="soft">no flavor</span>`}</th>
    <td class="number" data-label="GPU hours">${spellHours(each.slotSeconds / HOUR_S)}</td>
    <td class="wide">${share ? html`<${Meter} used=${each.slotSeconds} whole=${most} label=${plural(Number(trim(each.slotSeconds / HOUR_S).replaceAll(",", "")), "GPU hour")} />` : null}</td>
    <td class="number" data-label="Share">${found.total.slotSeconds ? `${Math.round((100 * each.slotSeconds) / found.total.slotSeconds)} %` : dash()}</td>`;
  return html`<table class="list usage" aria-label="GPU hours by flavor"><thead><tr><th>GPU type</th><th class="number">GPU hours</th><th>Compared</th><th class="number">Share</th></tr></thead>
      <tbody>${items.map((each) => html`<tr key=${each.by.gpuType}>${row(each.by.gpuType, each, true)}</tr>`)}</tbody>
      <tfoot><tr>${row("All", found.total, false)}</tr></tfoot></table>
    ${items.some((each) => !each.by.gpuType) ? html`<p class="soft">Types are the flavors of a pool. Usage is listed under <i>no flavor</i> if the pool had none when the workload got its GPUs.</p>` : null}`;
}

// How busy the GPUs of each model were, by the figures of the cluster's Prometheus, which has its own names for models.
function ByModel({ answer }) {
  if (!answer.data?.isConfigured && !answer.error) return null;
  return html`<h2>How busy the GPUs were</h2><${Answered} answer=${answer} what="the use of GPUs" rows=${3}>${(found) => {
    if (!found.items.length) return html`<${Empty} title="No GPU was held">From ${found.from} to ${found.to} Prometheus has no data on GPUs that workloads held.<//>`;
    const items = [...found.items].sort((a, b) => b.heldSeconds - a.heldSeconds);
    const row = (name, each) => html`<th scope="row">${name || html`<span class="soft">not named</span>`}</th>
      <td class="number" data-label="GPU hours held">${spellHours(each.heldSeconds / HOUR_S)}</td>
      <td class="number" data-label="GPU hours used">${spellHours(each.usedSeconds / HOUR_S)}</td>
      <td class="wide">${each.heldSeconds ? html`<${Meter} used=${each.usedSeconds} whole=${each.heldSeconds} label=${`${Math.round(each.percent)} % busy`} />` : null}</td>
      <td class="number" data-label="Busy">${each.percent === null ? dash() : `${Math.round(each.percent)} %`}</td>`;
    return html`<table class="list usage" aria-label="Usage by GPU type"><thead><tr><th>GPU type</th><th class="number">GPU hours held</th>
      <th class="number">GPU hours used</th><th>Used of those held</th><th class="number">Busy</th></tr></thead>
      <tbody>${items.map((each) => html`<tr key=${each.by.gpuType}>${row(each.by.gpuType, each)}</tr>`)}</tbody>
      <tfoot><tr>${row("All", found.total)}</tr></tfoot></table>`;
  }}<//>`;
}

function Sums({ by, found, used }) {
  const usedBy = new Map(used?.items.map((each) => [each.by[by], each]) ?? []);
  // Days are sorted with the newest first; other rows by their usage.
  const items = [...found.items].sort((a, b) => by === "day" ? (a.by.day < b.by.day ? 1 : -1) : b.slotSeconds - a.slotSeconds || b.runningSeconds - a.runningSeconds);
  const most = Math.max(...items.map((row) => row.slotSeconds), 0);
  return html`<table class="list usage" aria-label=${`Usage by ${by}`}>
    <thead><tr><th>${BYS[by]}</th><th class="number">GPU hours</th>${used ? html`<th class="number" title="GPU hours, weighted by how busy the GPUs were, from Prometheus">Used</th>` : null}<th>Compared</th><th class="number">Share</th><th class="number">Running</th>
      <th class="number">Time run</th><th class="number">Admitted</th><th class="number">Mean wait</th><th class="number">Ended</th></tr></thead>
    <tbody>${items.map((row) => html`<tr key=${row.by[by]}>
      <th scope="row">${row.by[by] ? html`<a href=${inside(by, row.by[by])}>${row.by[by]}</a>` : html`<span class="soft">none</span>`}</th>
      <${Figures} row=${row} most=${most} whole=${found.total.slotSeconds} used=${used ? usedBy.get(row.by[by]) ?? null : undefined} /></tr>`)}</tbody>
    <tfoot><tr><th scope="row">All</th><${Figures} row=${found.total} most=${0} whole=${found.total.slotSeconds} used=${used?.total} /></tr></tfoot>
  </table>`;
}

// `used`: how busy the GPUs were; null when it is unknown for this row, undefined when there are no figures at all.
function Figures({ row, most, whole, used }) {
  const hours = row.slotSeconds / HOUR_S;
  const running = row.slotSecondsByPhase.Running ?? 0;
  return html`<td class="number" data-label="GPU hours">${spellHours(hours)}</td>
    ${used === undefined ? null : html`<td class="number" data-label="Used">${used?.heldSeconds ? html`${spellHours(used.usedSeconds / HOUR_S)} <small title="of the time that they were held">${Math.round(used.percent)} %</small>` : dash()}</td>`}
    <td class="wide">${most ? html`<${Meter} used=${row.slotSeconds} whole=${most} label=${plural(Number(trim(hours).replaceAll(",", "")), "GPU hour")} />` : null}</td>
    <td class="number" data-label="Share">${whole ? `${Math.round((100 * row.slotSeconds) / whole)} %` : dash()}</td>
    <td class="number" data-label="Running" title="part of the GPU hours in which the workload ran; the rest is pulling, starting and ending">${row.slotSeconds ? `${Math.round((100 * running) / row.slotSeconds)} %` : dash()}</td>
    <td class="number" data-label="Time run">${row.runningSeconds ? spellDuration(row.runningSeconds) : dash()}</td>
    <td class="number" data-label="Admitted">${row.admitted}</td>
    <td class="number" data-label="Mean wait" title="average wait before admission">${row.admitted ? spellDuration(row.waitedSeconds / row.admitted) : dash()}</td>
    <td class="number" data-label="Ended">${row.ended}</td>`;
}

function spellHours(hours) {
  if (!hours) return dash();
  return hours < 0.1 ? "< 0.1" : trim(hours);
}

// The address of a row's details: the days of a user, the users of a queue, the users of a day.
function inside(by, value) {
  const url = new URL(location_.value);
  if (by === "day") {
    url.searchParams.delete("days");
    url.searchParams.set("from", value);
    url.searchParams.set("to", value);
  } else url.searchParams.set(by, value);
  if (by === "user") url.searchParams.set("by", "day");
  else url.searchParams.delete("by");
  return `${url.pathname}${url.search}`;
}

function dayOf(ms) {
  return new Date(ms).toISOString().slice(0, 10);
}
