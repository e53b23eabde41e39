// `/queues`: the tree of queues with their quota and usage, and the waiting workloads of one queue, in order, with reasons.
import { AllocationTable, TABLE_FIELDS } from "./allocation_table.js";
import { allWaiting, Selection } from "./bulk.js";
import { Answered, Empty, Meter, Refused } from "./components.js";
import { facts } from "./facts.js";
import { amountOf, plural, spellDuration, spellExact, trim } from "./format.js";
import { mayChange } from "./permissions.js";
import { html, useEffect, useSignal } from "./runtime.js";
import { useResource } from "./store.js";
import { WaitingList } from "./waiting_list.js";

const TYPED_MS = 150;

export function Queues({ name }) {
  const queues = useResource("/queues");
  const stats = useResource("/queue-stats?days=false", { isSlow: true, isAside: true });
  const pools = useResource("/pools", { isSlow: true, isAside: true });
  return html`<div class="head"><h1 tabindex="-1">Queues</h1></div>
    <${Answered} answer=${queues} what="queues" rows=${4}>${(found) => {
      if (!found.items.length) {
        return html`<${Empty} title="There are no queues">An administrator creates one with <code>kubectl apply</code>.<//>`;
      }
      const rows = treeOf(found.items);
      const busiest = [...rows].sort((a, b) => b.queue.pending - a.queue.pending)[0].queue.name;
      const chosen = name || busiest;
      return html`<${Tree} rows=${rows} chosen=${chosen} stats=${stats.data?.queues ?? []} pools=${pools.data?.items ?? []} /><${Waiting} key=${chosen} name=${chosen} queues=${found.items} />`;
    }}<//>`;
}

/**
 * Queues in the order of their tree. Each has its depth and quota, and the usage of it and all queues below it.
 * @param {any[]} queues
 * @returns {{queue: any, depth: number, used: number, nominal: number, limit: number, share: number, pending: number,
 *   live: number}[]}
 */
export function treeOf(queues) {
  const names = new Set(queues.map((queue) => queue.name));
  const below = new Map();
  for (const queue of queues) {
    const parent = names.has(queue.spec.parent) ? queue.spec.parent : "";
    const key = parent || `\n${queue.pool}`;
    below.set(key, [...(below.get(key) ?? []), queue]);
  }
  const rows = [];
  const walk = (siblings, depth, seen) => {
    const weights = siblings.reduce((sum, queue) => sum + (queue.spec.weight ?? 1), 0);
    let used = 0;
    let pending = 0;
    let live = 0;
    for (const queue of siblings) {
      if (seen.has(queue.name)) continue;
      const row = { queue, depth, nominal: gpusIn(queue.spec.nominal), limit: gpusIn(queue.spec.limit),
        share: (queue.spec.weight ?? 1) / weights, used: 0, pending: 0, live: 0 };
      rows.push(row);
      const inner = walk(below.get(queue.name) ?? [], depth + 1, new Set([...seen, queue.name]));
      row.used = queue.slotsInUse + inner.used;
      row.pending = queue.pending + inner.pending;
      row.live = queue.live + inner.live;
      used += row.used;
      pending += row.pending;
      live += row.live;
    }
    return { used, pending, live };
  };
  for (const key of [...below.keys()].filter((each) => each.startsWith("\n")).sort()) walk(below.get(key), 0, new Set());
  return rows;
}

function gpusIn(quantities) {
  return facts.gpuNames.reduce((sum, name) => sum + amountOf(quantities?.[name]), 0);
}

function Tree({ rows, chosen, stats, pools }) {
  const ownOldest = ({ queue }) => stats.find((each) => each.queue === queue.name && each.pool === queue.pool)?.oldestS ?? 0;
  const oldestOf = (row) => {
    const next = rows.findIndex((each, index) => index > rows.indexOf(row) && each.depth <= row.depth);
    return Math.max(...rows.slice(rows.indexOf(row), next < 0 ? undefined : next).map(ownOldest));
  };
  const wholeOf = (queue) => pools.find((pool) => pool.name === queue.pool)?.gpus ?? 0;
  return html`<table class="list tree" aria-label="Queues">
    <thead><tr><th>Queue</th><th>Pool</th><th>GPUs in use</th><th class="number">Used</th><th class="number">Nominal</th>
      <th class="number">Borrowed</th><th class="number">Share</th><th class="number">Running</th><th class="number">Waiting</th><th>Oldest waits</th></tr></thead>
    <tbody>${rows.map((row) => {
      const { queue } = row;
      const bound = row.nominal || row.limit;
      const whole = wholeOf(queue);
      const label = `${row.used} of the ${plural(whole, "GPU")} of pool ${queue.pool} in use${bound ? `; nominal ${bound}` : ""}`;
      return html`<tr key=${`${queue.pool}/${queue.name}`} class=${queue.name === chosen ? "chosen" : ""}>
        <th scope="row"><span class="depth-${Math.min(row.depth, 6)}"></span><a href=${`/queues/${encodeURIComponent(queue.name)}`}
          aria-current=${queue.name === chosen ? "true" : undefined}>${queue.name}</a></th>
        <td data-label="Pool">${queue.pool}</td>
        <td class="wide"><${Meter} used=${row.used} whole=${whole} mark=${row.nominal} label=${label} /></td>
        <td class="number" data-label="Used">${row.used}</td>
        <td class="number" data-label="Nominal">${row.nominal ? trim(row.nominal) : html`<span class="soft">–</span>`}</td>
        <td class="number" data-label="Borrowed" title="GPUs in use beyond the nominal quota">${row.nominal ? trim(Math.max(0, row.used - row.nominal)) : html`<span class="soft">–</span>`}</td>
        <td class="number" data-label="Share" title=${`weight ${queue.spec.weight ?? 1} among its neighbours`}>${Math.round(row.share * 100)} %</td>
        <td class="number" data-label="Running">${row.live}</td>
        <td class="number" data-label="Waiting">${row.pending}</td>
        <td data-label="Oldest">${oldestOf(row) ? spellDuration(Math.floor(oldestOf(row))) : html`<span class="soft">–</span>`}</td>
      </tr>`;
    })}</tbody></table>`;
}

function Waiting({ name, queues }) {
  /** @type {import("@preact/signals").Signal<Map<string, any>>} */
  const selected = useSignal(new Map());
  const filter = useSignal("");
  const words = useSignal("");
  const list = useSignal({ count: 0, items: [], reload: () => undefined });
  const isGathering = useSignal(false);
  const error = useSignal(null);
  useEffect(() => {
    const timer = setTimeout(() => (words.value = filter.value), filter.value ? TYPED_MS : 0);
    return () => clearTimeout(timer);
  }, [filter.value]);
  const answer = useResource(`/queues/${encodeURIComponent(name)}?waiting=false`);
  const running = useResource(`/allocations?active=true&phase=${facts.phases.slice(1, -1).join(",")}&queue=${encodeURIComponent(name)}&sort=startedAt&limit=50&fields=${TABLE_FIELDS}`);
  const select = (each, isIn) => {
    const next = new Map(selected.value);
    if (isIn) next.set(each.id, each);
    else next.delete(each.id);
    selected.value = next;
  };
  const selectAll = async () => {
    isGathering.value = true;
    error.value = null;
    try {
      const found = await allWaiting(name, filter.value);
      selected.value = new Map(found.filter(mayChange).map((each) => [each.id, each]));
    } catch (refusal) {
      error.value = refusal;
    }
    isGathering.value = false;
  };
  const { count, items, reload } = list.value;
  return html`<${Answered} answer=${answer} what=${`queue ${name}`} rows=${4}>${(queue) => html`
    ${queue.flavors?.length ? html`<${Flavors} name=${name} flavors=${queue.flavors} />` : null}
    <${Promises} queue=${queue} />
    ${queue.windows?.length ? html`<${Windows} pool=${queue.pool} windows=${queue.windows} />` : null}
    ${queue.fairShare ? html`<${FairShare} name=${queue.name} share=${queue.fairShare} />` : null}
    <section><h2>Waiting in ${name} <small>${queue.pending.toLocaleString("en")}</small></h2>
      ${queue.pending > 1 || filter.value ? html`<div class="bar"><input type="search" placeholder="Filter by name, user or reason"
        aria-label="Filter waiting workloads" value=${filter.value} maxlength="200" onInput=${(event) => (filter.value = event.target.value)} />
        ${count && items.some(mayChange) ? html`<button type="button" disabled=${isGathering.value || words.value !== filter.value}
          onClick=${selectAll}>Select ${words.value.trim() ? `these ${count.toLocaleString("en")}` : "all"}</button>` : null}
        ${words.value.trim() ? html`<span class="soft" role="status">${count.toLocaleString("en")} of ${queue.pending.toLocaleString("en")}</span>` : null}</div>` : null}
      ${error.value ? html`<${Refused} error=${error.value} />` : null}
      <${Selection} name=${name} selected=${selected} queues=${queues} reload=${reload} />
      <${WaitingList} key=${words.value} name=${name} words=${words.value} selected=${selected.value} onSelect=${select}
        onAnswer=${(found, again) => (list.value = { count: found.count, items: found.items, reload: again })} />
    </section>
    ${running.data?.items.length ? html`<section><h2>Running from ${name} <small>${running.data.items.length}${running.data.metadata.continue ? "+" : ""}</small></h2>
      <${AllocationTable} items=${running.data.items} hasUser=${true} label=${`Running from ${name}`} /></section>` : null}`}<//>`;
}

// How the work of the queue is protected from eviction by other work.
function Promises({ queue }) {
  const limits = queue.evictionLimits ?? [];
  if (!queue.minRuntime && !limits.length) return null;
  return html`<section class="promises" aria-label=${`Evictions from ${queue.name}`}><h2>Evictions from ${queue.name}</h2>
    ${queue.minRuntime ? html`<p>A workload runs for at least ${queue.minRuntime} before it may be evicted for other workloads.</p>` : null}
    ${limits.map((each) => html`<p key=${each.of}>${each.of ? html`Queue <b>${each.of}</b>` : html`Pool <b>${queue.pool}</b>`} allows
      ${` ${each.count} per ${each.per}, ${each.burst} at once: `}<b>${each.left} left now</b>${each.nextAt ? html`, one more at <time datetime=${each.nextAt}>${spellExact(each.nextAt)}</time>` : null}.</p>`)}
    </section>`;
}

// The times in which nodes of the pool are reserved, for some queues or for maintenance.
function Windows({ pool, windows }) {
  const nodesOf = (each) => each.gpus !== null ? `${plural(each.gpus, "GPU")} of ${plural(each.matching, "node")}`
    : each.nodes !== null ? `${each.nodes} of ${plural(each.matching, "node")}` : plural(each.matching, "node");
  const time = (at) => at ? html`<time datetime=${at}>${spellExact(at)}</time>` : html`<span class="soft">–</span>`;
  return html`<section><h2>Windows of pool ${pool}</h2>
    <table class="list" aria-label=${`Windows of pool ${pool}`}>
      <thead><tr><th>Window</th><th>For</th><th>Nodes</th><th>From</th><th>Until</th><th>Repeats</th></tr></thead>
      <tbody>${windows.map((each) => html`<tr key=${each.name}>
        <th scope="row">${each.name}${each.isBegun ? html` <b>now</b>` : null}${each.notes.map((note) => html`<p class="soft" key=${note}>${note}</p>`)}</th>
        <td data-label="For">${each.queues.length ? `queue ${each.queues.join(", ")}` : "maintenance"}</td>
        <td data-label="Nodes">${nodesOf(each)}</td>
        <td data-label="From">${time(each.start)}</td>
        <td data-label="Until">${time(each.end)}</td>
        <td data-label="Repeats">${each.every ? `${each.every} (${each.timeZone})` : "once"}</td>
      </tr>`)}</tbody></table></section>`;
}

// The past usage of the queue, its siblings and its users, if the pool considers past usage.
function FairShare({ name, share }) {
  return html`<section><h2>Past use of ${name}</h2>
    <p>Usage loses half of its weight in ${share.halfLife}. At equal priority, the queue or user with less usage by weight goes first.</p>
    <table class="list" aria-label=${`Past use of ${name} and its siblings`}>
      <thead><tr><th>Queue</th><th class="number">GPU-hours</th><th class="number">Used</th><th class="number">Weight</th></tr></thead>
      <tbody>${share.queues.map((each) => html`<tr key=${each.name}>
        <th scope="row">${each.name}</th>
        <td class="number" data-label="GPU-hours">${trim(each.gpuHours)}</td>
        <td class="number" data-label="Used">${trim(each.usedPercent)} %</td>
        <td class="number" data-label="Weight">${trim(each.weightPercent)} %</td></tr>`)}</tbody>
    </table>
    ${share.users.length ? html`<table class="list" aria-label=${`Past use of the users of ${name}`}>
      <thead><tr><th>User</th><th class="number">GPU-hours</th></tr></thead>
      <tbody>${share.users.map((each) => html`<tr key=${each.user}>
        <th scope="row">${each.user}</th><td class="number" data-label="GPU-hours">${trim(each.gpuHours)}</td></tr>`)}</tbody>
    </table>` : null}</section>`;
}

function Flavors({ name, flavors }) {
  return html`<section><h2>Flavors of ${name}</h2>
    <table class="list" aria-label=${`Flavors of ${name}`}>
      <thead><tr><th>Flavor</th><th class="number">GPUs used</th><th class="number">GPUs owned</th></tr></thead>
      <tbody>${flavors.map((each) => html`<tr key=${each.name}>
        <th scope="row">${each.name}</th>
        <td class="number" data-label="GPUs used">${trim(each.gpusInUse)}</td>
        <td class="number" data-label="GPUs owned">${each.nominal === null ? html`<span class="soft">–</span>` : trim(each.nominal)}</td>
      </tr>`)}</tbody></table></section>`;
}
