// The terminal's page: xterm.js over the protocol of slipway.inside.terminal.
//
// The fragment of the address contains the session, so that a reload continues it. After a lost connection the page
// requests the output that it has not received, and sends the input again that the server has not received.
import { FitAddon } from "./vendor/xterm-addon-fit-0.11.0.mjs";
import { Terminal } from "./vendor/xterm-6.0.0.mjs";

const PROTOCOL = "terminal.v1.slipway.dev";
const PAUSE_MS = [100, 300, 1000, 2000, 3000];
const NO_SESSION = 4404;
const ACK_BYTES = 32 * 1024;
const THEMES = {
  light: {
    background: "#fbfbfd", foreground: "#1c1f26", cursor: "#1c1f26", selectionBackground: "#cfd8ee",
    black: "#1c1f26", red: "#b3261e", green: "#1b7a41", yellow: "#8a6100", blue: "#1f5fbf", magenta: "#8b3fa8",
    cyan: "#0b7285", white: "#5d6472", brightBlack: "#5d6472", brightRed: "#c0392b", brightGreen: "#1f8a4c",
    brightYellow: "#a06f00", brightBlue: "#2a6fd6", brightMagenta: "#9c4dbb", brightCyan: "#0f8599", brightWhite: "#1c1f26",
  },
  dark: {
    background: "#14161b", foreground: "#e6e8ee", cursor: "#e6e8ee", selectionBackground: "#3a4256",
    black: "#1b1e25", red: "#ef6b5e", green: "#4cc38a", yellow: "#e2b04a", blue: "#6ea8fe", magenta: "#c792ea",
    cyan: "#5ccfe6", white: "#c8ccd6", brightBlack: "#6b7280", brightRed: "#ff8a80", brightGreen: "#7ee2a8",
    brightYellow: "#ffd166", brightBlue: "#93c1ff", brightMagenta: "#ddb1ff", brightCyan: "#8ae9fa", brightWhite: "#ffffff",
  },
};
const KEYS = [
  ["Esc", "\x1b"], ["Tab", "\t"], ["Ctrl", null], ["\u2191", "\x1b[A"], ["\u2193", "\x1b[B"],
  ["\u2190", "\x1b[D"], ["\u2192", "\x1b[C"], ["|", "|"], ["~", "~"], ["/", "/"],
];

const main = document.getElementById("terminal");
allowStyles(main.dataset.nonce);
const darkness = matchMedia("(prefers-color-scheme: dark)");
const terminal = new Terminal({
  cursorBlink: true, fontSize: 14, scrollback: 10000, convertEol: false,
  fontFamily: "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace",
  theme: THEMES[darkness.matches ? "dark" : "light"],
});
const fit = new FitAddon();
const encoder = new TextEncoder();
const state = {
  client: crypto.getRandomValues(new Uint32Array(2)).join("-"), session: location.hash.slice(1), seen: 0, taken: 0,
  unsent: [], socket: null, tries: 0, over: false, control: false,
};

// The Content-Security-Policy of the page forbids style elements and `style` attributes, but xterm.js creates both. Its
// style elements get the nonce of the policy; its attributes (24-bit colours) are set as properties, which a script may do.
function allowStyles(nonce) {
  if (!nonce) return; // the server has an older version, whose policy allows styles
  const { createElement } = Document.prototype;
  const { setAttribute } = Element.prototype;
  Document.prototype.createElement = function (name, ...options) {
    const made = createElement.call(this, name, ...options);
    if (name === "style") made.nonce = nonce;
    return made;
  };
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };
}

function element(name, attributes, ...children) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...children);
  return made;
}

const status = element("span", { textContent: "connecting" });
status.setAttribute("role", "status");
const again = element("button", { textContent: "New session", onclick: begin });
const bar = element("header", { className: "bar" },
  element("span", { className: "dot" }), element("h1", { textContent: main.dataset.title }), status, again);
const screen = element("div", { className: "screen" });
const keys = element("div", { className: "keys" }, ...KEYS.map(([name, text]) => key(name, text)));
main.append(bar, screen, keys);
terminal.loadAddon(fit);
terminal.open(screen);
terminal.onData((text) => type(state.control ? controlled(text) : text));
terminal.onBinary((text) => input(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
terminal.onResize(({ rows, cols }) => tell({ type: "resize", rows, cols }));
new ResizeObserver(() => fit.fit()).observe(screen);
darkness.addEventListener("change", () => (terminal.options.theme = THEMES[darkness.matches ? "dark" : "light"]));
window.slipwayTerminal = terminal;
fit.fit();
terminal.focus();
connect();

function key(name, text) {
  const made = element("button", { type: "button", textContent: name });
  made.setAttribute("aria-label", { "\u2191": "Up", "\u2193": "Down", "\u2190": "Left", "\u2192": "Right" }[name] ?? name);
  made.addEventListener("pointerdown", (event) => event.preventDefault()); // the keyboard of a phone stays up
  made.addEventListener("click", () => {
    if (text === null) setControl(!state.control);
    else type(text);
    terminal.focus();
  });
  return made;
}

function setControl(is) {
  state.control = is;
  [...keys.children].find((each) => each.textContent === "Ctrl").setAttribute("aria-pressed", String(is));
}

function controlled(text) {
  setControl(false);
  const code = text.toUpperCase().charCodeAt(0);
  return code >= 64 && code < 96 ? String.fromCharCode(code - 64) + text.slice(1) : text;
}

function type(text) {
  if (state.over && text.includes("\r")) begin();
  else if (!state.over) input(encoder.encode(text));
}

function input(bytes) {
  if (state.over) return;
  state.unsent.push(bytes);
  if (state.socket?.readyState === WebSocket.OPEN && state.isOpen) state.socket.send(bytes);
}

function tell(message) {
  if (state.socket?.readyState === WebSocket.OPEN && state.isOpen) state.socket.send(JSON.stringify(message));
}

function show(name, words) {
  bar.dataset.state = name;
  status.textContent = words;
}

function begin() {
  Object.assign(state, { session: "", seen: 0, taken: 0, unsent: [], over: false, tries: 0 });
  state.client = crypto.getRandomValues(new Uint32Array(2)).join("-");
  history.replaceState(null, "", location.pathname);
  if (state.socket) state.socket.onclose = null;
  state.socket?.close();
  terminal.reset();
  terminal.focus();
  connect();
}

function connect() {
  const url = new URL("terminal", location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  url.hash = "";
  const socket = new WebSocket(url, [PROTOCOL]);
  Object.assign(state, { socket, isOpen: false, refused: "" });
  socket.binaryType = "arraybuffer";
  socket.onopen = () =>
    socket.send(JSON.stringify({
      type: "open", client: state.client, session: state.session, from: state.seen,
      rows: terminal.rows, cols: terminal.cols, acks: true,
    }));
  socket.onmessage = ({ data }) => (typeof data === "string" ? told(JSON.parse(data), socket) : printed(data));
  socket.onclose = closed;
}

function printed(data) {
  const bytes = new Uint8Array(data, 1);
  state.seen += bytes.length;
  const { seen, socket } = state;
  // Output is acknowledged only after it is drawn, so that a program which prints faster has to wait.
  terminal.write(bytes, () => {
    if (socket !== state.socket || seen - state.told < ACK_BYTES) return;
    state.told = seen;
    tell({ type: "seen", offset: seen });
  });
}

function told(message, socket) {
  if (message.type === "session") {
    Object.assign(state, { session: message.id, seen: message.offset, told: message.offset, isOpen: true, tries: 0 });
    forget(message.received);
    history.replaceState(null, "", "#" + message.id);
    show("open", `session ${message.id}`);
    tell({ type: "resize", rows: terminal.rows, cols: terminal.cols });
    for (const bytes of state.unsent) socket.send(bytes);
  } else if (message.type === "received") forget(message.bytes);
  else if (message.type === "exit") {
    state.over = true;
    show("over", `ended with exit code ${message.code}`);
    terminal.write(`\r\n\x1b[2m[ended with exit code ${message.code}; Enter begins a new session]\x1b[0m\r\n`);
  } else if (message.type === "error") state.refused = message.message;
}

function forget(taken) {
  for (let count = taken - state.taken; count > 0 && state.unsent.length; ) {
    const [first] = state.unsent;
    if (first.length <= count) state.unsent.shift();
    else state.unsent[0] = first.subarray(count);
    count -= Math.min(first.length, count);
  }
  state.taken = Math.max(taken, state.taken);
}

function closed({ code }) {
  if (state.over) return;
  state.isOpen = false;
  if (code === NO_SESSION) {
    terminal.write("\r\n\x1b[2m[that session has ended; this is a new one]\x1b[0m\r\n");
    Object.assign(state, { session: "", seen: 0, taken: 0, unsent: [] });
  } else if (code >= 4400) {
    show("refused", state.refused || "refused");
    return;
  }
  show("lost", "connection lost; connecting again");
  const pause = PAUSE_MS[Math.min(state.tries++, PAUSE_MS.length - 1)];
  setTimeout(async () => {
    // A page cannot see the answer that refused a WebSocket, so it fetches its own address: if the workload is gone, it
    // reloads.
    const page = state.tries > 1 ? await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null) : null;
    if (page?.status === 410 || page?.status === 404) location.reload();
    else connect();
  }, pause);
}
