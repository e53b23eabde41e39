// A list of allocations: a table where there is room, cards on a phone.
import { gpusOf, hasEnded, noteOf, pageOf, rankCount, runningCount } from "./allocation.js";
import { Ago, State } from "./components.js";
import { html, useMemo } from "./runtime.js";

/** The fields of an allocation that a row, its note and the events that change it need. */
export const TABLE_FIELDS = ["id", "name", "workspace", "kind", "phase", "state", "attempt", "queue", "user", "hold", "ready", "waiting", "result", "reason", "message",
  "createdAt", "startedAt", "endedAt", "spec.ranks.count", "spec.ranks.resources", "status.phase", "status.seq", "status.nodes", "status.ranks.phase",
  "status.conditions.type", "status.conditions.status", "status.conditions.reason", "status.conditions.message"].join(",");

/**
 * @param {{items: any[], hasUser?: boolean, label: string}} props
 */
export function AllocationTable({ items, hasUser = false, label }) {
  return html`<table class="list allocations" aria-label=${label}>
    <thead><tr><th>State</th><th class="of-name">Name</th>${hasUser ? html`<th class="of-user">User</th>` : null}<th class="number">Ranks</th>
      <th class="number">GPUs</th><th class="of-queue">Queue</th><th class="since">Since</th><th>Note</th></tr></thead>
    <tbody>${items.map((view) => html`<${Row} key=${view.id} view=${view} hasUser=${hasUser} />`)}</tbody>
  </table>`;
}

// A row whose allocation is the same as before is not made again; its times go on by themselves.
function Row({ view, hasUser }) {
  return useMemo(() => rowOf(view, hasUser), [view, hasUser]);
}

function rowOf(view, hasUser) {
  const all = rankCount(view);
  const note = noteOf(view);
  return html`<tr>
    <td><${State} word=${view.state} /></td>
    <th scope="row" title=${view.name}><a href=${pageOf(view.id)}>${view.name}</a> <small>${view.kind}</small></th>
    ${hasUser ? html`<td data-label="User" title=${view.user}>${view.user}</td>` : null}
    <td class="number" data-label="Ranks">${hasEnded(view) ? all : `${runningCount(view)}/${all}`}</td>
    <td class="number" data-label="GPUs">${gpusOf(view) || html`<span class="soft">–</span>`}</td>
    <td data-label="Queue" title=${view.queue}><a class="plain" href=${`/queues/${encodeURIComponent(view.queue)}`}>${view.queue}</a></td>
    <td data-label="Since"><${Ago} time=${view.endedAt ?? view.startedAt ?? view.createdAt} /></td>
    <td class="note" title=${note}>${note}</td>
  </tr>`;
}
