// Which page an address means, and going from one to another without loading everything again.
import { computed, signal } from "./runtime.js";

/** The address now. */
export const location_ = signal(new URL(location.href));
/** Its path alone. */
export const path = computed(() => location_.value.pathname);

/** @type {RegExp[]} */
const ours = [];
/** @type {MutationObserver | undefined} */
let waiting;

/**
 * Say which addresses are pages of ours. `{name}` stands for one part of a path.
 * @param {string[]} patterns
 * @returns {(path: string) => {pattern: string, params: Record<string, string>} | null} what a path means
 */
export function routes(patterns) {
  const rows = patterns.map((pattern) => {
    const names = [...pattern.matchAll(/\{(\w+)\}/g)].map((found) => found[1]);
    const shape = new RegExp(`^${pattern.replace(/\{\w+\}/g, "([^/]+)")}$`);
    ours.push(shape);
    return { pattern, names, shape };
  });
  return (asked) => {
    for (const { pattern, names, shape } of rows) {
      const found = shape.exec(asked);
      if (found) {
        const params = Object.fromEntries(names.map((name, index) => [name, decode(found[index + 1])]));
        return { pattern, params };
      }
    }
    return null;
  };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * Go to a page.
 * @param {string} href
 */
export function go(href) {
  history.pushState(null, "", href);
  location_.value = new URL(location.href);
  scrollTo(0, 0);
  requestAnimationFrame(focusHeading);
}

// The heading gets the focus: screen readers say the name of the new page, and Tab goes on from its beginning. A page that
// still loads has no heading yet: wait for it, unless the focus has moved meanwhile.
function focusHeading() {
  waiting?.disconnect();
  const focus = () => {
    const heading = document.querySelector("main h1");
    if (heading instanceof HTMLElement) heading.focus({ preventScroll: true });
    return heading !== null;
  };
  if (focus()) return;
  const observer = new MutationObserver(() => {
    if (document.activeElement !== document.body || focus()) observer.disconnect();
  });
  waiting = observer;
  observer.observe(document.body, { childList: true, subtree: true });
}

/**
 * A parameter of the address; empty when it is absent.
 * @param {string} name
 * @returns {string}
 */
export function param(name) {
  return location_.value.searchParams.get(name) ?? "";
}

/**
 * Change a parameter of the address, without a step of the history.
 * @param {string} name
 * @param {string} value empty: take it away
 */
export function setParam(name, value) {
  const url = new URL(location.href);
  if (value) url.searchParams.set(name, value);
  else url.searchParams.delete(name);
  history.replaceState(null, "", url);
  location_.value = url;
}

/** Follow links to pages of ours in place, and the browser's back and forward. */
export function startRouter() {
  addEventListener("popstate", () => (location_.value = new URL(location.href)));
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    if (!(link instanceof HTMLAnchorElement) || link.target || link.hasAttribute("download")) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || !ours.some((shape) => shape.test(url.pathname))) return;
    event.preventDefault();
    if (url.href !== location.href) go(url.href);
  });
}
