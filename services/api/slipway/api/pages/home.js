// `/`: the viewer's running, waiting and failed workloads, the free GPUs, and the health of the cluster.
import { AllocationTable, TABLE_FIELDS } from "./allocation_table.js";
import { partsOf } from "./capacity.js";
import { Answered, Choice, Empty, Meter } from "./components.js";
import { facts, toneOf } from "./facts.js";
import { plural, spellDuration } from "./format.js";
import { IdleGpus } from "./gpu_use.js";
import { param, setParam } from "./router.js";
import { html, useSignal } from "./runtime.js";
import { me, useResource } from "./store.js";

const PAGE = 200;
const ENDED = 10;
const DAY_MS = 86400000;
const [WAITS] = facts.phases;
const OVER = facts.phases.at(-1);
const NODE_FIELDS = "name,pool,ready,schedulable,scheduling,gpuType,gpus,gpusUsed";
const hasEnded = (event) => event.data.phase === OVER;

export function Home() {
  const isAll = param("of") === "everyone";
  const filter = useSignal("");
  const user = me.value?.user;
  const of = isAll ? "" : `&user=${encodeURIComponent(user ?? "")}`;
  const ready = isAll || user !== undefined;
  const active = useResource(ready ? `/allocations?active=true&sort=-createdAt&limit=${PAGE}&fields=${TABLE_FIELDS}${of}` : "");
  const ended = useResource(ready ? `/allocations?phase=${OVER}&sort=-endedAt&limit=50&fields=${TABLE_FIELDS}${of}` : "", { isAbout: hasEnded });
  const nodes = useResource(`/nodes?fields=${NODE_FIELDS}`, { isSlow: true, isAside: true });
  const stats = useResource("/queue-stats?days=false", { isSlow: true, isAside: true });
  const has = (view) => `${view.name} ${view.id} ${view.user} ${view.queue} ${view.state}`.toLowerCase().includes(filter.value.toLowerCase());
  return html`<div class="head"><h1 tabindex="-1">${isAll ? "All workloads" : "Your workloads"}</h1>
      <a class="button primary" href="/launch">Launch</a></div>
    <${Health} nodes=${nodes} stats=${stats} />
    <div class="cards">
      <${Counts} active=${active} ended=${ended} />
      <${Free} nodes=${nodes} />
    </div>
    <div class="bar">
      <${Choice} label="Whose" options=${[["", "Mine"], ["everyone", "Everyone's"]]} chosen=${isAll ? "everyone" : ""}
        onChoose=${(value) => setParam("of", value)} />
      <input type="search" placeholder="Filter by name, user, queue or state" aria-label="Filter" value=${filter.value}
        onInput=${(event) => (filter.value = event.target.value)} />
    </div>
    <${Answered} answer=${active} what="workloads" rows=${5}>${(found) => {
      const items = found.items.filter(has);
      const running = items.filter((view) => view.phase !== WAITS);
      const waiting = items.filter((view) => view.phase === WAITS);
      if (!found.items.length && ended.data && !ended.data.items.length) {
        return html`<${Empty} title="Nothing has been launched yet">
          <a href="/launch">Launch something</a>, or run <code>slipway run -- echo hello</code> in a terminal.<//>`;
      }
      return html`
        <${Group} title="Running" items=${running} isAll=${isAll} none="Nothing runs." />
        <${Group} title="Waiting" items=${waiting} isAll=${isAll} none="Nothing waits." />
        ${found.metadata.continue ? html`<p class="soft">Only the ${PAGE} newest are shown here.
          <a href="/queues">The queues</a> list all waiting workloads.</p>` : null}`;
    }}<//>
    <${Answered} answer=${ended} what="workloads that have ended" rows=${3}>${(found) => html`
      <${Ended} items=${found.items.filter(has)} isAll=${isAll} />`}<//>`;
}

function Group({ title, items, isAll, none }) {
  return html`<section><h2>${title} <small>${items.length}</small></h2>
    ${items.length ? html`<${AllocationTable} items=${items} hasUser=${isAll} label=${title} />` : html`<p class="soft none">${none}</p>`}
  </section>`;
}

function Ended({ items, isAll }) {
  const isOpen = useSignal(false);
  const shown = isOpen.value ? items : items.slice(0, ENDED);
  return html`<section><h2>Ended <small>newest first</small></h2>
    ${items.length ? html`<${AllocationTable} items=${shown} hasUser=${isAll} label="Ended" />` : html`<p class="soft none">Nothing has ended.</p>`}
    ${items.length > shown.length ? html`<p><button onClick=${() => (isOpen.value = true)}>Show ${items.length - shown.length} more</button></p>` : null}
  </section>`;
}

function Counts({ active, ended }) {
  const items = active.data?.items;
  const since = Date.now() - DAY_MS;
  const failed = ended.data?.items.filter((view) => toneOf(view.state) === "bad" && Date.parse(view.endedAt) > since).length;
  const rows = [
    ["Running", items?.filter((view) => view.phase !== WAITS).length, "runs"],
    ["Waiting", items?.filter((view) => view.phase === WAITS).length, "waits"],
    ["Failed in 24 h", failed, "bad"],
  ];
  return html`<section class="card counts" aria-label="How many">
    ${rows.map(([name, count, tone]) => html`<div key=${name} class=${count ? `tone-${tone}` : ""}><b>${count ?? "–"}</b><span>${name}</span></div>`)}
  </section>`;
}

function Free({ nodes }) {
  return html`<section class="card free" aria-label="Free GPUs"><${Answered} answer=${nodes} what="nodes" rows=${2}>${(found) => {
    const parts = partsOf(found.items);
    const free = parts.reduce((sum, part) => sum + part.free, 0);
    const whole = parts.reduce((sum, part) => sum + part.gpus, 0);
    if (!whole) return html`<div class="figure"><b>0</b><span>No node of this cluster has GPUs</span></div>`;
    return html`<a class="figure plain" href="/cluster"><b>${free}</b><span>of ${plural(whole, "GPU")} free</span></a>
      <ul class="parts">${parts.map((part) => html`<li key=${`${part.pool}/${part.type}`}>
        <span>${part.pool ? `Pool ${part.pool}` : "In no pool"}${part.type ? html` <small>${part.type}</small>` : null}</span>
        <${Meter} used=${part.gpus - part.free - part.unusable} whole=${part.gpus} label=${`${part.free} of ${part.gpus} free`} />
        <span class="number">${part.free} free</span></li>`)}</ul>`;
  }}<//></section>`;
}

function Health({ nodes, stats }) {
  const items = nodes.data?.items ?? [];
  const away = items.filter((node) => !node.ready);
  const closed = items.filter((node) => node.ready && !node.schedulable);
  const pools = stats.data?.pools ?? [];
  const queued = pools.reduce((sum, pool) => sum + pool.queued, 0);
  const oldest = Math.max(0, ...pools.map((pool) => pool.oldestS));
  if (!nodes.data || !stats.data) return html`<p class="health soft" role="status">Loading the state of the cluster</p>`;
  const isWell = !away.length;
  const closedToo = closed.length ? `, ${closed.length} accepting no new workloads` : "";
  const ready = isWell ? `All ${plural(items.length, "node")} ready` : `${away.length} of ${plural(items.length, "node")} not ready`;
  return html`<p class="health" role="status"><i class="dot ${isWell ? "good" : "bad"}"></i>${ready}${closedToo}${" · "}${queued
    ? html`<a href="/queues">${plural(queued, "workload")} in the queues</a>, the oldest for ${spellDuration(Math.floor(oldest))}`
    : "no workload waits in the queues"}<${IdleGpus} /></p>`;
}
