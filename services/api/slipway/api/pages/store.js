// The one store: the viewer, the connection, the time, and the answers of the API. Events of the firehose trigger reloads.
import { after, kept } from "./answers.js";
import { Refusal, call, follow } from "./api.js";
import { batch, signal, useEffect, useSignal } from "./runtime.js";

// The first event after a quiet time is applied at once. Events that follow within this time are applied together, so that
// many events cause one update of the page.
const TOGETHER_MS = 50;
// Resources with `isAside` are reloaded later than those that show the event itself.
const LATER_MS = 400;
// A resource that an event could not update is reloaded at once, up to `AT_ONCE` times in a row. After that it is reloaded
// once per gap, and less often if its calls take long. A resource that the event has already updated is only completed by
// a reload: that reload waits for the gap, and does not reduce the number of reloads at once.
const AT_ONCE = 6;
const QUICK_MS = 100;
const GAP_MS = 1000;
const SLOW_GAP_MS = 5000;
const IDLE_PART = 4;
const SINCE_MAX = 5000;
const AWAY_MS = 5000;
const SLOW_MS = 30000;

/** @type {import("@preact/signals").Signal<any>} The viewer, from GET /me. */
export const me = signal(null);
/** `connecting`, `live`, `slow` (no stream of events: all is reloaded every few seconds), `offline`, or `login`. */
export const connection = signal("connecting");
/** The current time in milliseconds, updated each second. */
export const now = signal(Date.now());

/** @type {Set<Resource>} */
const resources = new Set();

/** Start the clock and the stream of events, and read the viewer. */
export function start() {
  setInterval(() => (now.value = Date.now()), 1000);
  setInterval(() => connection.value !== "live" && !document.hidden && reloadAll(), AWAY_MS);
  document.addEventListener("visibilitychange", () => document.hidden || (now.value = Date.now()));
  learnMe();
  listen();
}

async function learnMe() {
  try {
    me.value = await call("GET", "/me");
  } catch (error) {
    note(error);
    setTimeout(learnMe, AWAY_MS);
  }
}

/** @type {any[]} */
let heard = [];

let isGathering = false;

// Events are applied to the answers at once; then the answers that they are about are reloaded.
function hear(items) {
  for (const item of items) heard.push(item.data);
  if (!isGathering) tell();
}

function tell() {
  const events = heard;
  heard = [];
  isGathering = events.length > 0;
  if (!isGathering) return;
  setTimeout(tell, TOGETHER_MS);
  batch(() => resources.forEach((resource) => resource.hear(events)));
}

let isStreaming = false;

function listen() {
  follow("/events", {
    signal: new AbortController().signal,
    onOpen() {
      isStreaming = true;
      connection.value = "live";
      reloadAll();
    },
    onItems: hear,
    onLost: (refusal) => {
      isStreaming = false;
      note(refusal.status === 0 ? refusal : new Refusal(refusal.status === 401 ? 401 : 503, {}));
    },
  });
}

/**
 * Update the state of the connection from an error.
 * @param {unknown} error
 */
function note(error) {
  if (!(error instanceof Refusal)) return;
  if (error.status === 401) connection.value = "login";
  else if (error.status === 0) connection.value = "offline";
  else if (connection.value !== "live") connection.value = "slow";
  else if (error.status === 503) connection.value = "slow";
}

/** Reload all resources of the page. */
export function reloadAll() {
  for (const resource of resources) resource.ask();
}

/** One address of the API, and its last answer. */
class Resource {
  /**
   * @param {string} path
   * @param {import("@preact/signals").Signal<Answer>} answer
   * @param {(event: any) => boolean} isAbout
   * @param {boolean} isSlow also changes without an event
   * @param {boolean} isAside is secondary on its page: after an event, other resources are reloaded first
   */
  constructor(path, answer, isAbout, isSlow, isAside) {
    this.path = path;
    this.answer = answer;
    this.isAbout = isAbout;
    this.isAside = isAside;
    this.aborter = new AbortController();
    this.isAsking = false;
    this.isAskedAgain = false;
    this.gap = isSlow ? SLOW_GAP_MS : GAP_MS;
    this.credit = AT_ONCE;
    this.isHurried = true;
    this.askedAt = 0;
    this.endedAt = 0;
    this.heardAt = 0;
    this.timer = 0;
    this.dueAt = 0;
    /** @type {any[]} events since the last call began: its answer may be older than they are */
    this.since = [];
    this.slow = isSlow ? setInterval(() => document.hidden || this.ask(), SLOW_MS) : 0;
    resources.add(this);
    this.ask();
  }

  /**
   * Reload as soon as the limits allow.
   * @param {number} [least] the least delay in milliseconds, for a reload that is not urgent
   */
  ask(least = 0) {
    if (this.isAsking) {
      this.isAskedAgain = true;
      return;
    }
    const wait = Math.max(least, this.pause(least === 0));
    const dueAt = Date.now() + wait;
    if (this.timer && this.dueAt <= dueAt) return;
    clearTimeout(this.timer);
    this.dueAt = dueAt;
    this.isHurried = least === 0;
    this.timer = setTimeout(() => this.load(), wait);
  }

  // How long until the next reload is allowed, in milliseconds.
  pause(isHurried) {
    const now = Date.now();
    const credit = this.creditAt(now);
    const turn = !isHurried ? this.endedAt + this.gap : credit >= 1 ? this.endedAt + QUICK_MS : now + (1 - credit) * this.gap;
    return Math.max(0, turn - now, this.endedAt + IDLE_PART * (this.endedAt - this.askedAt) - now);
  }

  creditAt(now) {
    return Math.min(AT_ONCE, this.credit + (now - this.askedAt) / this.gap);
  }

  /**
   * Apply events, and reload.
   * @param {any[]} events
   */
  hear(events) {
    const about = events.filter(this.isAbout);
    if (!about.length) return;
    if (this.isAsking) this.since = [...this.since, ...about].slice(-SINCE_MAX);
    const { data, error } = this.answer.peek();
    const moved = data && after(data, about);
    if (moved !== data) this.answer.value = { data: moved, error };
    this.heardAt = Date.now();
    // An updated answer only needs its other fields, so its reload can wait; an answer without the object cannot.
    this.ask(moved !== data ? GAP_MS : this.isAside ? LATER_MS : 0);
  }

  async load() {
    this.timer = 0;
    this.isAsking = true;
    this.isAskedAgain = false;
    this.since = [];
    const began = Date.now();
    this.credit = this.creditAt(began) - (this.isHurried ? 1 : 0);
    this.askedAt = began;
    try {
      const told = await call("GET", this.path, { signal: this.aborter.signal });
      const fresh = this.since.length && told ? after(told, this.since) : told;
      const { data, error } = this.answer.peek();
      const now = kept(data, fresh);
      if (now !== data || error) this.answer.value = { data: now, error: null };
      if (connection.value === "offline" || connection.value === "login") connection.value = isStreaming ? "live" : "slow";
    } catch (error) {
      if (this.aborter.signal.aborted) return;
      note(error);
      // The last data stay while the API does not answer; they are removed when the API refuses the call.
      const isLost = error instanceof Refusal && (error.status === 0 || error.status >= 500);
      this.answer.value = { data: isLost ? this.answer.peek().data : null, error };
    }
    this.isAsking = false;
    this.endedAt = Date.now();
    if (this.isAskedAgain) this.ask();
    else if (this.heardAt && began - this.heardAt < LATER_MS) {
      // Another replica of the api may have answered before the event reached it.
      this.heardAt = 0;
      this.ask(GAP_MS);
    }
  }

  close() {
    resources.delete(this);
    clearInterval(this.slow);
    clearTimeout(this.timer);
    this.aborter.abort();
  }
}

/**
 * @typedef {{data: any, error: any}} Answer `data` is null before the first answer
 */

/**
 * The answer of an address of the API, kept up to date while the component is mounted. An empty path makes no call.
 * @param {string} path below /api/v1
 * @param {{isAbout?: (event: any) => boolean, isSlow?: boolean, isAside?: boolean}} [options] `isAbout`: the events that
 *   change it (default: all); `isSlow`: it also changes without events; `isAside`: it is secondary on its page
 * @returns {Answer & {reload: () => void}}
 */
export function useResource(path, { isAbout = () => true, isSlow = false, isAside = false } = {}) {
  const answer = useSignal({ data: null, error: null, path });
  const holder = useSignal(null);
  useEffect(() => {
    if (!path) return undefined;
    answer.value = { data: null, error: null, path };
    const resource = new Resource(path, answer, isAbout, isSlow, isAside);
    holder.value = resource;
    return () => resource.close();
  }, [path]);
  return { ...answer.value, reload: () => holder.peek()?.ask() };
}
