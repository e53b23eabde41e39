// A page whose modules are loaded when it is first opened, or earlier, some time after the first page was shown.
import { Failure, Loading } from "./components.js";
import { Refusal } from "./api.js";
import { html, signal, useEffect } from "./runtime.js";

/** @typedef {((props: any) => any) & {load: () => void}} LatePage */

/**
 * @param {() => Promise<any>} load imports its module
 * @param {string} name the export of the module that is the page
 * @returns {LatePage}
 */
export function latePage(load, name) {
  /** @type {import("@preact/signals").Signal<{Page: any, error: any}>} */
  const found = signal({ Page: null, error: null });
  /** @type {Promise<void> | null} */
  let loading = null;
  const begin = () => {
    loading ??= load().then((module) => void (found.value = { Page: module[name], error: null }), () => {
      loading = null;
      found.value = { Page: null, error: new Refusal(503, { title: "This page could not be loaded", detail: "The API did not send a part of it." }) };
    });
  };
  const Late = (/** @type {any} */ props) => {
    useEffect(begin, []);
    const { Page, error } = found.value;
    if (Page) return html`<${Page} ...${props} />`;
    return error ? html`<${Failure} error=${error} isPage=${true} onRetry=${() => location.reload()} />`
      : html`<${Loading} rows=${5} label="Loading the page" />`;
  };
  return Object.assign(Late, { load: begin });
}
