// `/queues`: the tree of queues with what each owns and uses, and who waits in one, in order, and why.
import { pageOf, spaced } from "./allocation.js";
import { AllocationTable } from "./allocation_table.js";
import { Selection } from "./bulk.js";
import { Answered, Empty, Lasted, Meter, More } from "./components.js";
import { Explanation } from "./explanation.js";
import { facts } from "./facts.js";
import { amountOf, finder, plural, spellDuration, spellExact, trim } from "./format.js";
import { mayChange } from "./permissions.js";
import { param, setParam } from "./router.js";
import { html, useMemo, useSignal } from "./runtime.js";
import { useResource } from "./store.js";

const FIRST = 25;
const SHOWN = 200;
const isCalled = finder((/** @type {any} */ each) => `${each.name} ${each.id} ${each.user} ${each.code}`);

export function Queues({ name }) {
  const queues = useResource("/queues");
  const stats = useResource("/queue-stats", { isSlow: true });
  const pools = useResource("/pools", { isSlow: true });
  return html`<div class="head"><h1 tabindex="-1">Queues</h1></div>
    <${Answered} answer=${queues} what="queues" rows=${4}>${(found) => {
      if (!found.items.length) {
        return html`<${Empty} title="There is no queue">An administrator makes one with <code>kubectl apply</code>.<//>`;
      }
      const rows = treeOf(found.items);
      const busiest = [...rows].sort((a, b) => b.queue.pending - a.queue.pending)[0].queue.name;
      const chosen = name || busiest;
      return html`<${Tree} rows=${rows} chosen=${chosen} stats=${stats.data?.queues ?? []} pools=${pools.data?.items ?? []} /><${Waiting} key=${chosen} name=${chosen} queues=${found.items} />`;
    }}<//>`;
}

/**
 * Queues in the order of their tree, each with its depth and what it and all below it use and own.
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
  const wholeOf = (queue) => gpusIn(pools.find((pool) => pool.name === queue.pool)?.allocatable);
  return html`<table class="list tree" aria-label="Queues">
    <thead><tr><th>Queue</th><th>Pool</th><th>GPUs in use</th><th class="number">Used</th><th class="number">Nominal</th>
      <th class="number">Share</th><th class="number">Running</th><th class="number">Waiting</th><th>Oldest waits</th></tr></thead>
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
        <td class="number" data-label="Share" title=${`weight ${queue.spec.weight ?? 1} among its neighbours`}>${Math.round(row.share * 100)} %</td>
        <td class="number" data-label="Running">${row.live}</td>
        <td class="number" data-label="Waiting">${row.pending}</td>
        <td data-label="Oldest">${oldestOf(row) ? spellDuration(Math.floor(oldestOf(row))) : html`<span class="soft">–</span>`}</td>
      </tr>`;
    })}</tbody></table>`;
}

function Waiting({ name, queues }) {
  const selected = useSignal(new Set());
  const filter = useSignal("");
  const most = useSignal(FIRST);
  const chosen = param("why");
  const search = (text) => {
    filter.value = text;
    most.value = FIRST;
  };
  const answer = useResource(`/queues/${encodeURIComponent(name)}`);
  const running = useResource(`/allocations?active=true&phase=${facts.phases.slice(1, -1).join(",")}&queue=${encodeURIComponent(name)}&sort=startedAt&limit=50`);
  return html`<${Answered} answer=${answer} what=${`queue ${name}`} rows=${4}>${(queue) => {
    const rows = withAhead(queue.waiting).filter(({ each }) => isCalled(each, filter.value));
    const found = rows.map(({ each }) => each);
    const select = (id, isIn) => (selected.value = new Set(isIn ? [...selected.value, id] : [...selected.value].filter((each) => each !== id)));
    return html`${queue.flavors?.length ? html`<${Flavors} name=${name} flavors=${queue.flavors} />` : null}
    <${Promises} queue=${queue} />
    <section><h2>Waiting in ${name} <small>${queue.waiting.length}</small></h2>
      ${queue.waiting.length > 1 ? html`<div class="bar"><input type="search" placeholder="Filter by name, user or reason"
        aria-label="Filter who waits" value=${filter.value} onInput=${(event) => search(event.target.value)} />
        ${found.some(mayChange) ? html`<button type="button" onClick=${() => (selected.value = new Set(found.filter(mayChange).map((each) => each.id)))}>Select ${filter.value ? `these ${found.filter(mayChange).length}` : "all"}</button>` : null}</div>` : null}
      <${Selection} name=${name} waiting=${queue.waiting} selected=${selected} queues=${queues} reload=${answer.reload} />
      ${queue.waiting.length ? html`<table class="list waiting" aria-label=${`Waiting in ${name}`}>
        <thead><tr><th class="place">Place</th><th class="of-name">Name</th><th class="of-user">User</th><th class="number">GPUs</th><th class="number ahead">GPUs ahead</th>
          <th class="number priority">Priority</th><th class="since">Waits</th><th>Why</th></tr></thead>
        <tbody>${rows.slice(0, most.value).map(({ each, slots }) => html`
          <${WaitingRow} key=${each.id} each=${each} slotsAhead=${slots} isOpen=${chosen === each.id}
            isSelected=${selected.value.has(each.id)} onSelect=${(isIn) => select(each.id, isIn)} />`)}</tbody></table>`
        : html`<${Empty} title="Nothing waits here">What is launched into this queue starts as soon as it fits.<//>`}
      ${found.length > most.value ? html`<${More} count=${found.length - most.value} by=${most.value < SHOWN ? FIRST : SHOWN} isByItself=${most.value < SHOWN}
        onMore=${() => (most.value += most.value < SHOWN ? FIRST : SHOWN)} />` : null}
    </section>
    ${running.data?.items.length ? html`<section><h2>Running from ${name} <small>${running.data.items.length}${running.data.metadata.continue ? "+" : ""}</small></h2>
      <${AllocationTable} items=${running.data.items} hasUser=${true} label=${`Running from ${name}`} /></section>` : null}`;
  }}<//>`;
}

// When work of the queue is left alone by other work.
function Promises({ queue }) {
  const limits = queue.evictionLimits ?? [];
  if (!queue.minRuntime && !limits.length) return null;
  return html`<section class="promises" aria-label=${`Evictions from ${queue.name}`}><h2>Evictions from ${queue.name}</h2>
    ${queue.minRuntime ? html`<p>Work runs for ${queue.minRuntime} before it makes room for other work.</p>` : null}
    ${limits.map((each) => html`<p key=${each.of}>${each.of ? html`Queue <b>${each.of}</b>` : html`Pool <b>${queue.pool}</b>`} allows
      ${` ${each.count} per ${each.per}, ${each.burst} at once: `}<b>${each.left} left now</b>${each.nextAt ? html`, one more at <time datetime=${each.nextAt}>${spellExact(each.nextAt)}</time>` : null}.</p>`)}
    </section>`;
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

// Each with the GPUs that those before it ask for.
function withAhead(waiting) {
  let slots = 0;
  return waiting.map((each) => {
    const row = { each, slots };
    slots += each.slots ?? 0;
    return row;
  });
}

// A row of which nothing has changed is not made again, however long the list is; its times go on by themselves.
function WaitingRow(props) {
  const { each, slotsAhead, isOpen, isSelected } = props;
  return useMemo(() => waitingRowOf(props), [each, slotsAhead, isOpen, isSelected, mayChange(each)]);
}

function waitingRowOf({ each, slotsAhead, isOpen, isSelected, onSelect }) {
  const toggle = () => setParam("why", isOpen ? "" : each.id);
  return html`<tr class="${isOpen ? "open" : ""} ${isSelected ? "chosen" : ""}">
      <td class="place" data-label="Place">${mayChange(each) ? html`<label><input type="checkbox" aria-label=${`${each.position}, select ${each.name}`} checked=${isSelected}
        onChange=${(event) => onSelect(event.target.checked)} />${each.position}</label>` : each.position}</td>
      <th scope="row" title=${each.name}><a href=${pageOf(each.id)}>${each.name}</a> <small>${each.kind}</small></th>
      <td data-label="User" title=${each.user}>${each.user}</td>
      <td class="number" data-label="GPUs">${each.slots || html`<span class="soft">–</span>`}</td>
      <td class="number" data-label="GPUs ahead" title="GPUs that those before it ask for">${slotsAhead}</td>
      <td class="number" data-label="Priority">${each.priority}</td>
      <td data-label="Waits"><${Lasted} from=${each.since} /></td>
      <td class="why"><button type="button" class="chip" aria-expanded=${String(isOpen)} onClick=${toggle}>${spaced(each.code)}</button>
        <span class="soft">${each.message}</span></td>
    </tr>
    ${isOpen ? html`<tr class="detail"><td colspan="8"><${Explanation} id=${each.id} workspace=${each.workspace} /></td></tr>` : null}`;
}
