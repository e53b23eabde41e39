// The palette (Ctrl-K): go to a page or a workload by a few letters of its name. Also the other keys, and their list.
import { pageOf } from "./allocation.js";
import { call } from "./api.js";
import { State, useOpenDialog } from "./components.js";
import { sentence } from "./format.js";
import { go } from "./router.js";
import { html, signal, useEffect, useSignal } from "./runtime.js";

const FOUND_MAX = 8;
const PAUSE_MS = 150;
const SECOND_KEY_MS = 1500;
const STORED = "slipway-keys";
/** The modifier key for K on this machine. */
export const MODIFIER = /Mac|iP(hone|ad)/.test(navigator.platform) ? "⌘" : "Ctrl";

/** Which dialog is open: `find`, `keys`, or none. */
const shown = signal("");
/** Whether keys without Ctrl are active. Users who dictate, or press keys by mistake, can turn them off. */
const hasKeys = signal(stored() !== "off");
/** The time when `g` was pressed. */
let first = -Infinity;

/**
 * @typedef {{href: string, text: string, key: string}} PaletteLink a page, its name, and the key that follows `g`
 * @typedef {{href: string, text: string, detail: string, state?: string}} PaletteRow
 */

/** Open the palette, as Ctrl-K does. */
export function openPalette() {
  shown.value = "find";
}

/**
 * Listen to keys, on every page.
 * @param {PaletteLink[]} links
 */
export function startKeys(links) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      shown.value = "find";
      return;
    }
    if (!hasKeys.value || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (onKey(event, links)) event.preventDefault();
  });
}

function onKey(event, links) {
  const isSecond = event.timeStamp - first < SECOND_KEY_MS;
  first = -Infinity;
  if (isSecond) {
    const link = links.find((each) => each.key === event.key);
    if (link) go(link.href);
    return Boolean(link);
  }
  if (event.key === "g") first = event.timeStamp;
  else if (event.key === "?") shown.value = "keys";
  else if (event.key === "/") {
    const field = document.querySelector("main input[type=search]");
    if (field instanceof HTMLInputElement) field.focus();
    else shown.value = "find";
  } else return false;
  return true;
}

function isTyping(target) {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable], .xterm") !== null;
}

/** The dialog that is open. */
export function Palette({ links }) {
  if (shown.value === "find") return html`<${Find} links=${links} />`;
  return shown.value === "keys" ? html`<${Keys} links=${links} />` : null;
}

function Find({ links }) {
  const dialog = useOpenDialog();
  const text = useSignal("");
  const chosen = useSignal(0);
  const workloads = useSignal(/** @type {PaletteRow[]} */ ([]));
  const said = useSignal("");
  useEffect(() => {
    const asked = text.value.trim();
    workloads.value = [];
    said.value = asked ? "Searching" : "";
    if (!asked) return undefined;
    const control = new AbortController();
    const later = setTimeout(async () => {
      try {
        workloads.value = await workloadsOf(asked, control.signal);
        said.value = workloads.value.length ? "" : "No workload has these letters in its name, its ID or its user.";
      } catch (error) {
        if (error.name !== "AbortError") said.value = sentence(error.message);
      }
    }, PAUSE_MS);
    return () => {
      clearTimeout(later);
      control.abort();
    };
  }, [text.value]);
  const rows = [...pagesOf(links, text.value), ...workloads.value];
  const at = Math.min(chosen.value, rows.length - 1);
  const leave = (href) => {
    dialog.current.close();
    go(href);
  };
  const onKeyDown = (event) => {
    const next = { ArrowDown: at + 1, ArrowUp: at - 1 + rows.length }[event.key];
    if (event.key === "Enter" && rows[at] && !event.isComposing) {
      event.preventDefault();
      leave(rows[at].href);
    } else if (next !== undefined && rows.length) {
      event.preventDefault();
      chosen.value = next % rows.length;
      document.getElementById(`palette-${chosen.value}`)?.scrollIntoView({ block: "nearest" });
    }
  };
  const onInput = (event) => {
    text.value = event.target.value;
    chosen.value = 0;
  };
  return html`<dialog ref=${dialog} class="palette" aria-label="Go to" onClose=${() => (shown.value = "")}
      onClick=${(event) => event.target === dialog.current && dialog.current.close()}>
    <input type="text" role="combobox" aria-label="A page, or a workload by its name, ID or user" aria-expanded="true"
      aria-controls="palette-rows" aria-autocomplete="list" aria-activedescendant=${rows.length ? `palette-${at}` : undefined}
      placeholder="A page, or a workload by its name, ID or user" autocomplete="off" spellcheck=${false} maxlength="200"
      autofocus value=${text.value} onInput=${onInput} onKeyDown=${onKeyDown} />
    <ul id="palette-rows" role="listbox" aria-label="Where to go">${rows.map((row, index) => html`<li key=${row.href} id=${`palette-${index}`}
      role="option" aria-selected=${String(index === at)} onClick=${() => leave(row.href)}>
      <span>${row.text}</span>${row.detail ? html` <small>${row.detail}</small>` : null}${row.state ? html`<${State} word=${row.state} />` : null}</li>`)}</ul>
    <p class="soft" role="status">${said.value}</p>
  </dialog>`;
}

/**
 * The pages whose name contains the text.
 * @param {PaletteLink[]} links
 * @param {string} text
 * @returns {PaletteRow[]}
 */
export function pagesOf(links, text) {
  const asked = text.trim().toLowerCase();
  return links.filter((each) => each.text.toLowerCase().includes(asked)).map(({ href, text: name }) => ({ href, text: name, detail: "page" }));
}

async function workloadsOf(asked, abort) {
  const query = new URLSearchParams({ search: asked, sort: "-createdAt", limit: String(FOUND_MAX) });
  const answer = await call("GET", `/allocations?${query}`, { signal: abort });
  return answer.items.map((each) => ({ href: pageOf(each.id), text: each.id, detail: [each.user, each.kind].filter(Boolean).join(", "), state: each.state }));
}

function Keys({ links }) {
  const dialog = useOpenDialog();
  const rows = [[[MODIFIER, "K"], "go to a page or a workload"], [["/"], "filter what the page lists"], [["?"], "show this list"],
    ...links.map(({ key, text }) => [["g", key], text])];
  return html`<dialog ref=${dialog} aria-labelledby="keys-title" onClose=${() => (shown.value = "")}
      onClick=${(event) => event.target === dialog.current && dialog.current.close()}>
    <div class="ask"><h2 id="keys-title">Keys</h2>
      <dl class="keys">${rows.map(([keys, text]) => html`<div key=${text}><dt>${keys.map((key) => html`<kbd key=${key}>${key}</kbd>`)}</dt><dd>${text}</dd></div>`)}</dl>
      <label class="soft"><input type="checkbox" checked=${hasKeys.value} onChange=${(event) => keep(event.target.checked)} /> Use these keys; ${MODIFIER} K always works</label>
      <p class="actions"><button type="button" onClick=${() => dialog.current.close()}>Close</button></p></div>
  </dialog>`;
}

function stored() {
  try {
    return localStorage.getItem(STORED) ?? "";
  } catch {
    return "";
  }
}

function keep(isOn) {
  hasKeys.value = isOn;
  try {
    localStorage.setItem(STORED, isOn ? "on" : "off");
  } catch {
    // Without storage, the choice is valid until the page is closed.
  }
}

/** A button that opens the list of keys. */
export function KeysButton() {
  return html`<button type="button" class="quiet" onClick=${() => (shown.value = "keys")}>Keys</button>`;
}
