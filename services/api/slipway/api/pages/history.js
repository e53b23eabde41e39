// `/history`: the workloads at a time in the past, and what happened to them since.
import { pageOf, spaced } from "./allocation.js";
import { Ago, Answered, Empty, State } from "./components.js";
import { facts, toneOf } from "./facts.js";
import { plural, sentence, spellAgo, spellExact } from "./format.js";
import { param, setParam } from "./router.js";
import { html, useMemo, useSignal } from "./runtime.js";
import { now, useResource } from "./store.js";

/** @type {[string, number][]} */
const STEPS = [["−1 day", -86400], ["−1 h", -3600], ["−5 min", -300], ["+5 min", 300], ["+1 h", 3600], ["+1 day", 86400]];
const BEFORE_S = 3600;
const SHOWN = 500;
const MINUTE_MS = 60000;
const OVER = facts.phases.at(-1);

export function History() {
  // Without a time in the address, the page shows the time one hour before it was opened.
  const first = useMemo(() => format(Date.now() - BEFORE_S * 1000), []);
  const at = Number.isNaN(Date.parse(param("at"))) ? first : param("at");
  const filter = useSignal("");
  const most = useSignal(SHOWN);
  const queue = param("queue") ? `&queue=${encodeURIComponent(param("queue"))}` : "";
  const then = useResource(`/history?at=${encodeURIComponent(at)}${queue}`, { isAbout: () => false });
  const today = useResource(`/history?${queue.slice(1)}`, { isSlow: true });
  const goTo = (ms) => setParam("at", format(Math.min(ms, Date.now())));
  return html`<div class="head"><h1 tabindex="-1">History</h1><a class="button" href=${`/cluster?at=${encodeURIComponent(at)}`}>Map at this time</a></div>
    <div class="bar">
      <label>At <input type="datetime-local" step="60" value=${local(at)} max=${local(format(now.value))} onChange=${(event) => event.target.value && goTo(Date.parse(event.target.value))} /></label>
      <div class="choice steps" role="group" aria-label="Go to another time">${STEPS.map(([text, seconds]) => html`<button key=${text} type="button"
        disabled=${Date.parse(at) + seconds * 1000 > now.value} onClick=${() => goTo(Date.parse(at) + seconds * 1000)}>${text}</button>`)}</div>
      <input type="search" placeholder="Filter by name, user, queue or node" aria-label="Filter" value=${filter.value} onInput=${(event) => (filter.value = event.target.value)} />
      ${param("queue") ? html`<button type="button" class="filter" aria-label=${`Only queue ${param("queue")}: remove this filter`} onClick=${() => setParam("queue", "")}>queue <b>${param("queue")}</b> ×</button>` : null}
    </div>
    <${Answered} answer=${then} what="the history" rows=${5}>${(found) => html`<p class="soft">Workloads ${spellAgo(found.at, now.value)}: ${spellExact(found.at)}</p>
      ${found.lossy.map((text) => html`<p key=${text} class="warning">${sentence(text)}.</p>`)}
      <${Standing} items=${found.items} today=${today.data?.items} filter=${filter.value.toLowerCase()} most=${most} counts=${found.counts} />`}<//>`;
}

function Standing({ items, today, filter, most, counts }) {
  if (!items.length) return html`<${Empty} title="No workloads at that time">Go to another time. Workloads that were deleted long ago are no longer known.<//>`;
  const later = today && new Map(today.map((each) => [each.id, each]));
  const found = items.filter((each) => `${each.name} ${each.id} ${each.user} ${each.queue} ${each.phase} ${each.nodes.join(" ")}`.toLowerCase().includes(filter));
  const known = new Set(items.map((each) => each.id));
  const begun = today?.filter((each) => !known.has(each.id)).length;
  const ended = later && items.filter((each) => !later.has(each.id)).length;
  return html`<div class="cards"><section class="card counts" aria-label="Number of workloads in each phase">
      ${Object.entries(counts).map(([phase, count]) => html`<div key=${phase} class=${`tone-${toneOf(phase)}`}><b>${count}</b><span>${phase}</span></div>`)}</section>
    <section class="card counts" aria-label="Since then"><div><b>${ended ?? "–"}</b><span>Ended since</span></div><div><b>${begun ?? "–"}</b><span>Launched since, not deleted</span></div></section></div>
    <table class="list past" aria-label="Workloads at that time">
      <thead><tr><th>State</th><th>Name</th><th>User</th><th>Queue</th><th>Since</th><th>Now</th><th>Nodes</th></tr></thead>
      <tbody>${found.slice(0, most.value).map((each) => html`<tr key=${each.id}>
        <td><${State} word=${each.phase} /></td>
        <th scope="row" title=${each.name}><a href=${pageOf(each.id)}>${each.name}</a> <small>${each.kind}</small></th>
        <td data-label="User" title=${each.user}>${each.user || unknown()}</td>
        <td data-label="Queue">${each.queue ? html`<a class="plain" href=${`/queues/${encodeURIComponent(each.queue)}`}>${each.queue}</a>` : unknown()}</td>
        <td data-label="Since"><${Ago} time=${each.since} /></td>
        <td data-label="Now">${nowOf(each, later)}</td>
        <td class="note" title=${each.nodes.join(", ")}>${each.nodes.join(", ") || (each.reason ? sentence(spaced(each.reason)) : "")}</td></tr>`)}</tbody></table>
    ${found.length ? null : html`<p class="soft">No workload matches the filter.</p>`}
    ${found.length > most.value ? html`<p><button type="button" onClick=${() => (most.value += SHOWN)}>Show ${Math.min(SHOWN, found.length - most.value)} of ${plural(found.length - most.value, "more", "more")}</button></p>` : null}`;
}

function nowOf(each, later) {
  if (!later) return unknown();
  const found = later.get(each.id);
  if (!found) return html`<${State} word=${OVER} />`;
  return found.phase === each.phase && found.attempt === each.attempt ? html`<span class="soft">the same</span>` : html`<${State} word=${found.phase} />`;
}

function unknown() {
  return html`<span class="soft">–</span>`;
}

// RFC 3339 in UTC, to the second.
function format(ms) {
  return new Date(ms).toISOString().replace(/\.\d+Z$/, "Z");
}

// The format of the browser's input field: in the reader's own time zone, to the minute.
function local(at) {
  const ms = Date.parse(at);
  return new Date(ms - new Date(ms).getTimezoneOffset() * MINUTE_MS).toISOString().slice(0, 16);
}
