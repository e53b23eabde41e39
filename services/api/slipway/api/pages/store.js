// The one store: who looks, the connection, the time, and what the API has answered. The firehose says when to ask again.
import { after, kept } from "./answers.js";
import { Refusal, call, follow } from "./api.js";
import { batch, signal, useEffect, useSignal } from "./runtime.js";

// The first event after a quiet time is taken at once. Those that follow it are taken together, so that many of them are
// one change of the page.
const TOGETHER_MS = 50;
// What stands beside the rest of a page is asked for after what shows the event itself.
const LATER_MS = 400;
// What an event says nothing of is asked for at once, a few times; then so often, and less often what takes long. What is
// shown already, and asked for again for the rest of it, waits its time and takes none of those times away.
const AT_ONCE = 6;
const QUICK_MS = 100;
const GAP_MS = 1000;
const SLOW_GAP_MS = 5000;
const IDLE_PART = 4;
const SINCE_MAX = 5000;
const AWAY_MS = 5000;
const SLOW_MS = 30000;

/** @type {import("@preact/signals").Signal<any>} The caller, as GET /me has it. */
export const me = signal(null);
/** `connecting`, `live`, `slow` (no stream of events: asked again every so often), `offline`, or `login`. */
export const connection = signal("connecting");
/** The time in milliseconds, each second. */
export const now = signal(Date.now());

/** @type {Set<Resource>} */
const resources = new Set();

/** Begin: who looks, the clock, the events. */
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

// What the events say of the answers is shown at once; the answers that they are about are asked for again.
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

function listen() {
  follow("/events", {
    signal: new AbortController().signal,
    onOpen() {
      connection.value = "live";
      reloadAll();
    },
    onItems: hear,
    onLost: (refusal) => note(refusal.status === 0 ? refusal : new Refusal(refusal.status === 401 ? 401 : 503, {})),
  });
}

/**
 * Take from an answer what it says of the connection.
 * @param {unknown} error
 */
function note(error) {
  if (!(error instanceof Refusal)) return;
  if (error.status === 401) connection.value = "login";
  else if (error.status === 0) connection.value = "offline";
  else if (connection.value !== "live") connection.value = "slow";
  else if (error.status === 503) connection.value = "slow";
}

/** Ask for everything on the page again. */
export function reloadAll() {
  for (const resource of resources) resource.ask();
}

/** One address of the API, and what it answered last. */
class Resource {
  /**
   * @param {string} path
   * @param {import("@preact/signals").Signal<Answer>} answer
   * @param {(event: any) => boolean} isAbout
   * @param {boolean} isSlow also changes without an event
   * @param {boolean} isAside is not what a page is about: after an event, the rest is asked for first
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
    /** @type {any[]} what events have said since it was asked for: an answer may have been read before them */
    this.since = [];
    this.slow = isSlow ? setInterval(() => document.hidden || this.ask(), SLOW_MS) : 0;
    resources.add(this);
    this.ask();
  }

  /**
   * Ask again, as soon as it is its turn.
   * @param {number} [least] milliseconds until then, where there is no hurry
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

  // How long until it may be asked again, in milliseconds.
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
   * Take what events say.
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
    // What is shown already needs the rest of it only; what is not in the answer has to be asked for.
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
      if (connection.value === "offline" || connection.value === "login") connection.value = "slow";
    } catch (error) {
      if (this.aborter.signal.aborted) return;
      note(error);
      // What was seen last stays while there is no answer; what the API refuses does not.
      const isLost = error instanceof Refusal && (error.status === 0 || error.status >= 500);
      this.answer.value = { data: isLost ? this.answer.peek().data : null, error };
    }
    this.isAsking = false;
    this.endedAt = Date.now();
    if (this.isAskedAgain) this.ask();
    else if (this.heardAt && began - this.heardAt < LATER_MS) {
      // Another process of the api may have answered, to which the event had not come.
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
 * What an address of the API answers, kept fresh while the component is there. An empty path asks for nothing.
 * @param {string} path below /api/v1
 * @param {{isAbout?: (event: any) => boolean, isSlow?: boolean, isAside?: boolean}} [options] which events make it old (all of
 *   them), whether it also changes without one, whether it is not what the page is about
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
