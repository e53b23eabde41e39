// `/cluster`: each node with its GPUs as cells, coloured by their workload, user or queue; free GPUs, largest gang that fits.
import { pageOf } from "./allocation.js";
import { freeOf, isUsable, partsOf, ranksThatFit, scatteredFor, sizesOf } from "./capacity.js";
import { Answered, Choice, Empty, Meter, More } from "./components.js";
import { amountOf, finder, plural, sentence, spellAgo, spellBytes, spellDuration, spellExact, trim } from "./format.js";
import { pageOfNode } from "./nodes.js";
import { param, setParam } from "./router.js";
import { html, useMemo, useRef, useSignal } from "./runtime.js";
import { now, useResource } from "./store.js";

const COLOURS = 10;
const FIRST = 30;
const SHOWN = 300;
const LEGEND = 12;
const MINUTE_MS = 60000;
const SETTLE_MS = 200;
/** How far back the slider reaches, in minutes. */
const SLIDER_MIN = 24 * 60;
const isCalled = finder((/** @type {any} */ node) => `${node.name} ${node.pool} ${node.gpuType} ${node.scheduling}`);
const TOPOLOGY = ["rack", "topology.kubernetes.io/rack", "topology.kubernetes.io/zone"];
const USE = "use";
const KEYS = { workload: (held) => held.id, user: (held) => held.user, queue: (held) => held.queue };

export function Cluster() {
  const answer = useResource("/nodes", { isSlow: true });
  const at = Number.isNaN(Date.parse(param("at"))) ? "" : param("at");
  const past = useResource(at ? `/history?at=${encodeURIComponent(at)}` : "", { isAbout: () => false });
  return html`<div class="head"><h1 tabindex="-1">Cluster</h1><a class="button" href="/nodes">List of nodes</a></div>
    <${TimeSlider} at=${at} />
    <${Answered} answer=${answer} what="the nodes" rows=${6}>${({ items }) => {
      if (!items.length) return html`<${Empty} title="The cluster has no nodes">Workloads wait until there are some.<//>`;
      if (!at) return html`<${NodeMap} items=${items} />`;
      return html`<${Answered} answer=${past} what="the past" rows=${6}>${(found) => html`<p class="soft">${plural(found.items.filter((each) => each.nodes.length).length, "workload")} ran on nodes then.
          Which nodes drained or were away then is not known: these are the nodes of now.</p>
        ${found.lossy.map((text) => html`<p key=${text} class="warning">${sentence(text)}.</p>`)}
        <${Then} items=${items} standing=${found.items} />`}<//>`;
    }}<//>`;
}

function Then({ items, standing }) {
  const nodes = useMemo(() => nodesThen(items, standing), [items, standing]);
  return html`<${NodeMap} items=${nodes} isPast=${true} />`;
}

function TimeSlider({ at }) {
  const chosen = useSignal(at ? Math.max(-SLIDER_MIN, Math.round((Date.parse(at) - Date.now()) / MINUTE_MS)) : 0);
  const leave = useRef(0);
  const move = (minutes) => {
    chosen.value = minutes;
    clearTimeout(leave.current);
    leave.current = setTimeout(() => setParam("at", minutes ? new Date(Date.now() + minutes * MINUTE_MS).toISOString().replace(/\.\d+Z$/, "Z") : ""), SETTLE_MS);
  };
  const said = chosen.value ? `${spellDuration(-60 * chosen.value)} ago` : at ? spellAgo(at, now.value) : "Now";
  return html`<div class="bar slider"><label for="cluster-time">Time</label>
    <input id="cluster-time" type="range" min=${-SLIDER_MIN} max="0" step="5" value=${chosen.value} aria-valuetext=${said} onInput=${(event) => move(Number(event.target.value))} />
    <output for="cluster-time" title=${at ? spellExact(at) : ""}>${said}</output>
    ${at ? html`<button type="button" onClick=${() => move(0)}>Back to now</button> <a href=${`/history?at=${encodeURIComponent(at)}`}>History at this time</a>` : null}</div>`;
}

/**
 * The nodes for the map, with the workloads that were placed on them at a time in the past.
 * @param {import("./capacity.js").NodeView[]} nodes the current nodes
 * @param {any[]} standing the allocations of that time, from the history of the API
 * @returns {any[]}
 */
export function nodesThen(nodes, standing) {
  const known = new Map(nodes.map((node) => [node.name, { ...node, ready: true, schedulable: true, scheduling: "", ranks: [], gpusUsed: 0, used: null }]));
  for (const each of standing) {
    for (const name of each.nodes) {
      const gone = { name, pool: each.pool, gpuType: "", gpus: 0, labels: {}, allocatable: {}, ready: true, schedulable: true, scheduling: "no longer in the cluster", ranks: [], gpusUsed: 0, used: null };
      const node = known.get(name) ?? known.set(name, gone).get(name);
      const gpus = each.gpus?.[name] ?? 0;
      node.ranks.push({ id: each.id, rank: null, count: each.ranks[name], user: each.user, queue: each.queue, phase: each.phase, gpus });
      node.gpusUsed += gpus;
      node.gpus = Math.max(node.gpus, node.gpusUsed);
    }
  }
  return [...known.values()];
}

function NodeMap({ items, isPast = false }) {
  const filter = useSignal("");
  const most = useSignal(FIRST);
  const use = useResource(isPast ? "" : "/gpu-use", { isSlow: true, isAside: true, isAbout: () => false }).data;
  const useOf = useMemo(() => useKeys(use), [use]);
  const keys = use?.isConfigured ? { ...KEYS, [USE]: useOf } : KEYS;
  const by = keys[param("by")] ? param("by") : "workload";
  const keyOf = keys[by];
  const colours = useMemo(() => coloursOf(items, keyOf), [items, keyOf]);
  const search = (text) => {
    filter.value = text;
    most.value = FIRST;
  };
  const found = items.filter((node) => isCalled(node, filter.value));
  return html`<${Summary} nodes=${items} isPast=${isPast} />
        <div class="bar">
          <${Choice} label="Colour by" options=${[["workload", "By workload"], ["user", "By user"], ["queue", "By queue"], ...(keys[USE] ? [[USE, "By use"]] : [])]} chosen=${by}
            onChoose=${(value) => setParam("by", value === "workload" ? "" : value)} />
          <input type="search" placeholder="Filter nodes" aria-label="Filter nodes" value=${filter.value} onInput=${(event) => search(event.target.value)} />
        </div>
        <${Legend} colours=${colours} by=${by} nodes=${items} />
        ${groupsOf(found.slice(0, most.value)).map(([title, nodes]) => html`<section key=${title}><h2>${title} <small>${plural(nodes.length, "node")}</small></h2>
          <div class="nodes">${nodes.map((node) => html`<${Node} key=${node.name} node=${node} colours=${colours} keyOf=${keyOf} />`)}</div></section>`)}
        ${found.length ? null : html`<${Empty} title="No node matches">Filter by a name, a pool, a type of GPU or draining.<//>`}
        ${found.length > most.value ? html`<${More} count=${found.length - most.value} by=${most.value < SHOWN ? FIRST : SHOWN} isByItself=${most.value < SHOWN}
          onMore=${() => (most.value += most.value < SHOWN ? FIRST : SHOWN)} />` : null}`;
}

// {key: {colour, gpus}}; the key with the most GPUs is first, so that neighbours in the legend have different colours.
function coloursOf(nodes, keyOf) {
  const counts = new Map();
  for (const node of nodes) for (const held of node.ranks) counts.set(keyOf(held), (counts.get(keyOf(held)) ?? 0) + held.gpus);
  const ordered = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  return new Map(ordered.map(([key, gpus], index) => [key, { colour: index % COLOURS, gpus }]));
}

function groupsOf(nodes) {
  const groups = new Map();
  for (const node of nodes) {
    const place = TOPOLOGY.map((label) => node.labels[label]).find(Boolean);
    const title = [node.pool ? `Pool ${node.pool}` : "In no pool", place].filter(Boolean).join(" · ");
    groups.set(title, [...(groups.get(title) ?? []), node]);
  }
  return [...groups].sort((a, b) => (a[0] < b[0] ? -1 : 1));
}

function Summary({ nodes, isPast }) {
  return useMemo(() => summaryOf(nodes, isPast), [nodes, isPast]);
}

function summaryOf(nodes, isPast) {
  const when = isPast ? "then" : "now";
  const parts = partsOf(nodes);
  const free = nodes.reduce((sum, node) => sum + freeOf(node), 0);
  const whole = nodes.reduce((sum, node) => sum + node.gpus, 0);
  const away = nodes.filter((node) => !node.ready).length;
  const closed = nodes.filter((node) => node.ready && !node.schedulable).length;
  return html`<div class="cards">
    <section class="card free" aria-label="Free GPUs">
      <div class="figure"><b>${free}</b><span>of ${plural(whole, "GPU")} free</span></div>
      <ul class="parts">${parts.map((part) => html`<li key=${`${part.pool}/${part.type}`}><span>${part.pool ? `Pool ${part.pool}` : "In no pool"}${part.type ? html` <small>${part.type}</small>` : null}</span>
        <${Meter} used=${part.gpus - part.free - part.unusable} whole=${part.gpus} label=${`${part.free} of ${part.gpus} free`} /><span class="number">${part.free} free</span></li>`)}</ul>
    </section>
    <section class="card fits" aria-label=${`Largest gang that ${isPast ? "fitted" : "fits"} ${when}`}><h2>Largest gang that ${isPast ? "fitted" : "fits"} ${when}</h2>
      ${!whole ? html`<p class="soft">No node has GPUs.</p>` : !free ? html`<p>No GPU is free: workloads that request one wait.</p>` : html`<ul>${sizesOf(nodes).map((size) => html`<li key=${size}><b>${ranksThatFit(nodes, size)}</b><span>${ranksThatFit(nodes, size) === 1 ? "rank" : "ranks"} of ${plural(size, "GPU")}</span></li>`)}</ul>
        ${fragmentsOf(nodes, free)}<p class="soft">Only free GPUs are considered; a dry run of a launch also considers CPU and memory.</p>`}
    </section>
    ${isPast ? null : html`<section class="card counts" aria-label="Nodes">
      <div><b>${nodes.length}</b><span>Nodes</span></div>
      <div class=${closed ? "tone-waits" : ""}><b>${closed}</b><span>Draining or cordoned</span></div>
      <div class=${away ? "tone-bad" : ""}><b>${away}</b><span>Not ready</span></div>
    </section>`}</div>`;
}

// The share of the free GPUs that ranks of the largest size cannot use.
function fragmentsOf(nodes, free) {
  const largest = sizesOf(nodes).at(-1);
  const scattered = scatteredFor(nodes, largest);
  return html`<p>Fragmentation: ${scattered ? `${Math.round((100 * scattered) / free)} %. ${scattered} of ${plural(free, "free GPU")} ${scattered === 1 ? "is" : "are"} not usable by ranks of ${plural(largest, "GPU")}.` : `none for ranks of ${plural(largest, "GPU")}.`}</p>`;
}

/**
 * Whether a rank uses its GPUs, by the figures of the API: `idle`, `busy` or `no data`.
 * @param {{items: any[]} | null} use the answer of GET /gpu-use
 * @returns {(held: {id: string, rank: number}) => string}
 */
export function useKeys(use) {
  const known = new Map();
  for (const each of use?.items ?? []) for (const { rank } of each.ranks) known.set(`${each.id}/${rank}`, each.isIdle ? "idle" : "busy");
  return (held) => known.get(`${held.id}/${held.rank}`) ?? "no data";
}

function Legend({ colours, by, nodes }) {
  return useMemo(() => legendOf(colours, by, nodes), [colours, by, nodes]);
}

function legendOf(colours, by, nodes) {
  const shown = [...colours].filter(([, each]) => each.gpus).slice(0, LEGEND);
  const rest = [...colours].filter(([, each]) => each.gpus).length - shown.length;
  const others = nodes.reduce((sum, node) => sum + Math.max(0, node.gpusUsed - node.ranks.reduce((own, held) => own + held.gpus, 0)), 0);
  return html`<ul class="legend" aria-label=${`Colours by ${by}`}>
    ${shown.map(([key, each]) => html`<li key=${key}><i class="cell c${each.colour}"></i>${by === "workload" ? html`<a href=${pageOf(key)}>${key}</a>` : key} <small>${each.gpus}</small></li>`)}
    ${rest > 0 ? html`<li class="soft">and ${rest} more</li>` : null}
    ${others ? html`<li><i class="cell hidden-use"></i>others <small>${others}</small></li>` : null}
    <li><i class="cell"></i>free</li>
    ${nodes.some((node) => !isUsable(node)) ? html`<li><i class="cell closed"></i>accepts no new workloads</li>` : null}
  </ul>`;
}

// The name of a current rank, or of all ranks that a workload had on the node at a time in the past.
function nameOf(held) {
  return held.rank === null ? `${held.id}, ${plural(held.count, "rank")}` : `${held.id}, rank ${held.rank}`;
}

// A node that has not changed is not rendered again, because there may be thousands of nodes.
function Node({ node, colours, keyOf }) {
  const own = node.ranks.map((each) => colours.get(keyOf(each)).colour).join();
  return useMemo(() => nodeOf({ node, colours, keyOf }), [node, keyOf, own]);
}

function nodeOf({ node, colours, keyOf }) {
  const held = node.ranks.filter((each) => each.gpus);
  const cells = held.flatMap((each) => Array.from({ length: each.gpus }, () => each));
  const unseen = Math.max(0, node.gpusUsed - cells.length);
  const empty = Math.max(0, node.gpus - node.gpusUsed);
  const others = node.ranks.filter((each) => !each.gpus).reduce((sum, each) => sum + (each.count ?? 1), 0);
  const said = !node.ready ? "not ready" : node.schedulable ? "" : node.scheduling;
  return html`<article class="node ${said ? "closed" : ""}" aria-label=${`${node.name}: ${node.gpusUsed} of ${node.gpus} GPUs in use${said ? `, ${said}` : ""}`}>
    <h3 title=${node.name}><a class="plain" href=${pageOfNode(node.name)}>${node.name}</a>${said ? html` <span class="state tone-${node.ready ? "waits" : "bad"}">${said}</span>` : null}</h3>
    ${node.gpus ? html`<div class="cells">
      ${cells.map((each, index) => html`<a key=${index} class="cell c${colours.get(keyOf(each)).colour}" href=${pageOf(each.id)} tabindex=${index && cells[index - 1] === each ? -1 : 0}
        title=${`${nameOf(each)}, of ${each.user || "an unknown user"} in ${each.queue || "an unknown queue"}: ${each.phase}`} aria-label=${nameOf(each)}></a>`)}
      ${Array.from({ length: unseen }, (_, index) => html`<i key=${`u${index}`} class="cell hidden-use" title="in use by workloads that you may not see"></i>`)}
      ${Array.from({ length: empty }, (_, index) => html`<i key=${`f${index}`} class="cell ${said ? "closed" : ""}" title=${said ? `free, but ${said}` : "free"}></i>`)}
    </div>` : html`<p class="soft">no GPUs</p>`}
    ${node.used ? html`<dl class="small">
      <dt>CPU</dt><dd><${Meter} used=${amountOf(node.used.cpu)} whole=${amountOf(node.allocatable.cpu)}
        label=${`${trim(amountOf(node.used.cpu))} of ${trim(amountOf(node.allocatable.cpu))} CPUs requested`} /></dd>
      <dt>Memory</dt><dd><${Meter} used=${amountOf(node.used.memory)} whole=${amountOf(node.allocatable.memory)}
        label=${`${spellBytes(amountOf(node.used.memory))} of ${spellBytes(amountOf(node.allocatable.memory))} requested`} /></dd>
    </dl>` : null}
    ${others ? html`<p class="soft">${plural(others, "rank")} without GPUs${node.used ? "" : ", or with an unknown number"}: ${[...new Set(node.ranks.filter((each) => !each.gpus).map((each) => each.id))].slice(0, 3).map((id, index) => html`${index ? ", " : ""}<a href=${pageOf(id)}>${id}</a>`)}</p>` : null}
  </article>`;
}
