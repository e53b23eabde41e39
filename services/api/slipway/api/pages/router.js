// Maps addresses to pages, and navigates between pages without a reload.
import { computed, signal } from "./runtime.js";

/** The current address. */
export const location_ = signal(new URL(location.href));
/** The path of the current address. */
export const path = computed(() => location_.value.pathname);

/** @type {RegExp[]} */
const ours = [];
/** @type {MutationObserver | undefined} */
let waiting;

/**
 * Register the addresses of our pages. `{name}` matches one part of a path.
 * @param {string[]} patterns
 * @returns {(path: string) => {pattern: string, params: Record<string, string>} | null} finds the pattern of a path
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

// Sets the focus to the heading, so that screen readers read the name of the new page, and Tab continues from there. A page
// that is still loading has no heading yet, so this waits for it, until the user moves the focus.
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
 * Change a parameter of the address, without a new entry in the browser's history.
 * @param {string} name
 * @param {string} value empty: remove the parameter
 */
export function setParam(name, value) {
  const url = new URL(location.href);
  if (value) url.searchParams.set(name, value);
  else url.searchParams.delete(name);
  history.replaceState(null, "", url);
  location_.value = url;
}

/** Handle links to our pages without a reload, and the browser's back and forward buttons. */
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
