// The lines of one log: it reads the last lines first, then the earlier ones, then new lines; each once and in order.
import { plainText } from "./ansi.js";
import { call, follow, isLasting } from "./api.js";
import { batch, signal } from "./runtime.js";

const TAIL = 1000;
const KEPT_MAX = 500000;

/**
 * @typedef {{cursor?: string, attempt: number, rank: number, stream: string, time: string, text: string,
 *   number?: number, missing?: number}} LogLine `missing`: the number of lines that are lost at this place
 */

/** A log that is read while its page is open. */
export class LogBook {
  /**
   * @param {string} path of the log in the API
   * @param {() => boolean} hasEnded whether no more lines will be printed
   */
  constructor(path, hasEnded) {
    this.path = path;
    this.hasEnded = hasEnded;
    /** @type {LogLine[]} */
    this.lines = [];
    /** Number of lines that ranks printed; the other lines are notes about the log. */
    this.printed = 0;
    /** Increases with each group of new lines. */
    this.version = signal(0);
    /** `loading`, `following`, `lost` (and read again soon), `refused` (for good) or `ended` */
    this.state = signal("loading");
    /** Number of earlier lines read so far; -1 when none are being read. */
    this.earlier = signal(-1);
    /** @type {import("@preact/signals").Signal<import("./api.js").Refusal | null>} */
    this.error = signal(null);
    /** @type {Map<number, LogLine>} the last line of each rank */
    this.lastOf = new Map();
    this.isWhole = true;
    this.isFilling = false;
    this.cursor = "";
    this.frame = 0;
    this.aborter = new AbortController();
  }

  /** Read the end of the log, then new lines. */
  async start() {
    const { signal: aborted } = this.aborter;
    try {
      const page = await call("GET", this.with({ tail: TAIL }), { signal: aborted });
      this.cursor = page.metadata.continue;
      // Notes about the end of the log are dropped here: if they are still true, they are sent again after following.
      this.add(this.cursor ? page.items.filter((line) => line.cursor || line.missing) : page.items);
      this.isWhole = page.items.filter((line) => !line.missing).length < TAIL;
    } catch (error) {
      if (aborted.aborted) return;
      if (isLasting(error)) {
        this.error.value = error;
        this.state.value = "refused";
        return;
      }
    }
    await follow(this.with({ follow: true }), {
      after: this.cursor,
      signal: aborted,
      isOver: this.hasEnded,
      onOpen: () => {
        // Lines that are read directly from pods have no cursor, so a new stream begins with the first line again.
        if (!this.cursor) this.reset();
        batch(() => {
          this.state.value = "following";
          this.error.value = null;
        });
      },
      onItems: (items) => {
        this.cursor = items.findLast((item) => item.id)?.id ?? this.cursor;
        this.add(items.map((item) => item.data));
      },
      onLost: (refusal, isForGood) => {
        this.state.value = isForGood ? "refused" : "lost";
        this.error.value = refusal;
        // The server does not know the cursor any more: reading begins again with the first line.
        if (isLasting(refusal)) this.cursor = "";
      },
    });
    if (!aborted.aborted && !this.error.peek()) this.state.value = "ended";
  }

  /** Read the lines before the end, once; they are inserted when all of them have been read. */
  async fill() {
    if (this.isWhole || this.isFilling) return;
    this.isFilling = true;
    const first = this.lines.find((line) => line.cursor)?.cursor;
    /** @type {LogLine[]} */
    let found = [];
    let after = "";
    this.earlier.value = 0;
    try {
      for (;;) {
        const page = await call("GET", this.with(after ? { after } : {}), { signal: this.aborter.signal });
        const end = page.items.findIndex((line) => line.cursor === first);
        found = found.concat(end < 0 ? page.items : page.items.slice(0, end));
        this.earlier.value = found.length;
        const isLast = end >= 0 || !page.items.length || page.metadata.continue === after;
        if (isLast || found.length >= KEPT_MAX) break;
        after = page.metadata.continue;
      }
      const from = this.lines.findIndex((line) => line.cursor === first);
      this.lines = found.concat(from > 0 ? this.lines.slice(from) : this.lines);
      this.printed = this.lines.filter(isPrinted).length;
      this.isWhole = true;
      this.version.value += 1;
    } catch (error) {
      if (this.aborter.signal.aborted) return;
      this.error.value = error;
    }
    this.isFilling = false;
    this.earlier.value = -1;
  }

  /** Stop reading. */
  close() {
    cancelAnimationFrame(this.frame);
    this.aborter.abort();
  }

  reset() {
    this.lines = [];
    this.printed = 0;
    this.lastOf.clear();
    this.isWhole = true;
  }

  /** @param {LogLine[]} lines */
  add(lines) {
    for (const line of lines) {
      this.lines.push(line);
      if (isPrinted(line)) this.printed += 1;
      if (!line.missing) this.lastOf.set(line.rank, line);
    }
    if (this.lines.length > KEPT_MAX * 1.1) {
      this.lines = this.lines.slice(-KEPT_MAX);
      this.printed = this.lines.filter(isPrinted).length;
    }
    // New lines are drawn at most once per frame.
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.version.value += 1;
    });
  }

  with(parameters) {
    const separator = this.path.includes("?") ? "&" : "?";
    return `${this.path}${separator}${new URLSearchParams(parameters)}`;
  }
}

/**
 * The lines that match a search; only new lines are searched again.
 */
export class LogSelection {
  constructor() {
    this.key = "";
    this.lines = null;
    this.seen = 0;
    /** Number of found lines that ranks printed. */
    this.printed = 0;
    /** @type {LogLine[]} */
    this.found = [];
  }

  /**
   * The lines of the wanted rank that contain the wanted text.
   * @param {LogLine[]} lines
   * @param {{search: string, rank: string}} wanted
   * @returns {LogLine[]}
   */
  of(lines, { search, rank }) {
    if (!search && !rank) return lines;
    const key = `${rank} ${search}`;
    if (key !== this.key || lines !== this.lines || lines.length < this.seen) {
      Object.assign(this, { key, lines, seen: 0, printed: 0, found: [] });
    }
    const pattern = patternOf(search);
    for (; this.seen < lines.length; this.seen += 1) {
      const line = lines[this.seen];
      if (rank && String(line.rank) !== rank) continue;
      if (search && !line.missing && !pattern.test(shownText(line.text))) continue;
      this.found.push(line);
      if (isPrinted(line)) this.printed += 1;
    }
    return this.found;
  }
}

// Most lines have no control sequence, and a search reads very many lines.
function shownText(text) {
  return text.includes("\x1b") || text.includes("\r") ? plainText(text) : text;
}

function isPrinted(line) {
  return !line.missing && line.stream !== "event";
}

/**
 * A pattern that finds a text; upper and lower case are equal.
 * @param {string} search
 * @returns {RegExp}
 */
export function patternOf(search) {
  return new RegExp(search.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
}
