// `/nodes`: a table of all nodes; `/nodes/NAME`: one node with its ranks, labels and taints, and buttons to enable, drain or
// disable it.
import { Action } from "./action.js";
import { pageOf } from "./allocation.js";
import { call } from "./api.js";
import { Answered, Empty, Meter, State } from "./components.js";
import { amountOf, plural, spellBytes, trim } from "./format.js";
import { mayAdminister } from "./permissions.js";
import { html, useSignal } from "./runtime.js";
import { useResource } from "./store.js";

const SHOWN = 200;

/**
 * The address of a node's page.
 * @param {string} name
 * @returns {string}
 */
export function pageOfNode(name) {
  return `/nodes/${encodeURIComponent(name)}`;
}

/**
 * A word for whether the node accepts work, and the tone of that word.
 * @param {{ready: boolean, schedulable: boolean, scheduling: string}} node
 * @returns {[string, string]}
 */
export function standingOf(node) {
  if (!node.ready) return ["not ready", "bad"];
  return node.schedulable ? ["ready", "good"] : [node.scheduling, "waits"];
}

export function Nodes() {
  const answer = useResource("/nodes", { isSlow: true });
  const filter = useSignal("");
  const most = useSignal(SHOWN);
  return html`<div class="head"><h1 tabindex="-1">Nodes</h1><a class="button" href="/cluster">Map</a></div>
    <${Answered} answer=${answer} what="the nodes" rows=${6}>${({ items }) => {
      if (!items.length) return html`<${Empty} title="The cluster has no nodes">Workloads wait until there are some.<//>`;
      const found = items.filter((node) => `${node.name} ${node.pool} ${node.gpuType} ${standingOf(node)[0]}`.toLowerCase().includes(filter.value.toLowerCase()));
      return html`<div class="bar"><input type="search" placeholder="Filter by name, pool, type of GPU or state" aria-label="Filter nodes" value=${filter.value}
          onInput=${(event) => (filter.value = event.target.value)} /><span class="soft">${plural(found.length, "node")}</span></div>
        <table class="list" aria-label="Nodes">
        <thead><tr><th>State</th><th>Name</th><th>Pool</th><th>GPUs in use</th><th class="number">Free</th><th>CPU</th><th>Memory</th><th class="number">Ranks</th></tr></thead>
        <tbody>${found.slice(0, most.value).map((node) => html`<${Row} key=${node.name} node=${node} />`)}</tbody></table>
        ${found.length ? null : html`<p class="soft">No node matches the filter.</p>`}
        ${found.length > most.value ? html`<p><button type="button" onClick=${() => (most.value += SHOWN)}>Show ${Math.min(SHOWN, found.length - most.value)} of ${found.length - most.value} more</button></p>` : null}`;
    }}<//>`;
}

function Row({ node }) {
  const [word, tone] = standingOf(node);
  return html`<tr><td><span class="state tone-${tone}">${word}</span></td>
    <th scope="row"><a href=${pageOfNode(node.name)}>${node.name}</a>${node.gpuType ? html` <small>${node.gpuType}</small>` : null}</th>
    <td data-label="Pool">${node.pool || html`<span class="soft">none</span>`}</td>
    <td class="wide" data-label="GPUs">${node.gpus ? html`<${Meter} used=${node.gpusUsed} whole=${node.gpus} label=${`${node.gpusUsed} of ${plural(node.gpus, "GPU")} in use`} />` : html`<span class="soft">no GPUs</span>`}</td>
    <td class="number" data-label="Free">${node.gpus ? `${Math.max(0, node.gpus - node.gpusUsed)} of ${node.gpus}` : html`<span class="soft">–</span>`}</td>
    <td data-label="CPU">${cpusOf(node)}</td><td data-label="Memory">${memoryOf(node)}</td>
    <td class="number" data-label="Ranks">${node.ranks.length}</td></tr>`;
}

function cpusOf(node) {
  return `${trim(amountOf(node.used.cpu))} of ${trim(amountOf(node.allocatable.cpu))}`;
}

function memoryOf(node) {
  return `${spellBytes(amountOf(node.used.memory))} of ${spellBytes(amountOf(node.allocatable.memory))}`;
}

export function OneNode({ name }) {
  const answer = useResource(`/nodes/${encodeURIComponent(name)}`, { isSlow: true });
  return html`<${Answered} answer=${answer} what=${`node ${name}`} isPage=${true} rows=${5}>${(node) => {
    const [word, tone] = standingOf(node);
    return html`<div class="head"><div><h1 tabindex="-1">Node ${node.name} <span class="state tone-${tone}">${word}</span></h1>
        <p class="soft about"><span>${node.pool ? `in pool ${node.pool}` : "in no pool"}</span>${node.gpuType ? html`<span>${node.gpuType}</span>` : null}
          <span>${node.gpus ? `${node.gpusUsed} of ${plural(node.gpus, "GPU")} in use` : "no GPUs"}</span><span>${cpusOf(node)} CPUs</span><span>${memoryOf(node)} of memory</span></p></div>
      ${mayAdminister() ? html`<${NodeActions} node=${node} reload=${answer.reload} />` : null}</div>
    <section><h2>Ranks <small>${node.ranks.length}</small></h2>
      ${node.ranks.length ? html`<table class="list" aria-label=${`Ranks on ${node.name}`}>
        <thead><tr><th>State</th><th>Workload</th><th class="number">Rank</th><th class="number">GPUs</th><th>User</th><th>Queue</th></tr></thead>
        <tbody>${node.ranks.map((held) => html`<tr key=${`${held.id}/${held.rank}`}><td><${State} word=${held.phase} /></td>
          <th scope="row"><a href=${pageOf(held.id)}>${held.id}</a></th><td class="number" data-label="Rank">${held.rank}</td><td class="number" data-label="GPUs">${held.gpus}</td>
          <td data-label="User">${held.user}</td><td data-label="Queue"><a class="plain" href=${`/queues/${encodeURIComponent(held.queue)}`}>${held.queue}</a></td></tr>`)}</tbody></table>`
        : html`<${Empty} title="No workload of Slipway runs here">${node.ready && node.schedulable ? "It accepts new workloads." : "It accepts no new workloads."}<//>`}</section>
    ${node.taints.length ? html`<section><h2>Taints</h2><${Pairs} rows=${node.taints.map((each) => [each.key, [each.value, each.effect].filter(Boolean).join(": ")])} /></section>` : null}
    <section><h2>Offers</h2><${Pairs} rows=${Object.entries(node.allocatable)} /></section>
    <section><h2>Labels</h2><${Pairs} rows=${Object.entries(node.labels)} /></section>`;
  }}<//>`;
}

function Pairs({ rows }) {
  return html`<dl class="pairs card">${rows.map(([key, value]) => html`<dt key=${key}><code>${key}</code></dt><dd>${value === "" ? html`<span class="soft">empty</span>` : value}</dd>`)}</dl>`;
}

function NodeActions({ node, reload }) {
  const send = (verb) => async () => {
    await call("POST", `/nodes/${encodeURIComponent(node.name)}/${verb}`, { body: {} });
    reload();
  };
  const ranks = plural(node.ranks.length, "rank");
  if (node.scheduling === "cordoned") return html`<p class="soft">Cordoned with kubectl: <code>kubectl uncordon ${node.name}</code></p>`;
  return html`<div class="actions">
    ${node.schedulable ? null : html`<${Action} label="Enable" style="primary" send=${send("enable")} />`}
    ${node.scheduling === "draining" ? null : html`<${Action} label="Drain" title=${`Drain ${node.name}?`} isDanger=${false} send=${send("drain")}>
      <p>No new workload is placed on it. ${node.ranks.length ? `The ${ranks} on it may finish.` : "No workload runs on it."}</p><//>`}
    ${node.scheduling === "disabled" ? null : html`<${Action} label="Disable" title=${`Disable ${node.name}?`} isDanger=${true} send=${send("disable")}>
      <p>No new workload is placed on it. ${node.ranks.length ? `Workloads with one of the ${ranks} on it restart on other nodes.` : "No workload runs on it."}</p><//>`}
  </div>`;
}
