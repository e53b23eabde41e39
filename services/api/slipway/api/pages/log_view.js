// The log of an allocation: only the visible lines are drawn, however many there are.
import { plainText, styledRuns } from "./ansi.js";
import { Copy, Empty, Failure, Loading } from "./components.js";
import { plural, spellClock, spellExact } from "./format.js";
import { LogSelection, patternOf } from "./log_book.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useSignal } from "./runtime.js";

const ROW_PX = 20;
const BEYOND = 20;
const STATES = { loading: "Loading", following: "Following", lost: "Connection lost; trying again", refused: "Not shown further", ended: "Complete" };

/**
 * @param {{book: import("./log_book.js").LogBook, ranks: number, containers: string[], container: string,
 *   onContainer: (name: string) => void, rawHref: string, outsideHref?: string | null}} props
 */
export function LogView({ book, ranks, containers, container, onContainer, rawHref, outsideHref }) {
  const search = useSignal("");
  const rank = useSignal("");
  const hasTimes = useSignal(false);
  const chosen = useSignal(null);
  const selection = useMemo(() => new LogSelection(), [book]);
  const version = book.version.value;
  useEffect(() => {
    if (book.state.value !== "loading") book.fill();
  }, [book, book.state.value]);
  const lines = selection.of(book.lines, { search: search.value, rank: rank.value });
  const refusal = book.state.value === "refused" ? book.error.value : null;
  if (refusal?.status === 403) return html`<${Failure} error=${refusal} what="its log" />`;
  const counted = search.value || rank.value ? `${selection.printed.toLocaleString("en")} of ${plural(book.printed, "line")}` : plural(book.printed, "line");
  const filling = book.earlier.value >= 0 ? ` · reading earlier lines: ${book.earlier.value.toLocaleString("en")}` : "";
  return html`<section class="log" aria-label="Log">
    <div class="bar">
      <input type="search" placeholder="Search the log" aria-label="Search the log" value=${search.value}
        onInput=${(event) => (search.value = event.target.value)} />
      ${ranks > 1 ? html`<label>Rank <select value=${rank.value} onChange=${(event) => (rank.value = event.target.value)}>
        <option value="">all ${ranks}</option>
        ${Array.from({ length: ranks }, (_, each) => html`<option key=${each} value=${String(each)}>${each}</option>`)}
      </select></label>` : null}
      ${containers.length > 1 ? html`<label>Container <select value=${container}
        onChange=${(event) => onContainer(event.target.value)}>
        ${containers.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>` : null}
      <label><input type="checkbox" checked=${hasTimes.value} onChange=${(event) => (hasTimes.value = event.target.checked)} /> Times</label>
      <span class="soft" role="status">${counted} · ${STATES[book.state.value]}${filling}</span>
      <a href=${rawHref} target="_blank" rel="noopener">Raw</a>
      ${outsideHref ? html`<a href=${outsideHref} target="_blank" rel="noopener noreferrer">Logs of the cluster</a>` : null}
    </div>
    ${lines.length ? html`<${Lines} lines=${lines} version=${version} ranks=${ranks} hasTimes=${hasTimes.value}
        search=${search.value} isLive=${book.state.value === "following"} chosen=${chosen} />`
      : book.state.value === "loading" ? html`<${Loading} rows=${6} label="Loading the log" />`
      : refusal ? null : html`<${Empty} title=${search.value || rank.value ? "No line matches" : "No output yet"}>
          ${search.value || rank.value ? "Search for something else, or for all ranks." : "New lines appear here at once."}<//>`}
    ${refusal ? html`<${Failure} error=${refusal} what="its log" />` : null}
    ${chosen.value ? html`<${Chosen} line=${chosen.value} onClose=${() => (chosen.value = null)} />` : null}
  </section>`;
}

function Lines({ lines, version, ranks, hasTimes, search, isLive, chosen }) {
  const box = useRef(null);
  const top = useSignal(0);
  const height = useSignal(600);
  const isAtEnd = useSignal(true);
  const row = matchMedia("(pointer: coarse)").matches ? 24 : ROW_PX;
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => (height.value = box.current?.clientHeight ?? 600));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (isAtEnd.value) box.current.scrollTop = lines.length * row;
  }, [version, lines.length, isAtEnd.value]);
  const onScroll = () => {
    const { scrollTop, clientHeight, scrollHeight } = box.current;
    top.value = scrollTop;
    isAtEnd.value = scrollTop + clientHeight >= scrollHeight - row;
  };
  const first = Math.max(0, Math.min(Math.floor(top.value / row), lines.length - Math.floor(height.value / row)) - BEYOND);
  const last = Math.min(lines.length, first + Math.ceil(height.value / row) + 2 * BEYOND);
  const pattern = search ? patternOf(search) : null;
  return html`<div class="window">
    <div class="lines" ref=${box} onScroll=${onScroll} role="log" aria-live="off" tabindex="0" aria-label="Lines of the log">
      <div class="whole" style=${{ blockSize: `${lines.length * row}px` }}>
        <ol style=${{ transform: `translateY(${first * row}px)` }} start=${first + 1}>
          ${lines.slice(first, last).map((line, index) => html`<${Line} key=${first + index} line=${line} hasRank=${ranks > 1}
            hasTime=${hasTimes} pattern=${pattern} isChosen=${line === chosen.value} onChoose=${() => (chosen.value = line)} />`)}
        </ol>
      </div>
    </div>
    ${isAtEnd.value ? null : html`<button class="to-end" type="button" onClick=${() => (isAtEnd.value = true)}>
      ${isLive ? "Follow" : "To the end"} ↓</button>`}
  </div>`;
}

function Line({ line, hasRank, hasTime, pattern, isChosen, onChoose }) {
  if (line.missing) {
    return html`<li class="hole" role="note">${hasRank ? `rank ${line.rank}: ` : ""}${plural(line.missing, "line")} missing here
      ${line.text ? html` · ${line.text}` : null}</li>`;
  }
  const kind = line.stream === "event" ? "event" : "";
  return html`<li class="${kind} ${isChosen ? "chosen" : ""}" onClick=${onChoose}>
    ${hasTime ? html`<time title=${spellExact(line.time)}>${spellClock(line.time)}</time>` : null}
    ${hasRank ? html`<b class="rank c${line.rank % 10}">${line.rank}</b>` : null}
    <span class="text">${pattern ? marked(plainText(line.text), pattern) : coloured(line.text)}</span>
  </li>`;
}

function coloured(text) {
  return styledRuns(text).map((run) => (run.classes || run.color || run.background
    ? html`<span class=${run.classes} style=${run.color || run.background ? { color: run.color, background: run.background } : undefined}>${run.text}</span>`
    : run.text));
}

function marked(text, pattern) {
  const found = pattern.exec(text);
  if (!found || !found[0]) return text;
  const end = found.index + found[0].length;
  return [text.slice(0, found.index), html`<mark>${found[0]}</mark>`, text.slice(end)];
}

function Chosen({ line, onClose }) {
  return html`<aside class="chosen-line" aria-label="The chosen line">
    <p class="soft">rank ${line.rank} · attempt ${line.attempt} · ${spellExact(line.time)}
      <${Copy} text=${plainText(line.text)} what="the line" /> <button class="quiet" type="button" onClick=${onClose}>Close</button></p>
    <pre>${plainText(line.text)}</pre>
  </aside>`;
}

