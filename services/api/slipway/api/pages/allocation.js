// What the answers of the API say of one allocation, put in order for reading. Pure.
import { facts } from "./facts.js";

/**
 * Where the page of an allocation is.
 * @param {string} id
 * @returns {string}
 */
export function pageOf(id) {
  return `/w/${encodeURIComponent(id)}`;
}

/**
 * Its path in the API.
 * @param {string} id
 * @returns {string}
 */
export function apiPathOf(id) {
  return `/allocations/${encodeURIComponent(id)}`;
}

/**
 * How many ranks it asks for.
 * @param {any} view
 * @returns {number}
 */
export function rankCount(view) {
  return (view.spec.ranks ?? []).reduce((sum, role) => sum + (role.count ?? 1), 0) || 1;
}

/**
 * How many of its ranks run.
 * @param {any} view
 * @returns {number}
 */
export function runningCount(view) {
  return (view.status.ranks ?? []).filter((rank) => rank.phase === "Running").length;
}

/**
 * How many GPUs all its ranks ask for together; a part or a slice of one counts as that part.
 * @param {any} view
 * @returns {number}
 */
export function gpusOf(view) {
  return view.gpus ?? 0;
}

/**
 * Whether nothing can happen to it any more.
 * @param {any} view
 * @returns {boolean}
 */
export function hasEnded(view) {
  return view.phase === facts.phases.at(-1);
}

/**
 * The gate that keeps it waiting, in the scheduler's words; null when it does not wait.
 * @param {any} view
 * @returns {{code: string, message: string} | null}
 */
export function gateOf(view) {
  if (view.phase !== facts.phases[0]) return null;
  const found = (view.status.conditions ?? []).find((each) => each.type === "Admitted" && each.status === "False");
  return found ? { code: found.reason, message: found.message ?? "" } : null;
}

/**
 * Words run together, apart: `WaitingForQuota` as `waiting for quota`.
 * @param {string} code
 * @returns {string}
 */
export function spaced(code) {
  return code.replace(/(?<=[a-z])(?=[A-Z])/g, " ").replace(/ (\w)(?=[a-z])/g, (_, letter) => ` ${letter.toLowerCase()}`);
}

/**
 * What is worth noting of it in one line of a list.
 * @param {any} view
 * @returns {string}
 */
export function noteOf(view) {
  const gate = gateOf(view);
  if (gate) return gate.message;
  if (hasEnded(view)) return view.message || (view.result === "Succeeded" ? "" : spaced(view.reason));
  return view.status.nodes ?? "";
}

/**
 * Whether a browser can open something of it.
 * @param {any} view
 * @returns {boolean}
 */
export function isOpenable(view) {
  const serves = ["notebook", "tensorboard", "shell"].includes(view.kind) || (view.spec.ports ?? []).length > 0;
  return serves && !hasEnded(view);
}
