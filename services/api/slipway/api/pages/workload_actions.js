// The actions for one workload: open, hold, change the priority, preempt, launch again, kill.
import { Action } from "./action.js";
import { apiPathOf, hasEnded, isOpenable, rankCount } from "./allocation.js";
import { call } from "./api.js";
import { Field } from "./components.js";
import { facts } from "./facts.js";
import { mayChange } from "./permissions.js";
import { html, useSignal } from "./runtime.js";

const [WAITS] = facts.phases;
const ENDING = facts.phases.at(-2);
const PRIORITY_MAX = 1000;

/**
 * @param {{view: any, reload: () => void}} props
 */
export function WorkloadActions({ view, reload }) {
  const send = (verb, body = {}) => async () => {
    await call("POST", `${apiPathOf(view.id)}/${verb}`, { body });
    reload();
  };
  const isOver = hasEnded(view);
  const waits = view.phase === WAITS;
  const isEnding = view.phase === ENDING || (view.desired === "Stopped" && !isOver);
  const isMine = mayChange(view) && !isOver;
  return html`<div class="actions">
    ${isOpenable(view) ? html`<a class="button primary" href=${view.links.proxy} target="_blank" rel="noopener">Open</a>` : null}
    ${isMine && view.hold ? html`<${Action} label="Resume" send=${send("resume")} />` : null}
    ${isMine && waits && !view.hold ? html`<${Action} label="Hold" title=${`Hold ${view.name}?`} isDanger=${false} send=${send("hold")}>
      <p>It does not start until a user resumes it.</p><//>` : null}
    ${isMine && !isEnding ? html`<${Priority} view=${view} reload=${reload} />` : null}
    ${isMine && !waits && !isEnding && view.spec.preemptible ? html`<${Action} label="Preempt" title=${`Preempt ${view.name}?`} isDanger=${true} no="Let it run" send=${send("preempt")}>
      <p>Its ranks are asked to save their work and end. It then waits in its queue, and continues from its saved work.</p><//>` : null}
    <a class="button" href=${view.links.trace}>Trace</a>
    <a class="button" href=${`/launch?from=${encodeURIComponent(view.id)}`}>Launch again</a>
    ${isMine ? html`<${Action} key=${isEnding} label=${isEnding ? "Kill at once" : "Kill"} title=${`Kill ${view.name}?`} isDanger=${true} no="Keep it" send=${send("kill", isEnding ? { force: true } : {})}>
      <p>${whatKillMeans(view, isEnding)}</p><//>` : null}
  </div>`;
}

function whatKillMeans(view, isEnding) {
  if (isEnding) return "Its pods are killed at once, without time to save their work.";
  if (view.phase === WAITS) return "It leaves its queue. None of its ranks has started.";
  const ranks = rankCount(view);
  return `${ranks === 1 ? "Its rank gets" : `Its ${ranks} ranks get`} a signal, and some time to end. Work that is not saved by then is lost.`;
}

function Priority({ view, reload }) {
  const text = useSignal("");
  const isGood = /^\d+$/.test(text.value) && Number(text.value) <= PRIORITY_MAX;
  const send = async () => {
    await call("POST", `${apiPathOf(view.id)}/priority`, { body: { priority: Number(text.value) } });
    reload();
  };
  return html`<${Action} label="Priority" title=${`Priority of ${view.name}`} verb="Change" isGood=${isGood && Number(text.value) !== view.priority} onOpen=${() => (text.value = String(view.priority))} send=${send}>
    <${Field} name="priority" label="Priority" hint="0 to 1000; higher goes first" error=${isGood ? "" : "Write a whole number from 0 to 1000."}><input id="field-priority" autofocus inputmode="numeric"
      value=${text.value} aria-invalid=${String(!isGood)} aria-describedby="about-priority" onInput=${(event) => (text.value = event.target.value.trim())} /><//><//>`;
}
