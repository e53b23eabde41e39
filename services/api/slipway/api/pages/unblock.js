// A button for the smallest change that lets an allocation start, if the API can make the change and the viewer may.
import { Action } from "./action.js";
import { apiPathOf } from "./allocation.js";
import { call } from "./api.js";
import { plural } from "./format.js";
import { mayChange } from "./permissions.js";
import { html } from "./runtime.js";

/**
 * @typedef {{kind: string, name?: string, slots?: number}} ChangeView one part of a change, from the API
 * @typedef {{label: string, text: string, isPermitted: boolean, send: () => Promise<void>}} Offer
 */

/**
 * @param {{id: string, workspace: string, change: ChangeView[], onDone: () => void}} props
 */
export function Unblock({ id, workspace, change, onDone }) {
  const offer = offerOf(id, workspace, change);
  if (!offer?.isPermitted) return null;
  const send = async () => {
    await offer.send();
    onDone();
  };
  return html`<${Action} label=${offer.label} title=${`${offer.label}?`} verb=${offer.label} isDanger=${false} send=${send}><p>${offer.text}</p><//>`;
}

/**
 * The action of the button; null when the API cannot make a part of the change, such as to free a node, raise a quota, or
 * undo a cordon of kubectl.
 * @param {string} id
 * @param {string} workspace
 * @param {ChangeView[]} change
 * @returns {Offer | null}
 */
export function offerOf(id, workspace, change) {
  if (change.length !== 1) return null;
  const [first] = change;
  if (first.kind === "release") {
    return { label: "Resume it", text: "It is held. Once resumed, it starts as soon as it fits.", isPermitted: mayChange({ workspace }), send: () => call("POST", `${apiPathOf(id)}/resume`, { body: {} }) };
  }
  if (first.kind === "maxSlots") {
    return { label: `Let job ${first.name} have ${plural(first.slots, "GPU")} more`, text: "The limit is raised for all workloads of the job.", isPermitted: mayChange({ workspace }),
      send: () => raise(first.name, workspace, first.slots) };
  }
  return null;
}

async function raise(job, workspace, slots) {
  const path = `/jobs/${encodeURIComponent(job)}?workspace=${encodeURIComponent(workspace)}`;
  const { maxSlots } = await call("GET", path);
  // The limit may have been removed in the meantime; then there is nothing to raise.
  if (typeof maxSlots !== "number") return;
  await call("PATCH", path, { body: { maxSlots: maxSlots + slots } });
}
