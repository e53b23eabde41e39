// A command in a rank: the protocol of `GET .../ranks/{rank}/exec`, which is Kubernetes' own. The first byte of a message
// is its channel. Output that the page cannot draw in time is counted, not kept.
import { call } from "./api.js";

const PROTOCOL = "v5.channel.k8s.io";
const [STDIN, STDOUT, STDERR, STATUS, RESIZE] = [0, 1, 2, 3, 4];
const PIECE_BYTES = 32 * 1024;
const SWITCHING = 426;
const FULL_BYTES = 4 * 1024 * 1024;
const EMPTY_BYTES = 1024 * 1024;
const EARLY_MAX = 64;

/**
 * @typedef {{code: number | null, message: string}} CommandEnd `code` null: there is no exit code, and `message` is why
 * @typedef {{onOpen: () => void, onOutput: (bytes: Uint8Array) => void, onEnd: (end: CommandEnd) => void}} ExecEvents
 */

/**
 * The end of the command, from the last message of the session.
 * @param {string} text a Kubernetes Status as JSON
 * @returns {CommandEnd}
 */
export function endOf(text) {
  try {
    const told = JSON.parse(text);
    if (told.status === "Success") return { code: 0, message: "" };
    const cause = told.details?.causes?.find((each) => each.reason === "ExitCode");
    const message = String(told.message || told.reason || "the command could not be run");
    return { code: told.reason === "NonZeroExitCode" && cause ? Number(cause.message) : null, message };
  } catch {
    return { code: null, message: "the end of the command cannot be read" };
  }
}

/**
 * Start a command with a terminal. `onEnd` is called once, whatever ends the session.
 * @param {string} path of the rank below /api/v1, as /allocations/ID/ranks/0
 * @param {{container: string, columns: number, rows: number}} where
 * @param {ExecEvents} events
 * @returns {{send: (bytes: Uint8Array) => void, resize: (columns: number, rows: number) => void, close: () => void}}
 */
export function startExec(path, { container, columns, rows }, events) {
  const query = new URLSearchParams({ stdin: "true", tty: "true", container });
  const url = new URL(`/api/v1${path}/exec?${query}`, location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(url, [PROTOCOL]);
  socket.binaryType = "arraybuffer";
  let isOpen = false;
  let isOver = false;
  let size = { columns, rows };
  /** @type {Uint8Array<ArrayBuffer>[]} input from before the session is open */
  const early = [];
  const end = (told) => {
    if (!isOver) events.onEnd(told);
    isOver = true;
  };
  const message = (channel, bytes) => {
    const whole = new Uint8Array(bytes.length + 1);
    whole[0] = channel;
    whole.set(bytes, 1);
    if (socket.readyState === WebSocket.OPEN) socket.send(whole);
    else if (socket.readyState === WebSocket.CONNECTING && channel === STDIN && early.length < EARLY_MAX) early.push(whole);
  };
  // The size of before the session is open is sent when it opens.
  const resize = (width, height) => {
    size = { columns: width, rows: height };
    message(RESIZE, new TextEncoder().encode(JSON.stringify({ Width: width, Height: height })));
  };
  socket.onopen = () => {
    isOpen = true;
    resize(size.columns, size.rows);
    for (const each of early.splice(0)) socket.send(each);
    events.onOpen();
  };
  socket.onmessage = ({ data }) => {
    const [channel] = new Uint8Array(data, 0, 1);
    const bytes = new Uint8Array(data, 1);
    if (channel === STDOUT || channel === STDERR) events.onOutput(bytes);
    else if (channel === STATUS) end(endOf(new TextDecoder().decode(bytes)));
  };
  socket.onclose = async ({ reason }) => {
    if (isOpen) end({ code: null, message: reason || "the connection was lost" });
    else if (!isOver) end({ code: null, message: await whyRefused(`${path}/exec?${query}`) });
  };
  return {
    send: (bytes) => {
      for (let at = 0; at < bytes.length; at += PIECE_BYTES) message(STDIN, bytes.subarray(at, at + PIECE_BYTES));
    },
    resize,
    close: () => {
      isOver = true;
      socket.close();
    },
  };
}

// A browser does not tell a page why a WebSocket was refused, so a plain call of the same address asks for the reason.
async function whyRefused(path) {
  const refusal = await call("GET", path).catch((error) => error);
  return !refusal || refusal.status === SWITCHING ? "the connection was lost" : refusal.message;
}

/** A limit on output that waits to be drawn: output beyond it is left out and counted. */
export class OutputLimit {
  constructor() {
    this.waiting = 0;
    this.leftOut = 0;
    this.isFull = false;
  }

  /**
   * Whether these bytes must be drawn; if not, they are counted as left out.
   * @param {number} count
   * @returns {boolean}
   */
  takes(count) {
    if (this.waiting > FULL_BYTES) this.isFull = true;
    if (this.isFull) this.leftOut += count;
    else this.waiting += count;
    return !this.isFull;
  }

  /**
   * Note that bytes were drawn. Returns how many bytes were left out, once there is room again; else 0.
   * @param {number} count
   * @returns {number}
   */
  drawn(count) {
    this.waiting -= count;
    if (!this.isFull || this.waiting > EMPTY_BYTES) return 0;
    const { leftOut } = this;
    this.isFull = false;
    this.leftOut = 0;
    return leftOut;
  }
}
