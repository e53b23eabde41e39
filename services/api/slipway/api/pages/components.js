// Small parts that every page is made of: states, times, meters, notices, dialogs.
import { meaningOf, toneOf } from "./facts.js";
import { sentence, spellAgo, spellDuration, spellExact } from "./format.js";
import { path } from "./router.js";
import { html, useEffect, useLayoutEffect, useRef, useSignal } from "./runtime.js";
import { connection, now } from "./store.js";

/**
 * The word for a state, coloured by its tone (good, bad and so on).
 * @param {{word: string, of?: "states" | "rankStates" | "jobStates"}} props `of`: the table of its words
 */
export function State({ word, of = "states" }) {
  return html`<span class="state tone-${toneOf(word, of)}" title=${meaningOf(word, of)}>${word}</span>`;
}

/** A time as "how long ago", with the exact time in its title. */
export function Ago({ time }) {
  if (!time) return html`<span class="soft">–</span>`;
  return html`<time datetime=${time} title=${spellExact(time)}>${spellAgo(time, now.value)}</time>`;
}

/** The duration since a time, or between two times. */
export function Lasted({ from, to }) {
  if (!from) return html`<span class="soft">–</span>`;
  const seconds = ((to ? Date.parse(to) : now.value) - Date.parse(from)) / 1000;
  const shown = to ? seconds : Math.floor(Math.max(0, seconds));
  return html`<time title=${`${spellExact(from)}${to ? ` to ${spellExact(to)}` : ""}`}>${spellDuration(shown)}</time>`;
}

/** The sign for a missing value. */
export function dash() {
  return html`<span class="soft">–</span>`;
}

/** A bar that shows how much of a whole is used; `mark` is a limit within the whole. */
export function Meter({ used, whole, mark = 0, label }) {
  const most = Math.max(whole, used, mark, 1);
  const style = (value) => ({ inlineSize: `${(100 * value) / most}%` });
  return html`<span class="meter" role="img" aria-label=${label} title=${label}>
    <i class="used ${mark && used > mark ? "over" : ""}" style=${style(used)}></i>
    ${mark ? html`<i class="mark" style=${{ insetInlineStart: `${(100 * mark) / most}%` }}></i>` : null}
  </span>`;
}

/** Placeholder bars while content is loading. */
export function Loading({ rows = 3, label = "Loading" }) {
  return html`<div class="loading" role="status" aria-label=${label}>
    ${Array.from({ length: rows }, (_, row) => html`<i key=${row}></i>`)}
  </div>`;
}

/** The empty state: there is nothing to show, and what the user can do about it. */
export function Empty({ title, children }) {
  return html`<div class="empty"><p class="title">${title}</p>${children ? html`<p>${children}</p>` : null}</div>`;
}

/** Why there is no answer: not found, not permitted, not logged in, offline, or an error. `isPage`: it is the whole page. */
export function Failure({ error, what = "this", onRetry, isPage = false }) {
  const [title, text] = wordsOf(error, what);
  return html`<div class="empty failure" role="alert">
    ${isPage ? html`<h1 class="title" tabindex="-1">${title}</h1>` : html`<p class="title">${title}</p>`}<p>${text}</p>
    ${error.status === 401 ? html`<p><a class="button" href=${loginHref()}>Log in</a></p>` : null}
    ${error.status === 404 ? html`<p><a href="/">Your workloads</a></p>` : null}
    ${onRetry && ![401, 404].includes(error.status) ? html`<p><button onClick=${onRetry}>Try again</button></p>` : null}
  </div>`;
}

function wordsOf(error, what) {
  if (error.status === 401) return ["You are not logged in", "Log in to see this page."];
  if (error.status === 403) return ["Not permitted", `You may not see ${what}. ${sentence(error.message)}`];
  // After the semicolon the API names the call that lists the existing objects; a page has links instead.
  if (error.status === 404) return ["Not found", `${sentence(error.message.split("; GET ")[0])}.`];
  if (error.status === 0) return ["No answer", "The API does not answer. This page tries again automatically."];
  return [error.title || "The request failed", sentence(error.message)];
}

/** The address of the login page, which returns to this page. */
export function loginHref() {
  return `/login?next=${encodeURIComponent(path.value)}`;
}

/** Renders an answer of the API with `children`; while there is no answer, a placeholder or the reason. */
export function Answered({ answer, what, rows, isPage = false, children }) {
  if (answer.data) return children(answer.data);
  if (answer.error && connection.value !== "login") {
    return html`<${Failure} error=${answer.error} what=${what} isPage=${isPage} onRetry=${answer.reload} />`;
  }
  return html`<${Loading} rows=${rows} label=${`Loading ${what ?? ""}`} />`;
}

/** A button that copies a text and confirms it. */
export function Copy({ text, label = "Copy", what = "" }) {
  const isDone = useSignal(false);
  const copy = async () => {
    await putOnClipboard(text);
    isDone.value = true;
    setTimeout(() => (isDone.value = false), 1500);
  };
  const name = what ? `${label} ${what}` : label;
  return html`<button class="quiet" type="button" aria-label=${name} onClick=${copy}>
    ${isDone.value ? "Copied" : label}</button>`;
}

async function putOnClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Without TLS a browser gives a page no navigator.clipboard, only this older way to copy.
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  return undefined;
}

/** Opens a dialog in the same render that creates it, so that it gets a key pressed directly after the click (Escape). */
export function useOpenDialog() {
  const dialog = useRef(null);
  useLayoutEffect(() => dialog.current.showModal(), []);
  return dialog;
}

/** A modal question; Escape and a click outside of it mean `no`. */
export function Confirm({ title, children, verb, no = "Keep it", isDanger = true, onYes, onNo, isBusy, error }) {
  const dialog = useOpenDialog();
  return html`<dialog ref=${dialog} aria-labelledby="confirm-title" onClose=${onNo}
      onClick=${(event) => event.target === dialog.current && dialog.current.close()}>
    <div class="ask">
      <h2 id="confirm-title">${title}</h2>
      ${children}
      ${error ? html`<${Refused} error=${error} />` : null}
      <p class="actions">
        <button type="button" onClick=${() => dialog.current.close()}>${no}</button>
        <button type="button" class=${isDanger ? "danger" : "primary"} disabled=${isBusy} onClick=${onYes}>${verb}</button>
      </p>
    </div>
  </dialog>`;
}

/** Why the API refused a request: the error of each field, else the reason. */
export function Refused({ error }) {
  return html`<div class="bad" role="alert">${error.errors?.length
    ? error.errors.map((each) => html`<p key=${each.pointer}>${each.pointer ? html`<code>${each.pointer.slice(1).replaceAll("/", ".")}</code> ` : null}${each.detail}</p>`)
    : html`<p>${sentence(error.message)}</p>`}</div>`;
}

/** A field of a form with its label, and below it a hint or its error. The id of the input must be `field-NAME`. */
export function Field({ name, label, hint = "", error = "", children }) {
  return html`<div class="field ${error ? "wrong" : ""}"><label for=${`field-${name}`}>${label}</label>${children}
    <small id=${`about-${name}`} class=${error ? "bad" : "soft"}>${error || hint}</small></div>`;
}

/** Tabs: several views of one object, of which one is shown. */
export function Tabs({ tabs, chosen, onChoose }) {
  const step = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const index = tabs.findIndex((tab) => tab.id === chosen);
    const next = tabs[(index + by + tabs.length) % tabs.length];
    onChoose(next.id);
    requestAnimationFrame(() => document.getElementById(`tab-${next.id}`)?.focus());
  };
  return html`<div class="tabs" role="tablist" onKeyDown=${step}>
    ${tabs.map((tab) => html`<button key=${tab.id} type="button" role="tab" id=${`tab-${tab.id}`}
      aria-selected=${String(tab.id === chosen)} aria-controls="tab-panel" tabindex=${tab.id === chosen ? 0 : -1}
      onClick=${() => onChoose(tab.id)}>${tab.label}${tab.count === undefined ? null : html` <small>${tab.count}</small>`}
    </button>`)}
  </div>`;
}

/**
 * The button for the rest of a long list. With `isByItself` it is pressed automatically while it is near the window, so
 * that rows which the user does not see are not drawn.
 */
export function More({ count, by, isByItself, onMore }) {
  const button = useRef(null);
  const press = useRef(onMore);
  press.current = onMore;
  useEffect(() => {
    if (!isByItself) return undefined;
    const watch = new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && press.current(), { rootMargin: "800px" });
    watch.observe(button.current);
    return () => watch.disconnect();
  }, [count, isByItself]);
  return html`<p><button ref=${button} type="button" onClick=${onMore}>Show ${Math.min(by, count)} of ${count.toLocaleString("en")} more</button></p>`;
}

/** A choice between a few options, as a group of buttons. */
export function Choice({ label, options, chosen, onChoose }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(([value, text]) => html`<button key=${value} type="button" aria-pressed=${String(value === chosen)}
      onClick=${() => onChoose(value)}>${text}</button>`)}
  </div>`;
}
