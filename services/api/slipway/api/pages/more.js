// `/more`: links to the pages that are needed less often, each with a description.
import { html } from "./runtime.js";

/**
 * @param {{links: {href: string, text: string, about: string}[]}} props
 */
export function MorePages({ links }) {
  return html`<div class="head"><h1 tabindex="-1">More</h1></div>
    <ul class="cards more">${links.map(({ href, text, about }) => html`<li key=${href} class="card"><h2><a href=${href}>${text}</a></h2><p class="soft">${about}</p></li>`)}
      <li class="card"><h2><a href="/docs" target="_blank" rel="noopener">REST API</a></h2><p class="soft">Every call, with its fields, to read and to try.</p></li></ul>`;
}
