// The waiting allocations of a queue, in order: only those near the window are read and drawn, however many wait.
import { apiPathOf, pageOf, spaced } from "./allocation.js";
import { call } from "./api.js";
import { Answered, Empty, Lasted } from "./components.js";
import { Explanation } from "./explanation.js";
import { mayChange } from "./permissions.js";
import { param, setParam } from "./router.js";
import { html, useEffect, useMemo, useRef, useSignal } from "./runtime.js";
import { useResource } from "./store.js";
import { useVirtualRows } from "./virtual_rows.js";

const STEP = 100;
const FIRST = 50;
const SETTLED_MS = 120;
const ROW_PX = 34;
const CARD_PX = 92;

/**
 * The path of a queue's waiting list in the API.
 * @param {string} name
 * @param {string} words of a search
 * @returns {string}
 */
export function waitingPath(name, words) {
  return `/queues/${encodeURIComponent(name)}/waiting?search=${encodeURIComponent(words.trim())}`;
}

/**
 * The part of the list to read when the rows from `first` to `last` are visible. It includes some rows before and behind,
 * so that scrolling finds rows, and it moves in steps, so that most scrolls read the same part.
 * @param {number} first 0 for the first place
 * @param {number} last
 * @returns {{from: number, limit: number}} `from` 1 for the first place
 */
export function windowOf(first, last) {
  if (last < FIRST) return { from: 1, limit: FIRST };
  const begin = Math.max(0, Math.floor((first - STEP / 2) / STEP) * STEP);
  const end = Math.ceil((last + STEP / 2) / STEP) * STEP;
  return { from: begin + 1, limit: Math.min(end - begin, 5 * STEP) };
}

/**
 * @param {{name: string, words: string, selected: Map<string, any>, onSelect: (each: any, isIn: boolean) => void,
 *   onAnswer: (found: any, reload: () => void) => void}} props `words`: of the filter; `selected`: {id: allocation}
 */
export function WaitingList({ name, words, selected, onSelect, onAnswer }) {
  const near = useSignal({ from: 1, limit: FIRST });
  const list = useRef(null);
  const kept = useRef(/** @type {any} */ (null));
  const chosen = param("why");
  const answer = useResource(`${waitingPath(name, words)}&from=${near.value.from}&limit=${near.value.limit}`);
  // While another part is read, the previous part stays visible.
  if (answer.data) kept.current = answer.data;
  const { items, first, count } = kept.current ?? { items: [], first: 1, count: 0 };
  const itemAt = (/** @type {number} */ index) => items[index - first + 1];
  const isPhone = matchMedia("(max-width: 48rem)").matches;
  const rows = useVirtualRows({ count, height: isPhone ? CARD_PX : ROW_PX, keyOf: (index) => itemAt(index)?.id ?? index, list });
  const seenFrom = rows.indexes[0] ?? 0;
  const seenTo = rows.indexes.at(-1) ?? 0;
  useEffect(() => {
    const wanted = windowOf(seenFrom, seenTo);
    if (wanted.from === near.peek().from && wanted.limit === near.peek().limit) return undefined;
    // Rows that only pass by during a fast scroll are not read.
    const timer = setTimeout(() => (near.value = wanted), rows.isScrolling ? SETTLED_MS : 0);
    return () => clearTimeout(timer);
  }, [seenFrom, seenTo]);
  useEffect(() => {
    if (answer.data) onAnswer(answer.data, answer.reload);
  }, [answer.data]);
  const hasCount = count > 0;
  useEffect(() => {
    if (chosen && hasCount && !words) toChosen(chosen, name, rows.goTo);
  }, [hasCount]);
  if (!kept.current) return html`<${Answered} answer=${answer} what=${`the workloads that wait in ${name}`} rows=${4}>${() => null}<//>`;
  if (!count) {
    return words.trim() ? html`<${Empty} title="No workload matches">No workload that waits in ${name} has these words in its name, user or reason.<//>`
      : html`<${Empty} title="No workload waits here">A workload that is launched into this queue starts as soon as it fits.<//>`;
  }
  return html`${answer.error ? html`<${Answered} answer=${{ data: null, error: answer.error }} what=${`the workloads that wait in ${name}`}>${() => null}<//>` : null}
    <table class="list waiting" aria-label=${`Waiting in ${name}`} aria-rowcount=${count + 1}>
    <thead><tr aria-rowindex="1"><th class="place">Place</th><th class="of-name">Name</th><th class="of-user">User</th><th class="number">GPUs</th><th class="number ahead">GPUs ahead</th>
      <th class="number priority">Priority</th><th class="since">Waits</th><th>Why</th></tr></thead>
    <tbody ref=${list} class="room" style=${{ blockSize: `${rows.before}px` }} aria-hidden="true"></tbody>
    ${rows.indexes.map((index) => {
      const each = itemAt(index);
      return html`<tbody key=${each?.id ?? index} data-index=${index} ref=${rows.measure}>${each
        ? html`<${WaitingRow} each=${each} index=${index} isOpen=${chosen === each.id} isSelected=${selected.has(each.id)} onSelect=${onSelect} />`
        : html`<tr class="loading-row" aria-rowindex=${index + 2}><td class="place">${index + 1}</td><td colspan="7" class="soft">Loading</td></tr>`}</tbody>`;
    })}
    <tbody class="room" style=${{ blockSize: `${Math.max(0, rows.after)}px` }} aria-hidden="true"></tbody></table>`;
}

// The address of the page opens one allocation: scroll to its row.
async function toChosen(id, name, goTo) {
  const found = await call("GET", `${apiPathOf(id)}/explain`).catch(() => null);
  if (found?.queue === name && found.position > FIRST / 2) goTo(found.position - 1);
}

// A row that has not changed is not rendered again; its times update by themselves.
function WaitingRow(props) {
  const { each, index, isOpen, isSelected } = props;
  return useMemo(() => waitingRowOf(props), [each, index, isOpen, isSelected, mayChange(each)]);
}

function waitingRowOf({ each, index, isOpen, isSelected, onSelect }) {
  const toggle = () => setParam("why", isOpen ? "" : each.id);
  return html`<tr class="${isOpen ? "open" : ""} ${isSelected ? "chosen" : ""}" aria-rowindex=${index + 2}>
      <td class="place" data-label="Place">${mayChange(each) ? html`<label><input type="checkbox" aria-label=${`${each.position}, select ${each.name}`} checked=${isSelected}
        onChange=${(event) => onSelect(each, event.target.checked)} />${each.position}</label>` : each.position}</td>
      <th scope="row" title=${each.name}><a href=${pageOf(each.id)}>${each.name}</a> <small>${each.kind}</small></th>
      <td data-label="User" title=${each.user}>${each.user}</td>
      <td class="number" data-label="GPUs">${each.slots || html`<span class="soft">–</span>`}</td>
      <td class="number" data-label="GPUs ahead" title="GPUs that the workloads before it request">${each.slotsAhead ?? 0}</td>
      <td class="number" data-label="Priority">${each.priority}</td>
      <td data-label="Waits"><${Lasted} from=${each.since} /></td>
      <td class="why"><button type="button" class="chip" aria-expanded=${String(isOpen)} onClick=${toggle}>${spaced(each.code)}</button>
        <span class="soft">${each.message}</span></td>
    </tr>
    ${isOpen ? html`<tr class="detail"><td colspan="8"><${Explanation} id=${each.id} workspace=${each.workspace} /></td></tr>` : null}`;
}
