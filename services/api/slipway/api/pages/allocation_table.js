// A list of allocations: a table on wide screens, cards on a phone. Only the rows near the window are drawn.
import { gpusOf, hasEnded, noteOf, pageOf, rankCount, runningCount } from "./allocation.js";
import { Ago, State } from "./components.js";
import { html, useMemo, useRef } from "./runtime.js";
import { useVirtualRows } from "./virtual_rows.js";

const ROW_PX = 34;
const CARD_PX = 92;

/** The fields of an allocation that a row, its note and the updates by events need. */
export const TABLE_FIELDS = ["id", "name", "workspace", "kind", "phase", "state", "attempt", "queue", "user", "gpus", "hold", "ready", "waiting", "result", "reason", "message",
  "createdAt", "startedAt", "endedAt", "spec.ranks.count", "status.phase", "status.seq", "status.nodes", "status.ranks.phase",
  "status.conditions.type", "status.conditions.status", "status.conditions.reason", "status.conditions.message"].join(",");

/**
 * @param {{items: any[], hasUser?: boolean, label: string}} props
 */
export function AllocationTable({ items, hasUser = false, label }) {
  const list = useRef(null);
  const isPhone = matchMedia("(max-width: 48rem)").matches;
  const rows = useVirtualRows({ count: items.length, height: isPhone ? CARD_PX : ROW_PX, keyOf: (index) => items[index]?.id ?? index, list });
  const shown = rows.indexes.filter((index) => index < items.length);
  return html`<table class="list allocations" aria-label=${label} aria-rowcount=${items.length + 1}>
    <thead><tr aria-rowindex="1"><th>State</th><th class="of-name">Name</th>${hasUser ? html`<th class="of-user">User</th>` : null}<th class="number">Ranks</th>
      <th class="number">GPUs</th><th class="of-queue">Queue</th><th class="since">Since</th><th>Note</th></tr></thead>
    <tbody ref=${list} class="room" style=${{ blockSize: `${rows.before}px` }} aria-hidden="true"></tbody>
    ${shown.map((index) => html`<tbody key=${items[index].id} data-index=${index} ref=${rows.measure}>
      <${Row} view=${items[index]} hasUser=${hasUser} index=${index} /></tbody>`)}
    <tbody class="room" style=${{ blockSize: `${Math.max(0, rows.after)}px` }} aria-hidden="true"></tbody>
  </table>`;
}

// A row is not rendered again while its allocation is the same object; its times update by themselves.
function Row({ view, hasUser, index }) {
  return useMemo(() => rowOf(view, hasUser, index), [view, hasUser, index]);
}

function rowOf(view, hasUser, index) {
  const all = rankCount(view);
  const note = noteOf(view);
  return html`<tr aria-rowindex=${index + 2}>
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
