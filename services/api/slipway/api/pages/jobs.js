// `/jobs`: all jobs with their places in the queue; `/jobs/NAME`: one job with its members and its settings.
import { Action } from "./action.js";
import { pageOf, spaced } from "./allocation.js";
import { call } from "./api.js";
import { Ago, Answered, Empty, Field, State, dash } from "./components.js";
import { plural, sentence } from "./format.js";
import { mayChange } from "./permissions.js";
import { go, param } from "./router.js";
import { html, useSignal } from "./runtime.js";
import { me, useResource } from "./store.js";
import { isName } from "./words.js";

const WHOLE = /^\d+$/;

/** @typedef {{maxSlots: string, priority: string, weight: string, queue: string, interrupt: boolean}} JobFields */

/**
 * The address of a job's page.
 * @param {{name: string, workspace: string}} job
 * @returns {string}
 */
export function pageOfJob({ name, workspace }) {
  return `/jobs/${encodeURIComponent(name)}?workspace=${encodeURIComponent(workspace)}`;
}

function apiPathOfJob({ name, workspace }, verb = "") {
  return `/jobs/${encodeURIComponent(name)}${verb}?workspace=${encodeURIComponent(workspace)}`;
}

export function Jobs() {
  const answer = useResource("/jobs");
  const filter = useSignal("");
  const workspaces = (me.value?.workspaces ?? []).filter((workspace) => mayChange({ workspace }));
  return html`<div class="head"><h1 tabindex="-1">Jobs</h1>${workspaces.length ? html`<${NewJob} workspaces=${workspaces} />` : null}</div>
    <p class="soft">A job groups workloads: it has one priority, one place in the queue and one limit of GPUs for all of them.</p>
    <${Answered} answer=${answer} what="jobs" rows=${4}>${({ items }) => {
      if (!items.length) {
        return html`<${Empty} title="There are no jobs">Create one, then launch into it: <code>slipway run --job NAME -- python train.py</code>.<//>`;
      }
      const found = items.filter((job) => `${job.name} ${job.workspace} ${job.state} ${job.queues.join(" ")}`.toLowerCase().includes(filter.value.toLowerCase()));
      return html`<div class="bar"><input type="search" placeholder="Filter by name, queue or state" aria-label="Filter jobs" value=${filter.value}
          onInput=${(event) => (filter.value = event.target.value)} /></div>
        <table class="list jobs" aria-label="Jobs">
        <thead><tr><th>State</th><th>Name</th><th>Queue</th><th class="number">Running</th><th class="number">Waiting</th><th class="number">Ended</th>
          <th class="number">GPUs in use</th><th class="number">At most</th><th class="number">Priority</th><th class="number">Place</th></tr></thead>
        <tbody>${found.map((job) => html`<tr key=${`${job.workspace}/${job.name}`}>
          <td><${State} of="jobStates" word=${job.state} /></td>
          <th scope="row"><a href=${pageOfJob(job)}>${job.name}</a>${job.workspace === "default" ? null : html` <small>${job.workspace}</small>`}</th>
          <td data-label="Queue">${queuesOf(job)}</td>
          <td class="number" data-label="Running">${job.live}</td>
          <td class="number" data-label="Waiting">${job.pending}</td>
          <td class="number" data-label="Ended">${job.ended}</td>
          <td class="number" data-label="GPUs">${job.slotsInUse}</td>
          <td class="number" data-label="At most">${job.maxSlots ?? dash()}</td>
          <td class="number" data-label="Priority">${job.priority ?? dash()}</td>
          <td class="number" data-label="Place" title=${job.position ? `${plural(job.ahead, "workload")} before its first` : "none of its workloads waits"}>${job.position || dash()}</td>
        </tr>`)}</tbody></table>
        ${found.length ? null : html`<p class="soft">No job matches the filter.</p>`}`;
    }}<//>`;
}

export function Job({ name }) {
  const place = { name, workspace: param("workspace") || "default" };
  const answer = useResource(apiPathOfJob(place));
  return html`<${Answered} answer=${answer} what=${`job ${name}`} isPage=${true} rows=${5}>${(job) => html`
    <div class="head"><div><h1 tabindex="-1">Job ${job.name} <${State} of="jobStates" word=${job.state} /></h1>
        <p class="soft about"><span>in workspace ${job.workspace}</span>${job.queues.length ? html`<span>in ${queuesOf(job)}</span>` : null}
          <span>${plural(job.slotsInUse, "GPU")} in use${job.maxSlots === null ? "" : ` of at most ${job.maxSlots}`}</span>
          <span>${job.priority === null ? "priority of each workload" : `priority ${job.priority}`}</span><span>weight ${job.weight}</span>
          <span>made <${Ago} time=${job.createdAt} /></span></p></div>
      ${mayChange(job) ? html`<${JobActions} job=${job} reload=${answer.reload} />` : null}</div>
    ${job.position ? html`<p class="standing">Its first waiting workload is number ${job.position} in its queue${job.ahead ? `: ${plural(job.ahead, "workload")} before it` : ""}.</p>` : null}
    <${Members} job=${job} />`}<//>`;
}

function JobActions({ job, reload }) {
  const left = job.live + job.pending;
  return html`<div class="actions">
    <${Settings} job=${job} reload=${reload} />
    ${left ? html`<${Action} label="Kill all" title=${`Kill ${plural(left, "workload")} of job ${job.name}?`} verb=${`Kill ${left}`} no="Keep them" isDanger=${true}
      send=${async () => { await call("POST", apiPathOfJob(job, "/kill"), { body: {} }); reload(); }}>
      <p>Waiting workloads leave their queue. Running workloads get a signal and some time to end. Work that they do not save by then is lost.</p><//>`
    : html`<${Action} label="Remove" title=${`Remove job ${job.name}?`} no="Keep it" isDanger=${true}
      send=${async () => { await call("DELETE", apiPathOfJob(job)); go("/jobs"); }}><p>Its workloads have ended; their pages remain.</p><//>`}
  </div>`;
}

function NewJob({ workspaces }) {
  const first = { maxSlots: "", priority: "", weight: "1", queue: "", interrupt: false };
  const fields = useSignal(first);
  const name = useSignal("");
  const workspace = useSignal("");
  const place = { name: name.value, workspace: workspace.value || (workspaces.includes("default") ? "default" : workspaces[0]) };
  const isNamed = isName(name.value);
  const send = async () => {
    const { interrupt, ...limits } = changeOf(first, fields.value);
    await call("POST", "/jobs", { body: { ...place, ...limits } });
    go(pageOfJob(place));
  };
  const open = () => {
    fields.value = first;
    name.value = "";
  };
  return html`<${Action} label="New job" style="primary" title="New job" verb="Make it" isGood=${isNamed && areGood(fields.value)} onOpen=${open} send=${send}>
    <${Field} name="name" label="Name" hint="such as sweep-lr" error=${name.value && !isNamed ? "Write small letters, digits and hyphens." : ""}><input id="field-name" autofocus value=${name.value}
      maxlength="63" autocomplete="off" aria-describedby="about-name" onInput=${(event) => (name.value = event.target.value.trim())} /><//>
    ${workspaces.length > 1 ? html`<${Field} name="workspace" label="Workspace"><select id="field-workspace" onChange=${(event) => (workspace.value = event.target.value)}>
      ${workspaces.map((each) => html`<option key=${each} value=${each} selected=${each === place.workspace}>${each}</option>`)}</select><//>` : null}
    <${Limits} fields=${fields} /><//>`;
}

function Settings({ job, reload }) {
  const queues = useResource("/queues", { isSlow: true });
  const current = { maxSlots: String(job.maxSlots ?? ""), priority: String(job.priority ?? ""), weight: String(job.weight), queue: "", interrupt: false };
  // The fields as they were when the question was opened: the job may change while it is open.
  const first = useSignal(current);
  const fields = useSignal(current);
  const body = changeOf(first.value, fields.value);
  const targets = (queues.data?.items ?? []).map((queue) => queue.name).filter((each) => !job.queues.includes(each));
  return html`<${Action} label="Change" title=${`Change job ${job.name}`} isGood=${areGood(fields.value) && Object.keys(body).length > 0}
    onOpen=${() => (first.value = fields.value = current)} send=${async () => { await call("PATCH", apiPathOfJob(job), { body }); reload(); }}>
    <${Limits} fields=${fields} />
    ${targets.length ? html`<${Field} name="queue" label="Queue" hint="workloads that were never admitted move there"><select id="field-queue" aria-describedby="about-queue"
      onChange=${(event) => (fields.value = { ...fields.value, queue: event.target.value })}><option value="">as it is</option>
      ${targets.map((each) => html`<option key=${each} value=${each} selected=${fields.value.queue === each}>${each}</option>`)}</select><//>` : null}
    ${job.live && body.priority !== undefined ? html`<label class="check"><input type="checkbox" checked=${fields.value.interrupt}
      onChange=${(event) => (fields.value = { ...fields.value, interrupt: event.target.checked })} /> Restart running workloads with the new priority. Otherwise it applies from the next attempt on.</label>` : null}<//>`;
}

function Limits({ fields }) {
  const errors = errorsOf(fields.value);
  const box = (name) => html`<input id=${`field-${name}`} inputmode="numeric" value=${fields.value[name]} aria-invalid=${errors[name] ? "true" : undefined} aria-describedby=${`about-${name}`}
    onInput=${(event) => (fields.value = { ...fields.value, [name]: event.target.value.trim() })} />`;
  return html`
    <${Field} name="maxSlots" label="GPUs at most" hint="empty: no limit" error=${errors.maxSlots}>${box("maxSlots")}<//>
    <${Field} name="priority" label="Priority" hint="0 to 1000, higher goes first; empty: that of each workload." error=${errors.priority}>${box("priority")}<//>
    <${Field} name="weight" label="Weight" hint="its share among the jobs of its queue" error=${errors.weight}>${box("weight")}<//>`;
}

function errorsOf({ maxSlots, priority, weight }) {
  return {
    maxSlots: isNone(maxSlots) || WHOLE.test(maxSlots) ? "" : "Write a whole number, or nothing.",
    priority: isNone(priority) || (WHOLE.test(priority) && Number(priority) <= 1000) ? "" : "Write a whole number from 0 to 1000, or nothing.",
    weight: WHOLE.test(weight) && Number(weight) >= 1 ? "" : "Write a whole number of at least 1.",
  };
}

function areGood(fields) {
  return !Object.values(errorsOf(fields)).some(Boolean);
}

function isNone(text) {
  return text === "";
}

/**
 * The changes between the current fields and the edited ones; an empty limit or priority is removed (null).
 * @param {JobFields} first
 * @param {JobFields} fields
 * @returns {Record<string, number | string | boolean | null>} empty: nothing changes
 */
export function changeOf(first, fields) {
  const body = {};
  for (const name of ["maxSlots", "priority", "weight"]) if (fields[name] !== first[name]) body[name] = isNone(fields[name]) ? null : Number(fields[name]);
  if (fields.queue) body.queue = fields.queue;
  // Without `interrupt`, the API restarts running work under a new priority, so a priority is never sent without it.
  if (body.priority !== undefined) body.interrupt = fields.interrupt;
  return body;
}

function Members({ job }) {
  if (!job.members.length) return html`<${Empty} title="No workload names this job"><code>slipway run --job ${job.name} -- COMMAND</code> adds one.<//>`;
  return html`<table class="list members" aria-label=${`Workloads of job ${job.name}`}>
    <thead><tr><th>State</th><th>Workload</th><th>Queue</th><th class="number">GPUs</th><th class="number">Place</th><th>Note</th></tr></thead>
    <tbody>${job.members.map((each) => html`<tr key=${each.id}>
      <td><${State} word=${each.result || each.phase} /></td>
      <th scope="row"><a href=${pageOf(each.id)}>${each.id}</a> <small>${each.kind}</small></th>
      <td data-label="Queue">${each.queue}</td>
      <td class="number" data-label="GPUs">${each.slots ?? 0}</td>
      <td class="number" data-label="Place">${each.position || dash()}</td>
      <td class="note" title=${each.message ?? ""}>${[each.code && spaced(each.code), each.message].filter(Boolean).map(sentence).join(": ")}</td></tr>`)}</tbody></table>`;
}

function queuesOf(job) {
  return job.queues.length ? job.queues.map((name, index) => html`${index ? ", " : ""}<a class="plain" href=${`/queues/${encodeURIComponent(name)}`}>${name}</a>`) : dash();
}
