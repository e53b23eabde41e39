// A shell in a rank, on the page of its workload. The library that draws it is loaded when a shell is first opened.
import { apiPathOf, rankCount } from "./allocation.js";
import { colourOf, useTheme } from "./colours.js";
import { OutputLimit, startExec } from "./exec_session.js";
import { plural } from "./format.js";
import { html, useEffect, useRef, useSignal } from "./runtime.js";

const ANSI = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const FONT = "ui-monospace, 'SF Mono', 'DejaVu Sans Mono', Menlo, monospace";
const encoder = new TextEncoder();

/** @type {Promise<any> | undefined} */
let library;

function load() {
  library ??= (async () => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = "/assets/terminal/vendor/xterm-6.0.0.css";
    document.head.append(style);
    allowStyles();
    const [{ Terminal }, { FitAddon }] = await Promise.all([import("@xterm/xterm"), import("@xterm/addon-fit")]);
    return { Terminal, FitAddon };
  })();
  library.catch(() => (library = undefined));
  return library;
}

// The Content-Security-Policy of the page forbids style elements and `style` attributes, but xterm.js creates them. So the
// text of a style element is put into a constructed style sheet, and that of an attribute into properties of the element.
function allowStyles() {
  const { createElement } = Document.prototype;
  const { setAttribute } = Element.prototype;
  Document.prototype.createElement = function (name, ...options) {
    return name === "style" ? sheetLikeStyle() : createElement.call(this, name, ...options);
  };
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") /** @type {HTMLElement} */ (this).style.cssText = value;
    else setAttribute.call(this, name, value);
  };
}

function sheetLikeStyle() {
  const sheet = new CSSStyleSheet();
  const standIn = document.createElement("i");
  standIn.hidden = true;
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(standIn, "textContent", { set: (text) => void sheet.replaceSync(text) });
  standIn.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    Element.prototype.remove.call(standIn);
  };
  return standIn;
}

/**
 * @param {{view: any, containers: string[], isShown: boolean}} props the main container is first; a hidden shell runs on
 */
export function Terminal({ view, containers, isShown }) {
  const rank = useSignal(0);
  const container = useSignal(containers[0]);
  const turn = useSignal(0);
  const ranks = rankCount(view);
  const where = `${rank.value} ${container.value} ${turn.value}`;
  return html`<section class="terminal" aria-label="Terminal" hidden=${!isShown}>
    <div class="bar">
      ${ranks > 1 ? html`<label>Rank <select name="terminal-rank" value=${String(rank.value)} onChange=${(event) => (rank.value = Number(event.target.value))}>
        ${Array.from({ length: ranks }, (_, each) => html`<option key=${each} value=${String(each)}>${each}</option>`)}</select></label>` : null}
      ${containers.length > 1 ? html`<label>Container <select name="terminal-container" value=${container.value} onChange=${(event) => (container.value = event.target.value)}>
        ${containers.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>` : null}
      <span class="soft">Shift-Esc leaves the terminal.</span>
    </div>
    <${Screen} key=${where} path=${`${apiPathOf(view.id)}/ranks/${rank.value}`} container=${container.value} isShown=${isShown} onAgain=${() => (turn.value += 1)} />
  </section>`;
}

function Screen({ path, container, isShown, onAgain }) {
  const box = useRef(null);
  const made = useRef(/** @type {any} */ (null));
  const state = useSignal({ name: "waits", words: "Connecting" });
  const theme = useTheme();
  useEffect(() => {
    let isGone = false;
    let close = () => {};
    load().then((found) => {
      if (isGone) return;
      const opened = open(found, box.current, path, container, (name, words) => (state.value = { name, words }), onAgain);
      made.current = opened;
      close = opened.close;
    }, () => (state.value = { name: "bad", words: "The terminal could not be loaded." }));
    return () => {
      isGone = true;
      close();
    };
  }, []);
  useEffect(() => {
    if (made.current) made.current.terminal.options.theme = themeOf(box.current);
  }, [theme]);
  useEffect(() => {
    if (isShown) made.current?.terminal.focus();
  }, [isShown]);
  const { name, words } = state.value;
  return html`<div class="screen" ref=${box}></div>
    <p class="soft told" role="status"><span class="dot ${name}"></span> ${words}${name === "bad" ? html` <button type="button" onClick=${onAgain}>Open another shell</button>` : null}</p>`;
}

function open({ Terminal: Library, FitAddon }, box, path, container, show, onAgain) {
  const terminal = new Library({ cursorBlink: true, fontSize: 13, fontFamily: FONT, scrollback: 10000, theme: themeOf(box) });
  const fit = new FitAddon();
  const limit = new OutputLimit();
  terminal.loadAddon(fit);
  terminal.open(box);
  fit.fit();
  let isOver = false;
  const draw = (bytes) => terminal.write(bytes, () => {
    const leftOut = limit.drawn(bytes.length);
    if (leftOut) terminal.write(`\r\n\x1b[0;2m[${plural(leftOut, "byte")} left out: it printed faster than this page draws]\x1b[0m\r\n`);
  });
  const session = startExec(path, { container, columns: terminal.cols, rows: terminal.rows }, {
    onOpen: () => show("good", `Open in container ${container}`),
    onOutput: (bytes) => limit.takes(bytes.length) && draw(bytes),
    onEnd: ({ code, message }) => {
      isOver = true;
      const words = code === null ? `Not open: ${message}` : `The shell ended with exit code ${code}`;
      terminal.write(`\r\n\x1b[0;2m[${words}. Press Enter for another one.]\x1b[0m\r\n`);
      show("bad", `${words}.`);
    },
  });
  terminal.onData((text) => {
    if (!isOver) session.send(encoder.encode(text));
    else if (text.includes("\r")) onAgain();
  });
  terminal.onBinary((text) => session.send(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
  terminal.onResize(({ cols, rows }) => session.resize(cols, rows));
  // Tab is a key of the shell, so keyboard users leave with Shift-Escape. The focus moves only at keyup, because the library
  // must see that event.
  let isLeaving = false;
  terminal.attachCustomKeyEventHandler((event) => {
    if (event.key !== "Escape" || !(event.shiftKey || isLeaving)) return true;
    if (event.type === "keyup" && isLeaving) document.getElementById("tab-terminal")?.focus();
    isLeaving = event.type !== "keyup";
    return false;
  });
  const sized = new ResizeObserver(() => box.clientWidth && fit.fit());
  sized.observe(box);
  terminal.focus();
  return {
    terminal,
    close: () => {
      sized.disconnect();
      session.close();
      terminal.dispose();
    },
  };
}

function themeOf(box) {
  const ink = colourOf(box, { token: "--ink" });
  const theme = { foreground: ink, cursor: ink, background: colourOf(box, { token: "--card" }), selectionBackground: colourOf(box, { className: "ansi-on-4", property: "backgroundColor" }) };
  ANSI.forEach((name, index) => {
    theme[name] = colourOf(box, { className: `ansi-${index}` });
    theme[`bright${name[0].toUpperCase()}${name.slice(1)}`] = colourOf(box, { className: `ansi-${index + 8}` });
  });
  return theme;
}
