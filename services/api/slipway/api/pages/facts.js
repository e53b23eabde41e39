// The API's own tables of words, which it sends with the page, so that no word is defined a second time here.

/**
 * @typedef {{tone: string, meaning: string}} Standing
 * @typedef {{version: string, phases: string[], states: Record<string, Standing>, rankStates: Record<string, Standing>,
 *   jobStates: Record<string, Standing>, kinds: string[], gates: string[], events: string[], results: string[], gpu: string, gpuNames: string[],
 *   flagWords: Record<string, Record<string, string>>}} Facts `flagWords`: {phase: {flag: the word that it makes}}
 */

/** @type {Facts} */
export const facts = JSON.parse(document.getElementById("facts").textContent);

/**
 * The tone of a state: good, bad and so on.
 * @param {string} state
 * @param {"states" | "rankStates" | "jobStates"} [of] the table: of allocations, of ranks, of jobs
 * @returns {string}
 */
export function toneOf(state, of = "states") {
  return facts[of][state]?.tone ?? "neutral";
}

/**
 * The meaning of a state as a sentence; empty for a word that is not in the table.
 * @param {string} state
 * @param {"states" | "rankStates" | "jobStates"} [of]
 * @returns {string}
 */
export function meaningOf(state, of = "states") {
  return facts[of][state]?.meaning ?? "";
}
