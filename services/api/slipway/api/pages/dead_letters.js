// `/dead`: messages that could not be processed: their contents, the cause, and buttons to send them again or drop them.
import { Action } from "./action.js";
import { call } from "./api.js";
import { Ago, Answered, Empty } from "./components.js";
import { plural, sentence } from "./format.js";
import { mayAdminister } from "./permissions.js";
import { param, setParam } from "./router.js";
import { html, useSignal } from "./runtime.js";
import { useResource } from "./store.js";

const PAGE = 500;

export function DeadLetters() {
  const answer = useResource(`/dead?limit=${PAGE}`, { isSlow: true, isAbout: () => false });
  const result = useSignal(null);
  const chosen = param("letter");
  return html`<div class="head"><h1 tabindex="-1">Dead letters</h1></div>
    <p class="soft">A dead letter is a message whose delivery failed several times: a hint for the pod workers, or an event for a webhook. No workload is lost: the next sweep starts what a hint would have started.</p>
    ${result.value ? html`<p role="status" class=${result.value.refused ? "warning" : ""}>${plural(result.value.replayed, "letter")} sent again${result.value.refused ? `, ${result.value.refused} not: ${result.value.reasons[0]}` : ""}.</p>` : null}
    <${Answered} answer=${answer} what="dead letters" rows=${3}>${({ items, metadata }) => {
      if (!items.length) return html`<${Empty} title="There are no dead letters">Every message was processed.<//>`;
      return html`<div class="bar"><span>${plural(items.length, "letter")}${metadata.continue ? " or more" : ""}, oldest first</span>
          ${mayAdminister() ? html`<${Action} label="Send all again" title="Send all dead letters again?" isDanger=${false}
            send=${async () => { result.value = await call("POST", "/dead/replay", { body: {} }); answer.reload(); }}><p>Repair the cause first: letters that fail again return to this list.</p><//>` : null}</div>
        <table class="list" aria-label="Dead letters"><thead><tr><th>When</th><th>From</th><th class="number">Tried</th><th>Why</th><th></th></tr></thead>
        <tbody>${items.map((each) => html`<${Letter} key=${each.id} letter=${each} isOpen=${each.id === chosen} reload=${answer.reload} />`)}</tbody></table>`;
    }}<//>`;
}

function Letter({ letter, isOpen, reload }) {
  const path = `/dead/${encodeURIComponent(letter.id)}`;
  // The first part of an id is the time in milliseconds.
  const time = new Date(Number(letter.id.split("-")[0])).toISOString();
  return html`<tr><td><${Ago} time=${time} /></td><th scope="row">${letter.source}</th><td class="number" data-label="Tried">${letter.deliveries}</td>
      <td class="note" title=${letter.cause}>${sentence(letter.cause)}</td>
      <td><button type="button" class="quiet" aria-expanded=${String(isOpen)} onClick=${() => setParam("letter", isOpen ? "" : letter.id)}>${isOpen ? "Close" : "Open"}</button></td></tr>
    ${isOpen ? html`<tr class="detail"><td colspan="5"><p>${sentence(letter.cause)}</p>
      <dl class="pairs"><dt>ID</dt><dd><code>${letter.id}</code></dd><dt>Entry</dt><dd><code>${letter.entryId}</code></dd>
        ${Object.entries(letter.fields).map(([name, value]) => html`<dt key=${name}><code>${name}</code></dt><dd><code>${value}</code></dd>`)}</dl>
      ${mayAdminister() ? html`<div class="actions"><${Action} label="Send again" send=${async () => { await call("POST", `${path}/replay`, { body: {} }); reload(); }} />
        <${Action} label="Drop" title="Drop this letter?" isDanger=${true} no="Keep it" send=${async () => { await call("DELETE", path); reload(); }}><p>It is not sent again.</p><//></div>` : null}</td></tr>` : null}`;
}
