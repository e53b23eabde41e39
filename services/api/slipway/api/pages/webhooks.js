// `/webhooks`: all webhooks, with buttons to create, test, pause and remove one, and to give it a new key.
import { Action } from "./action.js";
import { call } from "./api.js";
import { Ago, Answered, Copy, Empty, Field, Refused } from "./components.js";
import { facts } from "./facts.js";
import { plural, sentence, spellDuration } from "./format.js";
import { mayAdminister } from "./permissions.js";
import { go, param } from "./router.js";
import { html, useSignal } from "./runtime.js";
import { useResource } from "./store.js";

export function Webhooks() {
  const answer = useResource("/webhooks", { isSlow: true, isAbout: () => false });
  const made = useSignal(null);
  const isNew = param("new") !== "";
  return html`<div class="head"><h1 tabindex="-1">Webhooks</h1>${mayAdminister() && !isNew ? html`<a class="button primary" href="/webhooks?new=1">New webhook</a>` : null}</div>
    <p class="soft">A webhook gets events of workloads as signed POST requests. They are sent again until the receiver accepts them.</p>
    ${made.value ? html`<${NewKey} webhook=${made.value} />` : null}
    ${isNew ? html`<${NewWebhook} onMade=${(view) => { made.value = view; answer.reload(); go("/webhooks"); }} />` : null}
    <${Answered} answer=${answer} what="webhooks" rows=${3}>${({ items }) => items.length
      ? items.map((each) => html`<${Webhook} key=${each.name} webhook=${each} reload=${answer.reload} onKey=${(view) => (made.value = view)} />`)
      : isNew ? null : html`<${Empty} title="There are no webhooks">Create one to send events to a chat, a pipeline or a dashboard.<//>`}<//>`;
}

function NewKey({ webhook }) {
  return html`<section class="card notice tone-waits" role="status"><h2>The signing key of ${webhook.name}</h2>
    <p>Give it to the receiver now: it is not shown again.</p><p><code>${webhook.secret}</code> <${Copy} text=${webhook.secret} what="the key" /></p></section>`;
}

function Webhook({ webhook, reload, onKey }) {
  const tried = useSignal(null);
  const path = `/webhooks/${encodeURIComponent(webhook.name)}`;
  const change = async (body) => {
    const view = await call("PATCH", path, { body });
    if (view.secret) onKey(view);
    reload();
  };
  const [word, tone] = webhook.enabled ? ["on", "good"] : ["paused", "waits"];
  return html`<section class="card webhook"><div class="head"><h2>${webhook.name} <span class="state tone-${tone}">${word}</span></h2>
      ${mayAdminister() ? html`<div class="actions">
        <${Action} label="Try it" send=${async () => { tried.value = await call("POST", `${path}/test`, { body: {} }); }} />
        <${Action} label=${webhook.enabled ? "Pause" : "Continue"} send=${() => change({ enabled: !webhook.enabled })} />
        <${Action} label="New key" title=${`Give ${webhook.name} a new key?`} isDanger=${true} no="Keep the old one" send=${() => change({ rotateSecret: true })}>
          <p>From now on messages are signed with the new key. A receiver that has the old one refuses them.</p><//>
        <${Action} label="Remove" title=${`Remove ${webhook.name}?`} isDanger=${true} no="Keep it" send=${async () => { await call("DELETE", path); reload(); }}>
          <p>Messages that wait to be sent are dropped${webhook.backlog ? `: ${plural(webhook.backlog, "message")}` : ""}.</p><//></div>` : null}</div>
    ${webhook.description ? html`<p>${webhook.description}</p>` : null}
    <dl class="pairs"><dt>To</dt><dd><code>${webhook.url}</code></dd>
      <dt>Events</dt><dd>${webhook.events.join(", ") || "all"}${webhook.results.length ? `, only ends with result ${webhook.results.join(" or ")}` : ""}</dd>
      <dt>Workspaces</dt><dd>${webhook.workspaces.join(", ") || "all"}</dd>
      <dt>Waiting to be sent</dt><dd>${webhook.backlog ?? "unknown while Redis is unavailable"}</dd>
      <dt>Made</dt><dd><${Ago} time=${webhook.createdAt} /></dd></dl>
    ${webhook.warnings.map((text) => html`<p key=${text} class="warning">${sentence(text)}.</p>`)}
    ${tried.value ? html`<p role="status" class=${tried.value.delivered ? "" : "bad"}>${tried.value.delivered ? `Accepted with status ${tried.value.status}` : `Not accepted: ${tried.value.detail}`}
      after ${spellDuration(tried.value.durationMs / 1000)}.</p>` : null}</section>`;
}

function NewWebhook({ onMade }) {
  const fields = useSignal({ url: "", name: "", description: "", workspaces: "", events: new Set(), results: new Set() });
  const refusal = useSignal(null);
  const isBusy = useSignal(false);
  const set = (name) => (event) => (fields.value = { ...fields.value, [name]: event.target.value });
  const toggle = (name, word) => () => {
    const words = new Set(fields.value[name]);
    if (!words.delete(word)) words.add(word);
    fields.value = { ...fields.value, [name]: words };
  };
  const send = async (event) => {
    event.preventDefault();
    isBusy.value = true;
    refusal.value = null;
    try {
      onMade(await call("POST", "/webhooks", { body: bodyOf(fields.value) }));
    } catch (found) {
      refusal.value = found;
    }
    isBusy.value = false;
  };
  const wrong = (name) => refusal.value?.errors?.find((each) => each.pointer === `/${name}` || each.pointer.startsWith(`/${name}/`))?.detail ?? "";
  const box = (name, more = {}) => html`<input id=${`field-${name}`} value=${fields.value[name]} onInput=${set(name)} autocomplete="off" spellcheck=${false} aria-describedby=${`about-${name}`}
    aria-invalid=${wrong(name) ? "true" : undefined} ...${more} />`;
  const boxes = (name, words) => html`<div class="boxes">${words.map((word) => html`<label key=${word}><input type="checkbox" checked=${fields.value[name].has(word)} onChange=${toggle(name, word)} /> ${word}</label>`)}</div>`;
  const isTold = refusal.value?.errors?.some((each) => ["url", "name", "description", "workspaces"].some((name) => each.pointer.startsWith(`/${name}`)));
  return html`<form class="card" onSubmit=${send} aria-label="New webhook"><h2>New webhook</h2>
    <${Field} name="url" label="Address of the receiver" hint="a complete address, with https" error=${wrong("url")}>${box("url", { type: "text", class: "mono" })}<//>
    <div class="row"><${Field} name="name" label="Name" hint="generated when empty" error=${wrong("name")}>${box("name", { maxlength: 40 })}<//>
      <${Field} name="workspaces" label="Workspaces" hint="names with commas between them; empty: all" error=${wrong("workspaces")}>${box("workspaces")}<//></div>
    <${Field} name="description" label="Description" error=${wrong("description")}>${box("description", { maxlength: 256 })}<//>
    <fieldset><legend>Events</legend><p class="soft">None chosen: all of them.</p>${boxes("events", facts.events)}</fieldset>
    <fieldset><legend>Only ends with these results</legend><p class="soft">None chosen: ends with any result.</p>${boxes("results", facts.results)}</fieldset>
    ${refusal.value && !isTold ? html`<${Refused} error=${refusal.value} />` : null}
    <p class="actions"><button class="primary" disabled=${!fields.value.url.trim() || isBusy.value}>Make it</button><a class="button" href="/webhooks">Cancel</a></p></form>`;
}

/**
 * The body of a new webhook; empty fields are omitted.
 * @param {{url: string, name: string, description: string, workspaces: string, events: Set<string>, results: Set<string>}} fields
 * @returns {Record<string, any>}
 */
export function bodyOf(fields) {
  const body = { url: fields.url.trim() };
  for (const name of ["name", "description"]) if (fields[name].trim()) body[name] = fields[name].trim();
  const workspaces = fields.workspaces.split(",").map((each) => each.trim()).filter(Boolean);
  if (workspaces.length) body.workspaces = workspaces;
  for (const name of ["events", "results"]) if (fields[name].size) body[name] = [...fields[name]];
  return body;
}
