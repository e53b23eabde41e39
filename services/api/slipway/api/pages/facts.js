// What the API has told with the page: its own tables of words. Nothing of them is written a second time here.

/**
 * @typedef {{tone: string, meaning: string}} Standing
 * @typedef {{version: string, phases: string[], states: Record<string, Standing>, rankStates: Record<string, Standing>,
 *   jobStates: Record<string, Standing>, kinds: string[], gates: string[], events: string[], results: string[], gpu: string, gpuNames: string[],
 *   flagWords: Record<string, Record<string, string>>}} Facts `flagWords`: {phase: {flag: the word that it makes}}
 */

/** @type {Facts} */
export const facts = JSON.parse(document.getElementById("facts").textContent);

/**
 * What kind of news a state is.
 * @param {string} state
 * @param {"states" | "rankStates" | "jobStates"} [of] the table: of allocations, of ranks, of jobs
 * @returns {string}
 */
export function toneOf(state, of = "states") {
  return facts[of][state]?.tone ?? "neutral";
}

/**
 * What a state means, in a sentence; empty for a word that the API has not explained.
 * @param {string} state
 * @param {"states" | "rankStates" | "jobStates"} [of]
 * @returns {string}
 */
export function meaningOf(state, of = "states") {
  return facts[of][state]?.meaning ?? "";
}
