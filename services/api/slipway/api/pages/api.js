// Calls and streams of the REST API. The browser adds the login cookie by itself.
const ROOT = "/api/v1";
const QUIET_MS = 45000;
const RETRY_MS = 2000;
const RETRY_MAX_MS = 30000;
const CALL_MS = 60000;
const BROKEN = "broken";
const UNSEEN_MS = 5000;
const LASTING = [400, 403, 404, 410, 422];

// A hidden page closes its streams, because a browser has few connections for one host. A page that the browser only keeps
// for the back button uses connections too. When the page is visible again, its streams resume where they were.
/** @type {Set<AbortController>} */
const open = new Set();
/** @type {Set<() => void>} */
const sleepers = new Set();
let isAsleep = false;
let falling = 0;

function sleep() {
  isAsleep = true;
  for (const each of open) each.abort();
}

function wake() {
  clearTimeout(falling);
  isAsleep = false;
  for (const each of sleepers) each();
  sleepers.clear();
}

addEventListener("pagehide", sleep);
addEventListener("pageshow", wake);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) falling = setTimeout(sleep, UNSEEN_MS);
  else wake();
});

/** A refusal of the API; `status` 0 means that there was no answer. */
export class Refusal extends Error {
  /**
   * @param {number} status
   * @param {{title?: string, detail?: string, code?: string, errors?: {pointer: string, detail: string}[]}} problem
   */
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.status = status;
    this.title = problem.title ?? "";
    this.code = problem.code ?? "";
    /** The wrong fields and what is wrong with them. */
    this.errors = problem.errors ?? [];
  }
}

/**
 * Whether the same call would be refused again, however long one waits.
 * @param {unknown} error
 * @returns {error is Refusal}
 */
export function isLasting(error) {
  return error instanceof Refusal && LASTING.includes(error.status);
}

/**
 * Send one call. Throws a Refusal.
 * @param {string} method
 * @param {string} path below /api/v1
 * @param {{body?: unknown, signal?: AbortSignal, headers?: Record<string, string>}} [options]
 * @returns {Promise<any>}
 */
export async function call(method, path, { body, signal, headers } = {}) {
  const told = { accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers };
  const deadline = AbortSignal.timeout(CALL_MS);
  const sent = { method, signal: signal ? AbortSignal.any([signal, deadline]) : deadline, headers: told, body: body === undefined ? undefined : JSON.stringify(body) };
  const answer = await fetch(`${ROOT}${path}`, sent).catch((error) => fail(error));
  if (!answer.ok) throw new Refusal(answer.status, await problemOf(answer));
  return answer.status === 204 ? null : answer.json().catch((error) => fail(error));
}

/** @returns {never} */
function fail(error) {
  if (error.name === "AbortError") throw error;
  throw new Refusal(0, { title: "No answer", detail: "The API does not answer." });
}

async function problemOf(answer) {
  return answer.json().catch(() => ({ detail: `The API answered ${answer.status}.` }));
}

/**
 * @typedef {{id: string, data: any}} StreamItem
 * @typedef {{onItems: (items: StreamItem[]) => void, onOpen?: () => void,
 *   onLost?: (refusal: Refusal, isForGood: boolean) => void,
 *   isOver?: () => boolean, after?: string, signal: AbortSignal}} StreamOptions `onLost` with `isForGood`: reading has ended
 */

/**
 * Read server-sent events. When the connection breaks, reading resumes after the last event. It ends when the signal is
 * aborted, after a refusal that would be the same again, or when the stream ends and `isOver` returns true. Items are passed
 * in groups, as they arrive.
 * @param {string} path below /api/v1
 * @param {StreamOptions} options
 * @returns {Promise<void>}
 */
export async function follow(path, { onItems, onOpen, onLost, isOver, after = "", signal }) {
  let last = after;
  let failures = 0;
  while (!signal.aborted) {
    if (isAsleep) await /** @type {Promise<void>} */ (new Promise((resolve) => sleepers.add(resolve)));
    try {
      last = await readOnce(path, last, { onItems, onOpen, signal }, (id) => (last = id));
      failures = 0;
      if (isOver?.()) return;
    } catch (error) {
      if (signal.aborted) return;
      if (isAsleep) continue;
      const refusal = error instanceof Refusal ? error : new Refusal(0, { detail: "The stream ended early.", code: BROKEN });
      // A refusal of the cursor: the server does not know it any more, so continue without it.
      const isOfCursor = last && (refusal.status === 400 || refusal.status === 422);
      if (isOfCursor) last = "";
      // The pause grows only after refusals and missing answers; a broken stream was a successful connection.
      failures = refusal.code === BROKEN ? 0 : Math.min(failures + 1, 8);
      const isForGood = !isOfCursor && isLasting(refusal);
      onLost?.(refusal, isForGood);
      if (isForGood) return;
    }
    await pause(Math.min(RETRY_MAX_MS, RETRY_MS * 2 ** failures), signal);
  }
}

async function readOnce(path, after, { onItems, onOpen, signal }, onId) {
  const own = new AbortController();
  open.add(own);
  const stop = () => own.abort();
  signal.addEventListener("abort", stop);
  let timer = setTimeout(stop, QUIET_MS);
  try {
    const headers = { accept: "text/event-stream", ...(after ? { "last-event-id": after } : {}) };
    const answer = await fetch(`${ROOT}${path}`, { headers, signal: own.signal, cache: "no-store" });
    if (answer.status === 204) return after;
    if (!answer.ok) throw new Refusal(answer.status, await problemOf(answer));
    onOpen?.();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return after;
      clearTimeout(timer);
      timer = setTimeout(stop, QUIET_MS);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      const found = blocks.map(parseBlock);
      after = found.findLast((item) => item.id)?.id ?? after;
      onId(after);
      const items = found.filter((item) => item.data !== undefined);
      if (items.length) onItems(items);
    }
  } finally {
    clearTimeout(timer);
    open.delete(own);
    signal.removeEventListener("abort", stop);
    own.abort();
  }
}

// An id without data is the position at which a stream begins: there is no item yet.
function parseBlock(block) {
  let id = "";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("data: ")) data += line.slice(6);
    else if (line.startsWith("id: ")) id = line.slice(4);
  }
  return { id, data: data ? JSON.parse(data) : undefined };
}

/** @returns {Promise<void>} */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });
}

/**
 * An idempotency key: a launch with it happens once, however often it is sent.
 * @returns {string}
 */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
