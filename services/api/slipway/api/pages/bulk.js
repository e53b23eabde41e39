// Bulk actions for selected waiting workloads: kill, change the priority, move. Each dialog shows their number.
import { call } from "./api.js";
import { Confirm } from "./components.js";
import { plural, sentence } from "./format.js";
import { html, useSignal } from "./runtime.js";
import { waitingPath } from "./waiting_list.js";

const BATCH_MAX = 500;
const PART = 500;
const NAMED = 8;

/**
 * Read all allocations that wait in a queue and match the words, in the order of the queue, part by part.
 * @param {string} name of the queue
 * @param {string} words
 * @param {(found: any[]) => boolean} [isEnough] stops reading when it returns true
 * @returns {Promise<any[]>}
 */
export async function allWaiting(name, words, isEnough = () => false) {
  const path = `${waitingPath(name, words)}&limit=${PART}`;
  const found = [];
  let next = "";
  do {
    const { items, metadata } = await call("GET", `${path}${next && `&continue=${encodeURIComponent(next)}`}`);
    found.push(...items);
    next = metadata.continue ?? "";
  } while (next && !isEnough(found));
  return found;
}

// The first or the last allocation of a queue that is not among the chosen ones; null when there is no other.
async function anchorOf(name, ids, place) {
  const other = (items) => items.find((each) => !ids.has(each.id)) ?? null;
  if (place === "front") return other(await allWaiting(name, "", (found) => other(found) !== null));
  let { count: end } = await call("GET", `${waitingPath(name, "")}&limit=1`);
  while (end > 0) {
    const from = Math.max(1, end - PART + 1);
    const { items } = await call("GET", `${waitingPath(name, "")}&from=${from}&limit=${end - from + 1}`);
    const found = other(items.reverse());
    if (found) return found;
    end = from - 1;
  }
  return null;
}

// The chosen allocations in the current order of the queue: their positions may have changed since they were selected.
async function inOrder(name, chosen) {
  const ids = new Set(chosen.map((each) => each.id));
  const found = await allWaiting(name, "", (items) => items.filter((each) => ids.has(each.id)).length === ids.size);
  const places = new Map(found.map((each, index) => [each.id, index]));
  const placeOf = (each) => places.get(each.id) ?? found.length;
  return [...chosen].sort((a, b) => placeOf(a) - placeOf(b));
}

/**
 * The changes that move the chosen allocations before or behind the anchor, and keep their order.
 * @param {any[]} chosen in their order
 * @param {{id: string} | null} anchor the first or the last of all others
 * @param {string} place `front` or `end`
 * @returns {any[]} empty when there is no anchor
 */
export function movesOf(chosen, anchor, place) {
  if (!anchor) return [];
  if (place === "front") return chosen.map((each) => ({ allocation: each.id, aheadOf: anchor.id }));
  // Each change moves one directly behind the same anchor, so the last of the chosen must be moved first.
  return [...chosen].reverse().map((each) => ({ allocation: each.id, behind: anchor.id }));
}

/** The actions for the selected workloads; nothing is shown while none is selected. */
/** @param {{name: string, selected: import("@preact/signals").Signal<Map<string, any>>, queues: any[], reload: () => void}} props */
export function Selection({ name, selected, queues, reload }) {
  const asked = useSignal("");
  const priority = useSignal("50");
  const place = useSignal("front");
  const isBusy = useSignal(false);
  const error = useSignal(null);
  const chosen = [...selected.value.values()].sort((a, b) => a.position - b.position);
  if (!chosen.length && !asked.value) return null;
  const pool = queues.find((queue) => queue.name === name)?.pool;
  const targets = queues.filter((queue) => queue.name !== name && queue.pool === pool && !queues.some((each) => each.spec.parent === queue.name));
  const close = () => {
    asked.value = "";
    error.value = null;
  };
  const send = async () => {
    isBusy.value = true;
    error.value = null;
    try {
      const failed = asked.value === "kill" ? await killAll(chosen) : await changeAll(await updates());
      const left = new Set(failed.map((each) => each.id));
      selected.value = new Map(chosen.filter((each) => left.has(each.id)).map((each) => [each.id, each]));
      if (failed.length) error.value = new Error(`${failed.length} of ${chosen.length} did not change. ${sentence(failed[0].reason)}`);
      else asked.value = "";
      reload();
    } catch (refusal) {
      error.value = refusal;
    }
    isBusy.value = false;
  };
  const updates = async () => {
    if (asked.value === "priority") return chosen.map((each) => ({ allocation: each.id, priority: Number(priority.value) }));
    if (place.value.startsWith("queue:")) return chosen.map((each) => ({ allocation: each.id, queue: place.value.slice(6) }));
    return movesOf(await inOrder(name, chosen), await anchorOf(name, new Set(chosen.map((each) => each.id)), place.value), place.value);
  };
  const isGood = asked.value !== "priority" || (/^\d+$/.test(priority.value) && Number(priority.value) <= 1000);
  const what = plural(chosen.length, "workload");
  const titles = { kill: `Kill ${what}?`, priority: `Change the priority of ${what}?`, move: `Move ${what}?` };
  const verbs = { kill: `Kill ${chosen.length}`, priority: `Change ${chosen.length}`, move: `Move ${chosen.length}` };
  return html`<div class="selection" role="group" aria-label="Selected"><b role="status">${chosen.length} selected</b>
      <button type="button" onClick=${() => (asked.value = "priority")}>Priority</button>
      <button type="button" onClick=${() => (asked.value = "move")}>Move</button>
      <button type="button" class="danger" onClick=${() => (asked.value = "kill")}>Kill</button>
      <button type="button" class="quiet" onClick=${() => (selected.value = new Map())}>Select none</button>
    </div>
    ${asked.value ? html`<${Confirm} title=${titles[asked.value]} verb=${verbs[asked.value]} no=${asked.value === "kill" ? "Keep them" : "Cancel"}
        isDanger=${asked.value === "kill"} isBusy=${isBusy.value || !isGood || !chosen.length} error=${error.value} onYes=${send} onNo=${close}>
      <ul class="names">${chosen.slice(0, NAMED).map((each) => html`<li key=${each.id}>${each.name} <small>of ${each.user}</small></li>`)}
        ${chosen.length > NAMED ? html`<li class="soft">and ${chosen.length - NAMED} more</li>` : null}</ul>
      ${asked.value === "kill" ? html`<p>They leave the queue. None of them has started.</p>` : null}
      ${asked.value === "priority" ? html`<p class="field"><label for="bulk-priority">New priority</label>
        <input id="bulk-priority" autofocus inputmode="numeric" value=${priority.value} aria-invalid=${String(!isGood)} onInput=${(event) => (priority.value = event.target.value.trim())} />
        <small>${isGood ? "0 to 1000; higher goes first" : "Write a whole number from 0 to 1000."}</small></p>` : null}
      ${asked.value === "move" ? html`<p class="field"><label for="bulk-place">To</label>
        <select id="bulk-place" autofocus value=${place.value} onChange=${(event) => (place.value = event.target.value)}>
          <option value="front">the front of ${name}</option><option value="end">the end of ${name}</option>
          ${targets.map((queue) => html`<option key=${queue.name} value=${`queue:${queue.name}`}>queue ${queue.name}</option>`)}</select>
        <small>${place.value.startsWith("queue:") ? "They keep their priority." : "Their priority changes if the new place requires it."}</small></p>` : null}
    <//>` : null}`;
}

// Returns {id, reason} of those that were refused. Ids that the server did not reach are sent again, while it progresses.
async function killAll(chosen) {
  const failed = [];
  for (let from = 0; from < chosen.length; from += BATCH_MAX) {
    let left = chosen.slice(from, from + BATCH_MAX).map((each) => each.id);
    while (left.length) {
      const sent = left;
      const { items } = await call("POST", "/allocations/batch", { body: { verb: "kill", ids: sent } });
      left = sent.filter((_, index) => items[index].outcome === "notReached");
      items.forEach((item, index) => item.problem && failed.push({ id: sent[index], reason: item.problem.detail }));
      if (left.length === sent.length) throw new Error("The server was too busy to kill them. Try again later.");
    }
  }
  return failed;
}

async function changeAll(updates) {
  const failed = [];
  for (let from = 0; from < updates.length; from += BATCH_MAX) {
    const part = updates.slice(from, from + BATCH_MAX);
    const { items } = await call("POST", "/jobs/batch", { body: { updates: part } });
    items.forEach((item, index) => item.ok || failed.push({ id: part[index].allocation, reason: item.error }));
  }
  return failed;
}
