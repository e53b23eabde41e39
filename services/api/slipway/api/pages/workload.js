// `/w/{id}`: one allocation: its state and the reason, its ranks, their log, its events and usage.
import { apiPathOf, gpusOf, hasEnded, rankCount, spaced } from "./allocation.js";
import { plainText } from "./ansi.js";
import { Ago, Answered, Copy, Empty, Failure, Lasted, Loading, Meter, State, Tabs } from "./components.js";
import { Explanation } from "./explanation.js";
import { facts, toneOf } from "./facts.js";
import { plural, sentence, spellClock, spellDuration, spellExact, trim } from "./format.js";
import { UseOf } from "./gpu_use.js";
import { pageOfJob } from "./jobs.js";
import { LogBook } from "./log_book.js";
import { LogView } from "./log_view.js";
import { mayChange } from "./permissions.js";
import { param, setParam } from "./router.js";
import { html, useEffect, useMemo, useSignal } from "./runtime.js";
import { now, useResource } from "./store.js";
import { Terminal } from "./terminal.js";
import { WorkloadActions } from "./workload_actions.js";
import { toYaml } from "./yaml.js";

const RANKS_SHOWN = 256;
const LAST_WORDS = 12;
const HOUR_S = 3600;
const DAY_MS = 86400000;
/** The most days of usage that one call reads. */
const USAGE_DAYS_MAX = 399;
const [WAITS] = facts.phases;

/** @param {{id: string}} props an id, the unique beginning of an id, or a name */
export function Workload({ id }) {
  const answer = useResource(apiPathOf(id), { isAbout: (event) => isAbout(event, id) });
  if (!answer.data && answer.error?.status === 404) return html`<${ArchivedLog} id=${id} gone=${answer.error} />`;
  return html`<${Answered} answer=${answer} what="this workload" rows=${6} isPage=${true}>${(view) => html`
    <${Story} key=${view.id} view=${view} reload=${answer.reload} />`}<//>`;
}

/** The page of a deleted workload: its archived log, if there is one; else an error. */
function ArchivedLog({ id, gone }) {
  const path = `${apiPathOf(id)}/logs`;
  const end = useResource(`${path}?tail=1000&follow=false`, { isAbout: () => false });
  const book = useMemo(() => new LogBook(path, () => true), [path]);
  useEffect(() => {
    if (!end.data) return undefined;
    book.start();
    return () => book.close();
  }, [book, end.data === null]);
  if (!end.data && !end.error) return html`<${Loading} rows=${6} label="Looking for its archived log" />`;
  if (!end.data) return html`<${Failure} error=${gone} what="this workload" isPage=${true} />`;
  const ranks = 1 + Math.max(0, ...end.data.items.map((line) => line.rank));
  return html`<div class="head workload"><h1 tabindex="-1">${id}</h1></div>
    <p class="soft">This workload was deleted. Its log is archived.</p>
    <${LogView} book=${book} ranks=${ranks} containers=${[]} container="" onContainer=${() => {}} rawHref=${`/api/v1${path}`} />`;
}

function isAbout(event, id) {
  return event.subject === id || event.subject.startsWith(id);
}

function Story({ view, reload }) {
  const path = apiPathOf(view.id);
  const own = { isAbout: (event) => event.subject === view.id };
  const timeline = useResource(`${path}/timeline`, own);
  const container = useSignal("");
  const ended = hasEnded(view);
  const live = useMemo(() => ({ hasEnded: ended }), []);
  live.hasEnded = ended;
  const book = useMemo(() => new LogBook(`${path}/logs${container.value ? `?container=${encodeURIComponent(container.value)}` : ""}`, () => live.hasEnded), [container.value]);
  useEffect(() => {
    book.start();
    return () => book.close();
  }, [book]);
  const waits = view.phase === WAITS;
  const tab = param("tab") || (waits ? "events" : "log");
  const containers = containersOf(view);
  const hasTerminal = mayChange(view) && view.phase === "Running";
  const isOpened = useSignal(false);
  const tabs = [
    { id: "log", label: "Log" },
    { id: "ranks", label: "Ranks", count: rankCount(view) },
    { id: "events", label: "Events" },
    { id: "usage", label: "Usage" },
    ...(hasTerminal || isOpened.value ? [{ id: "terminal", label: "Terminal" }] : []),
    { id: "yaml", label: "YAML" },
  ];
  return html`<div class="head workload">
      <div><h1 tabindex="-1">${view.name} <${State} word=${view.state} /></h1>
        <p class="soft about"><span>${view.kind}</span><span>of ${view.user}</span>
          <span>in <a href=${`/queues/${encodeURIComponent(view.queue)}`}>${view.queue}</a></span>
          ${view.job ? html`<span>in job <a href=${pageOfJob({ name: view.job, workspace: view.workspace })}>${view.job}</a></span>` : null}
          ${rankCount(view) > 1 ? html`<span>${plural(rankCount(view), "rank")}</span>` : null}
          ${gpusOf(view) ? html`<span>${plural(gpusOf(view), "GPU")}${view.status.admission?.flavor ? ` of type ${view.status.admission.flavor}` : ""}</span>` : null}
          ${view.phase === "Running" && gpusOf(view) ? html`<${UseOf} id=${view.id} />` : null}
          ${view.links.service ? html`<span>behind <code>${view.links.service}</code> <${Copy} text=${view.links.service} what="the address of the Service" /></span>` : null}
          <span>launched <${Ago} time=${view.createdAt} /></span>
          <span class="id"><code>${view.id}</code> <${Copy} text=${view.id} what="the id" /></span></p>
        ${view.links.outside?.length ? html`<p class="soft about">${view.links.outside.map((link) => html`<a href=${link.url} target="_blank" rel="noopener noreferrer">${link.title}</a>`)}</p>` : null}</div>
      <${WorkloadActions} view=${view} reload=${reload} />
    </div>
    ${toneOf(view.state) === "bad" ? html`<${Cause} view=${view} book=${book} />` : null}
    ${waits ? html`<section class="card notice tone-waits" aria-label="Why it waits"><h2>Why it waits</h2><${Explanation} id=${view.id} workspace=${view.workspace} /></section>` : null}
    ${!waits && !ended ? html`<${Standing} view=${view} />` : null}
    <${Stepper} view=${view} timeline=${timeline} />
    <${Tabs} tabs=${tabs} chosen=${tab} onChoose=${(value) => setParam("tab", value)} />
    <div id="tab-panel" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
      ${tab === "log" ? html`<${LogView} book=${book} ranks=${rankCount(view)} containers=${containers} container=${container.value || containers[0]}
        onContainer=${(name) => (container.value = name === containers[0] ? "" : name)} rawHref=${`/api/v1${path}/logs`}
        outsideHref=${view.links.outsideLogs} />` : null}
      ${tab === "ranks" ? html`<${Ranks} view=${view} book=${book} />` : null}
      ${tab === "events" ? html`<${Events} view=${view} />` : null}
      ${tab === "usage" ? html`<${UsageOfOne} view=${view} />` : null}
      ${tab === "yaml" ? html`<${Yaml} view=${view} />` : null}
      ${tab === "terminal" && !isOpened.value ? html`<${NoTerminal} view=${view} isPossible=${hasTerminal} onOpen=${() => (isOpened.value = true)} />` : null}
      ${isOpened.value ? html`<${Terminal} key=${view.attempt} view=${view} containers=${containers} isShown=${tab === "terminal"} />` : null}
    </div>`;
}

// The tab alone opens no shell: a user may reach the tab just with the arrow keys, so a button must be pressed.
function NoTerminal({ view, isPossible, onOpen }) {
  if (!mayChange(view)) return html`<${Empty} title="No terminal">A terminal requires the permission to change the workload.<//>`;
  if (!isPossible) return html`<${Empty} title="No terminal">A terminal can be opened only in a running rank.<//>`;
  return html`<${Empty} title="A shell in a rank">It runs in a container of the workload. What you stop or change there affects the workload.
    <p><button type="button" class="primary" onClick=${onOpen}>Open a shell</button></p><//>`;
}

// The names of the containers, the main one first; init containers and sidecars have logs of their own.
function containersOf(view) {
  const spec = view.spec.template?.spec ?? {};
  const names = [...(spec.containers ?? []), ...(spec.initContainers ?? [])].map((each) => each.name);
  const main = names.includes("main") ? "main" : names[0] ?? "main";
  return [main, ...names.filter((name) => name !== main)];
}

function Cause({ view, book }) {
  book.version.value;
  const ranks = view.status.ranks ?? [];
  const first = ranks.findIndex((rank) => rank.phase === "Failed");
  const words = first < 0 ? [] : book.lines.filter((line) => line.rank === first && !line.missing).slice(-LAST_WORDS);
  return html`<section class="card notice tone-bad" aria-label="Cause" role="status">
    <h2>${view.reason ? sentence(spaced(view.reason)) : view.state}</h2>
    <p>${sentence(view.message)}${view.message ? "." : ""}</p>
    ${words.length ? html`<p class="soft">Its last output:</p><pre class="words">${words.map((line) => `${plainText(line.text)}\n`)}</pre>`
      : book.state.value === "loading" ? html`<${Loading} rows=${2} label="Loading its last output" />` : null}
  </section>`;
}

function Standing({ view }) {
  const answer = useResource(`${apiPathOf(view.id)}/explain`, { isAbout: (event) => event.subject === view.id, isSlow: true });
  const found = answer.data;
  if (!found) return null;
  const isCalm = view.phase === "Running" && !found.change.length && !found.deadlines.length;
  if (isCalm) return null;
  return html`<p class="standing">${sentence(found.message)}.
    ${found.deadlines.map((each) => html` <span class="soft">${each.at ? html`Ends <${Ago} time=${each.at} />: ${each.detail}` : sentence(each.detail)}.</span>`)}
    ${found.change.map((change) => html` ${sentence(change.detail)}.`)}</p>`;
}

function Stepper({ view, timeline }) {
  const spans = timeline.data?.spans ?? [];
  const attempts = [...new Set(spans.map((span) => span.attempt))];
  const attempt = attempts.at(-1) ?? view.attempt;
  const current = spans.filter((span) => span.attempt === attempt);
  const at = facts.phases.indexOf(view.phase);
  const last = facts.phases.length - 1;
  return html`<ol class="stepper" aria-label="Phases">
    ${facts.phases.map((phase, index) => {
      const span = current.find((each) => each.phase === phase);
      const isNow = index === at && !hasEnded(view);
      const isPast = Boolean(span) || (index === last && hasEnded(view));
      const word = index === last && hasEnded(view) ? view.state : phase;
      const tone = isNow || index === last ? toneOf(word) : "";
      const seconds = span ? (span.to ? span.seconds : (now.value - Date.parse(span.from)) / 1000) : null;
      return html`<li key=${phase} class="${isNow ? "now" : isPast ? "past" : "ahead"} ${(isNow || isPast) && tone ? `tone-${tone}` : ""}"
        aria-current=${isNow ? "step" : undefined}><span>${word}</span>
        <small title=${span ? spellExact(span.from) : undefined}>${seconds === null ? (index === last && hasEnded(view) ? html`<${Ago} time=${view.endedAt} />` : " ") : spellDuration(isNow ? Math.max(0, Math.floor(seconds)) : seconds)}</small></li>`;
    })}
  </ol>
  ${attempts.length > 1 ? html`<p class="soft">Attempt ${attempt}. Before it: ${attempts.slice(0, -1).map((each) => {
      const mine = spans.filter((span) => span.attempt === each);
      const whole = mine.reduce((sum, span) => sum + span.seconds, 0);
      const why = mine.findLast((span) => span.reason)?.reason;
      return html`<span class="attempt">attempt ${each}, ${spellDuration(whole)}${why ? `, ${spaced(why)}` : ""}</span>`;
    })}</p>` : null}`;
}

function Ranks({ view, book }) {
  const pods = useResource(`${apiPathOf(view.id)}/pods`, { isAbout: (event) => event.subject === view.id, isSlow: true });
  book.version.value;
  const most = useSignal(RANKS_SHOWN);
  const rows = ranksOf(view, pods.data?.items ?? []);
  if (!rows.some((row) => row.node)) {
    return html`<${Empty} title=${view.phase === WAITS ? "No rank has a node yet" : "Its ranks are not known"}>${plural(rows.length, "rank")} ${rows.length === 1 ? "starts" : "start together"}, or not at all.<//>`;
  }
  return html`<table class="list ranks" aria-label="Ranks">
    <thead><tr><th class="number">Rank</th><th>State</th><th>Node</th><th class="number">GPUs</th><th class="number">Restarts</th>${rows.length > 1 ? html`<th title="Whether the other ranks can reach it: it has an address">Rendezvous</th>` : null}<th>Started</th><th>Last line</th></tr></thead>
    <tbody>${rows.slice(0, most.value).map((row) => {
      const line = book.lastOf.get(row.rank);
      const text = line ? plainText(line.text) : "";
      return html`<tr key=${row.rank}>
        <th scope="row" class="number place" data-label="Rank"><span class="rank c${row.rank % 10}">${row.rank}</span>${row.role && row.hasRoles ? html` <small>${row.role}</small>` : null}</th>
        <td><${State} word=${row.state} of="rankStates" />${row.exitCode ? html` <small>exit code ${row.exitCode}</small>` : null}</td>
        <td data-label="Node">${row.node}</td>
        <td class="number" data-label="GPUs">${row.devices === null ? html`<span class="soft">–</span>` : row.devices}</td>
        <td class="number" data-label="Restarts">${view.attempt - 1}</td>
        ${rows.length > 1 ? html`<td data-label="Rendezvous" title=${row.address}>${row.address ? "arrived" : html`<span class="soft">not yet</span>`}</td>` : null}
        <td data-label="Started"><${Ago} time=${row.startedAt} /></td>
        <td class="note mono" title=${row.message || text}>${row.message || text || html`<span class="soft">nothing yet</span>`}</td></tr>`;
    })}</tbody></table>
    ${rows.length > most.value ? html`<p><button onClick=${() => (most.value += RANKS_SHOWN)}>Show ${Math.min(RANKS_SHOWN, rows.length - most.value)} of ${rows.length - most.value} more</button></p>` : null}`;
}

// The usage of the workload so far, as it is counted for its user and its queue.
function UsageOfOne({ view }) {
  const created = view.createdAt.slice(0, 10);
  const from = Date.now() - Date.parse(created) > USAGE_DAYS_MAX * DAY_MS ? new Date(Date.now() - USAGE_DAYS_MAX * DAY_MS).toISOString().slice(0, 10) : created;
  const query = new URLSearchParams({ id: view.id, workspace: view.workspace, from });
  const answer = useResource(`/usage/raw?${query}`, { isAbout: (event) => event.subject === view.id, isSlow: true });
  return html`<${Answered} answer=${answer} what="its usage" rows=${4}>${({ items: [row] }) => {
    if (!row) return html`<${Empty} title="No usage yet">Usage is counted from its first phase on.<//>`;
    const phases = facts.phases.filter((phase) => row.seconds[phase]);
    return html`<section aria-label="Usage"><dl class="pairs">
        <dt>GPU hours</dt><dd>${trim(row.slotSeconds / HOUR_S)}</dd>
        <dt>Waited before it was admitted</dt><dd>${spellDuration(row.waitedSeconds)}</dd>
        <dt>Ran</dt><dd>${spellDuration(row.runningSeconds)}</dd>
        <dt>Attempts</dt><dd>${row.attempts}</dd></dl>
      ${phases.length ? html`<table class="list usage" aria-label="Time in each phase"><thead><tr><th>Phase</th><th class="number">Time</th><th>Compared</th></tr></thead>
        <tbody>${phases.map((phase) => html`<tr key=${phase}><td><${State} word=${phase} /></td><td class="number" data-label="Time">${spellDuration(row.seconds[phase])}</td>
          <td class="wide"><${Meter} used=${row.seconds[phase]} whole=${Math.max(...Object.values(row.seconds))} label=${spellDuration(row.seconds[phase])} /></td></tr>`)}</tbody></table>` : null}
      <p class="soft">All attempts together, from ${from} on. GPU hours are counted from the moment that it gets its GPUs until it releases them.
        <a href=${`/usage?by=day&user=${encodeURIComponent(view.user)}`}>The usage of ${view.user}</a></p></section>`;
  }}<//>`;
}

function ranksOf(view, pods) {
  const placed = view.status.admission?.attempt === view.attempt ? view.status.admission.placements ?? [] : [];
  const seen = view.status.ranks ?? [];
  const byRank = new Map(pods.filter((pod) => pod.attempt === view.attempt).map((pod) => [pod.rank, pod]));
  const hasRoles = (view.spec.ranks ?? []).length > 1;
  return Array.from({ length: rankCount(view) }, (_, rank) => {
    const place = placed.find((each) => each.rank === rank) ?? {};
    const known = seen[rank] ?? {};
    const pod = byRank.get(rank);
    const state = known.phase ?? (place.node ? "Bound" : "Pending");
    const message = pod && !pod.ready && !hasEnded(view) ? [pod.reason, pod.message].filter(Boolean).join(": ") : "";
    return { rank, hasRoles, role: place.role ?? "", node: known.node ?? place.node ?? "", state, message, address: pod?.ip ?? "",
      devices: place.device?.length ?? null, exitCode: known.exitCode ?? 0, startedAt: pod?.startedAt ?? (known.phase ? view.startedAt : null) };
  });
}

function Events({ view }) {
  const answer = useResource(`${apiPathOf(view.id)}/events?follow=false`, { isAbout: (event) => event.subject === view.id });
  return html`<${Answered} answer=${answer} what="its events" rows=${4}>${({ items }) => html`<table class="list events" aria-label="Events">
    <thead><tr><th>Time</th><th>Event</th><th class="number">Attempt</th><th>Phase</th><th>Details</th></tr></thead>
    <tbody>${items.map((event) => html`<tr key=${event.id}>
      <td><time title=${spellExact(event.time)}>${spellClock(event.time)}</time> <small><${Ago} time=${event.time} /></small></td>
      <th scope="row">${sentence(event.type.split(".").at(-1))}</th>
      <td class="number" data-label="Attempt">${event.data.attempt}</td>
      <td data-label="Phase"><${State} word=${event.data.phase} /></td>
      <td class="note">${detailOf(event.data)}</td></tr>`)}</tbody></table>`}<//>`;
}

const TOLD = new Set(["attempt", "phase", "seq", "uid", "createdMs", "reason", "decision", "kind", "pool", "user"]);

function detailOf(data) {
  const parts = Object.entries(data).filter(([key]) => !TOLD.has(key)).map(([key, value]) => `${spaced(key)} ${typeof value === "object"
    ? Object.entries(value).map(([name, each]) => `${name} (${each})`).join(", ") : value}`);
  return [data.reason && sentence(spaced(data.reason)), ...parts].filter(Boolean).join(" · ");
}

function Yaml({ view }) {
  const hasStatus = useSignal(false);
  const object = { apiVersion: "slipway.dev/v1alpha1", kind: "Allocation",
    metadata: { name: view.name, namespace: view.workspace, ...(Object.keys(view.labels).length ? { labels: view.labels } : {}) },
    spec: view.spec, ...(hasStatus.value ? { status: view.status } : {}) };
  const text = toYaml(object);
  return html`<section class="yaml"><div class="bar">
      <label><input type="checkbox" checked=${hasStatus.value} onChange=${(event) => (hasStatus.value = event.target.checked)} /> With its status</label>
      <${Copy} text=${text} label="Copy" what="the YAML" /></div>
    <pre tabindex="0" aria-label="The allocation as YAML">${text}</pre></section>`;
}

