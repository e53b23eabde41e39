// Merges a new answer of the API with the previous one, and applies events to an answer until it is read again. Pure.
import { facts } from "./facts.js";

const [WAITS] = facts.phases;
const OVER = facts.phases.at(-1);

/**
 * The new answer, with the objects of the old one wherever both are equal. So a component sees by identity that its part
 * has not changed. Items of lists are matched by `id` or `name`.
 * @param {any} old
 * @param {any} fresh
 * @returns {any} `old` itself when nothing has changed
 */
export function kept(old, fresh) {
  if (old === fresh || typeof old !== "object" || typeof fresh !== "object" || !old || !fresh) return fresh;
  if (Array.isArray(fresh)) return Array.isArray(old) ? keptItems(old, fresh) : fresh;
  // An answer that was sent before an event arrived is older than the event.
  if (old.id && old.id === fresh.id && old.status?.seq > fresh.status?.seq) return old;
  const names = Object.keys(fresh);
  let isSame = names.length === Object.keys(old).length;
  const found = {};
  for (const name of names) {
    found[name] = kept(old[name], fresh[name]);
    if (found[name] !== old[name]) isSame = false;
  }
  return isSame ? old : found;
}

function keptItems(old, fresh) {
  const keyOf = (item) => item?.id ?? item?.name;
  const known = fresh.length && keyOf(fresh[0]) !== undefined ? new Map(old.map((item) => [keyOf(item), item])) : null;
  let isSame = old.length === fresh.length;
  const found = fresh.map((item, index) => {
    const one = kept(known ? known.get(keyOf(item)) : old[index], item);
    if (one !== old[index]) isSame = false;
    return one;
  });
  return isSame ? old : found;
}

/**
 * An answer after events: its allocations are updated, and those that have left the queue are removed from the waiting.
 * @param {any} data of one allocation, of a list, or of a part of a queue
 * @param {any[]} events in their order
 * @returns {any} `data` itself when the events change nothing in it
 */
export function after(data, events) {
  if (data.status) return events.reduce((view, event) => (event.subject === view.id ? moved(view, event) : view), data);
  const { items } = data;
  const isQueue = data.count !== undefined;
  if (!Array.isArray(items) || !items.length || !(isQueue || items[0].status)) return data;
  const told = new Map();
  for (const event of events) told.set(event.subject, [...(told.get(event.subject) ?? []), event]);
  let isSame = true;
  const found = [];
  for (const item of items) {
    const own = told.get(item.id);
    const one = !own ? item : isQueue ? stillWaiting(item, own.at(-1)) : own.reduce(moved, item);
    if (one !== item) isSame = false;
    if (one) found.push(one);
  }
  if (isSame) return data;
  return isQueue ? { ...data, items: found, count: data.count - (items.length - found.length) } : { ...data, items: found };
}

function stillWaiting(item, event) {
  return event.data.phase === WAITS ? item : null;
}

/**
 * An allocation after an event, with the fields that the event contains; the next answer has the others.
 * @param {any} view
 * @param {any} event
 * @returns {any} `view` itself when the event is not new
 */
export function moved(view, event) {
  const { seq, phase, attempt, reason } = event.data;
  if (seq <= (view.status.seq ?? 0)) return view;
  const isOn = phase === view.phase && attempt === view.attempt;
  const flags = {
    hold: event.data.held ?? view.hold,
    waiting: event.data.waiting ?? (isOn && view.waiting),
    ready: event.type.endsWith(".ready") || (isOn && view.ready),
  };
  const result = event.data.result ?? view.result;
  const status = { ...view.status, seq, phase };
  const ended = phase === OVER ? { endedAt: event.time, reason } : {};
  return { ...view, ...flags, ...ended, phase, attempt, result, status, state: wordOf(phase, result, flags) };
}

function wordOf(phase, result, flags) {
  if (phase === OVER) return result ?? phase;
  return Object.entries(facts.flagWords[phase] ?? {}).find(([flag]) => flags[flag])?.[1] ?? phase;
}
