// Why an allocation waits: the reason, the work ahead of it, the work that occupies what it needs, changes that would
// help, and its likely start.
import { apiPathOf, pageOf, spaced } from "./allocation.js";
import { Ago, Answered } from "./components.js";
import { plural, sentence } from "./format.js";
import { html } from "./runtime.js";
import { useResource } from "./store.js";
import { Unblock } from "./unblock.js";

/** @param {{id: string, workspace: string}} props */
export function Explanation({ id, workspace }) {
  const answer = useResource(`${apiPathOf(id)}/explain?foresee=true`, { isSlow: true });
  return html`<${Answered} answer=${answer} what="the explanation" rows=${3}>${(found) => html`<div class="explanation">
    ${found.code ? html`<p><span class="chip">${spaced(found.code)}</span> ${sentence(found.message)}.</p>` : html`<p>${sentence(found.message)}.</p>`}
    <dl>
      ${found.position ? html`<dt>Place</dt><dd>${ordinal(found)} in queue <a href=${`/queues/${encodeURIComponent(found.queue)}`}>${found.queue}</a>${aheadOf(found)}</dd>` : null}
      ${smallest(found, id, workspace, answer.reload)}
      ${foreseenStart(found)}
      ${found.holders.length ? html`<dt>In use by</dt><dd>${found.holders.map((holder, index) => html`${index ? ", " : ""}<a
        href=${pageOf(holder.id)}>${holder.id}</a> of ${holder.user} (${holder.slots ? plural(holder.slots, "GPU") : "no GPU"}, <${Ago} time=${holder.since} />)`)}${found.othersHolding ? ` and ${found.othersHolding} more` : ""}</dd>` : null}
    </dl>
  </div>`}<//>`;
}

function ordinal(found) {
  return found.position === 1 ? "First" : `Number ${found.position}`;
}

function aheadOf(found) {
  if (!found.ahead) return null;
  const slots = found.foreseen?.aheadSlots;
  return html`, behind ${found.jobsAhead.map((id, index) => html`${index ? ", " : ""}<a href=${pageOf(id)}>${id}</a>`)}${found.ahead > found.jobsAhead.length
    ? ` and ${found.ahead - found.jobsAhead.length} more` : ""}${slots ? ` (${plural(slots, "GPU")} ahead)` : ""}`;
}

function smallest(found, id, workspace, reload) {
  const helps = found.foreseen?.helps ?? [];
  // The general advice of the API may repeat the smallest change.
  const isSaid = (line) => helps.some((help) => line.toLowerCase().startsWith(help.toLowerCase()));
  const general = found.change.map((change) => change.detail).filter((line) => !isSaid(line));
  const lines = helps.length ? [helps.join(" and "), ...general] : general;
  if (!lines.length) return null;
  return html`<dt>${helps.length ? "Smallest change" : "What helps"}</dt><dd>${lines.map((line) => html`<div>${sentence(line)}</div>`)}
    ${found.foreseen?.change.length ? html`<div class="actions"><${Unblock} id=${id} workspace=${workspace} change=${found.foreseen.change} onDone=${reload} /></div>` : null}</dd>`;
}

function foreseenStart(found) {
  const { earliest, latest, likely, likelyUnknown } = found.foreseen?.estimatedStart ?? {};
  if (!latest && !earliest) return null;
  return html`${likelyStart(likely, likelyUnknown)}<dt>Estimated start</dt><dd>${latest ? html`<${Ago} time=${latest} /> at the latest` : html`not before <${Ago} time=${earliest} />`}</dd>`;
}

function likelyStart(likely, unknown) {
  if (!likely) return unknown ? html`<dt>Likely start</dt><dd>Unknown: ${unknown}</dd>` : null;
  return html`<dt>Likely start</dt><dd>${likely.latest
    ? html`<${Ago} time=${likely.earliest} /> to <${Ago} time=${likely.latest} />`
    : html`<${Ago} time=${likely.earliest} /> or later`}</dd>`;
}
