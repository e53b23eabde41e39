// The viewer's permissions, from the roles of the login. Without roles, all buttons are shown, and the API refuses calls
// that are not permitted.
import { me } from "./store.js";

const MOVERS = ["editor", "admin"];

/**
 * Whether the viewer may change objects in a workspace.
 * @param {{workspace: string}} each
 * @returns {boolean}
 */
export function mayChange(each) {
  const roles = me.value?.roles ?? {};
  if (!Object.keys(roles).length) return me.value !== null;
  return MOVERS.includes(roles[each.workspace]) || MOVERS.includes(roles["*"]);
}

/**
 * Whether the viewer may do the actions of cluster administrators.
 * @returns {boolean}
 */
export function mayAdminister() {
  const roles = me.value?.roles ?? {};
  return Object.keys(roles).length ? roles["*"] === "admin" : me.value !== null;
}
