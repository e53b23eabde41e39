// Values that pages show, derived from the API's view of one allocation. Pure.
import { facts } from "./facts.js";

/**
 * The address of an allocation's page.
 * @param {string} id
 * @returns {string}
 */
export function pageOf(id) {
  return `/w/${encodeURIComponent(id)}`;
}

/**
 * The path of an allocation in the API.
 * @param {string} id
 * @returns {string}
 */
export function apiPathOf(id) {
  return `/allocations/${encodeURIComponent(id)}`;
}

/**
 * Number of ranks that an allocation requests.
 * @param {any} view
 * @returns {number}
 */
export function rankCount(view) {
  return (view.spec.ranks ?? []).reduce((sum, role) => sum + (role.count ?? 1), 0) || 1;
}

/**
 * Number of its ranks that run.
 * @param {any} view
 * @returns {number}
 */
export function runningCount(view) {
  return (view.status.ranks ?? []).filter((rank) => rank.phase === "Running").length;
}

/**
 * Number of GPUs that all its ranks request together; a part or a slice of a GPU is a fraction.
 * @param {any} view
 * @returns {number}
 */
export function gpusOf(view) {
  return view.gpus ?? 0;
}

/**
 * Whether the allocation has ended.
 * @param {any} view
 * @returns {boolean}
 */
export function hasEnded(view) {
  return view.phase === facts.phases.at(-1);
}

/**
 * The gate that the allocation waits for, as the scheduler wrote it; null when it does not wait.
 * @param {any} view
 * @returns {{code: string, message: string} | null}
 */
export function gateOf(view) {
  if (view.phase !== facts.phases[0]) return null;
  const found = (view.status.conditions ?? []).find((each) => each.type === "Admitted" && each.status === "False");
  return found ? { code: found.reason, message: found.message ?? "" } : null;
}

/**
 * A code as separate words: `WaitingForQuota` becomes `Waiting for quota`.
 * @param {string} code
 * @returns {string}
 */
export function spaced(code) {
  return code.replace(/(?<=[a-z])(?=[A-Z])/g, " ").replace(/ (\w)(?=[a-z])/g, (_, letter) => ` ${letter.toLowerCase()}`);
}

/**
 * A short note about the allocation for its row in a list.
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
 * Whether the allocation has a service that a browser can open.
 * @param {any} view
 * @returns {boolean}
 */
export function isOpenable(view) {
  const serves = ["notebook", "tensorboard", "shell"].includes(view.kind) || (view.spec.ports ?? []).length > 0;
  return serves && !hasEnded(view);
}
