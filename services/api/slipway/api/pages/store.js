// The one store: who looks, the connection, the time, and what the API has answered. The firehose says when to ask again.
import { Refusal, call, follow } from "./api.js";
import { signal, useEffect, useSignal } from "./runtime.js";

const GAP_MS = 1000;
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

function listen() {
  follow("/events", {
    signal: new AbortController().signal,
    onOpen() {
      connection.value = "live";
      reloadAll();
    },
    onItems(items) {
      for (const resource of resources) if (items.some((item) => resource.isAbout(item.data))) resource.ask();
    },
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

/** One address of the API, and what it answered last. It is asked at once, then at most once a second. */
class Resource {
  /**
   * @param {string} path
   * @param {import("@preact/signals").Signal<Answer>} answer
   * @param {(event: any) => boolean} isAbout
   * @param {boolean} isSlow also changes without an event
   */
  constructor(path, answer, isAbout, isSlow) {
    this.path = path;
    this.answer = answer;
    this.isAbout = isAbout;
    this.aborter = new AbortController();
    this.isAsking = false;
    this.isAskedAgain = false;
    this.nextAt = 0;
    this.timer = 0;
    this.slow = isSlow ? setInterval(() => document.hidden || this.ask(), SLOW_MS) : 0;
    resources.add(this);
    this.ask();
  }

  /** Ask again, as soon as it is its turn. */
  ask() {
    if (this.isAsking) {
      this.isAskedAgain = true;
      return;
    }
    if (this.timer) return;
    this.timer = setTimeout(() => this.load(), Math.max(0, this.nextAt - Date.now()));
  }

  async load() {
    this.timer = 0;
    this.isAsking = true;
    this.isAskedAgain = false;
    const began = Date.now();
    try {
      const data = await call("GET", this.path, { signal: this.aborter.signal });
      this.answer.value = { data, error: null };
      if (connection.value === "offline" || connection.value === "login") connection.value = "slow";
    } catch (error) {
      if (this.aborter.signal.aborted) return;
      note(error);
      // What was seen last stays while there is no answer; what the API refuses does not.
      const isLost = error instanceof Refusal && (error.status === 0 || error.status >= 500);
      this.answer.value = { data: isLost ? this.answer.peek().data : null, error };
    }
    this.isAsking = false;
    this.nextAt = Date.now() + Math.max(GAP_MS, 4 * (Date.now() - began));
    if (this.isAskedAgain) this.ask();
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
 * @param {{isAbout?: (event: any) => boolean, isSlow?: boolean}} [options] which events make it old; all of them
 * @returns {Answer & {reload: () => void}}
 */
export function useResource(path, { isAbout = () => true, isSlow = false } = {}) {
  const answer = useSignal({ data: null, error: null, path });
  const holder = useSignal(null);
  useEffect(() => {
    if (!path) return undefined;
    answer.value = { data: null, error: null, path };
    const resource = new Resource(path, answer, isAbout, isSlow);
    holder.value = resource;
    return () => resource.close();
  }, [path]);
  return { ...answer.value, reload: () => holder.peek()?.ask() };
}
