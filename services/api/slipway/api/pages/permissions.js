// What the login says the viewer may do. Where it says nothing, buttons are shown, and the API refuses what is not permitted.
import { me } from "./store.js";

const MOVERS = ["editor", "admin"];

/**
 * Whether the viewer may change what is in a workspace.
 * @param {{workspace: string}} each
 * @returns {boolean}
 */
export function mayChange(each) {
  const roles = me.value?.roles ?? {};
  if (!Object.keys(roles).length) return me.value !== null;
  return MOVERS.includes(roles[each.workspace]) || MOVERS.includes(roles["*"]);
}

/**
 * Whether the viewer may do what is for administrators of the cluster.
 * @returns {boolean}
 */
export function mayAdminister() {
  const roles = me.value?.roles ?? {};
  return Object.keys(roles).length ? roles["*"] === "admin" : me.value !== null;
}
