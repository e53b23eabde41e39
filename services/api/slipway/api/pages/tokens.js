// `/tokens`: the tokens of the API: whether they are valid, their users, their roles, and when they expire.
import { Ago, Answered, Empty } from "./components.js";
import { html, useSignal } from "./runtime.js";
import { me, useResource } from "./store.js";

export function Tokens() {
  const isOurs = me.value?.auth === "token";
  const answer = useResource(isOurs ? "/tokens" : "", { isSlow: true, isAbout: () => false });
  const filter = useSignal("");
  return html`<div class="head"><h1 tabindex="-1">Tokens</h1></div>
    <p class="soft">Tokens are created and revoked on the command line, by users with access to the folder or Secret that contains them: <code>slipway token create --help</code>. Only their hashes are stored.</p>
    ${me.value && !isOurs ? html`<${Empty} title="There are no tokens of Slipway here">${me.value.auth === "none" ? "This installation has no login." : "The Kubernetes API server authenticates users: its tokens are valid here too."}<//>`
      : html`<${Answered} answer=${answer} what="tokens" rows=${4}>${({ items }) => {
        const found = items.filter((each) => `${each.id} ${each.user} ${each.description}`.toLowerCase().includes(filter.value.toLowerCase()));
        return html`<div class="bar"><input type="search" placeholder="Filter by user, ID or description" aria-label="Filter tokens" value=${filter.value} onInput=${(event) => (filter.value = event.target.value)} /></div>
          <table class="list" aria-label="Tokens"><thead><tr><th>State</th><th>User</th><th>ID</th><th>Permits</th><th>Made</th><th>Ends</th><th>Description</th></tr></thead>
          <tbody>${found.map((each) => html`<tr key=${each.id}><td><span class="state tone-${each.expired ? "bad" : "good"}">${each.expired ? "expired" : "valid"}</span></td>
            <th scope="row">${each.user}</th><td data-label="ID"><code>${each.id}</code></td>
            <td data-label="Permits">${Object.entries(each.roles).map(([workspace, role]) => `${role} ${workspace === "*" ? "everywhere" : `in ${workspace}`}`).join(", ")}</td>
            <td data-label="Made"><${Ago} time=${each.createdAt} /></td><td data-label="Ends">${each.expiresAt ? html`<${Ago} time=${each.expiresAt} />` : html`<span class="soft">never</span>`}</td>
            <td class="note" title=${each.description}>${each.description}</td></tr>`)}</tbody></table>
          ${found.length ? null : html`<p class="soft">No token matches the filter.</p>`}`;
      }}<//>`}`;
}
