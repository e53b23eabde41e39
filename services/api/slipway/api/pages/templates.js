// `/templates`: named partial launch bodies; `/templates/NAME`: one as YAML, to change, use or remove it.
import { Action } from "./action.js";
import { call } from "./api.js";
import { Ago, Answered, Copy, Empty, Field, Refused } from "./components.js";
import { mayChange } from "./permissions.js";
import { go, param } from "./router.js";
import { html, useSignal } from "./runtime.js";
import { me, useResource } from "./store.js";
import { isName } from "./words.js";
import { toYaml } from "./yaml.js";
import { faultOf, useYaml } from "./yaml_reader.js";

const START = "image: python:3.12-slim\nranks:\n- name: worker\n  resources:\n    cpu: \"4\"\n    memory: 16Gi\n";

function pageOfTemplate({ name, workspace }) {
  return `/templates/${encodeURIComponent(name)}?workspace=${encodeURIComponent(workspace)}`;
}

function apiPathOfTemplate({ name, workspace }) {
  return `/templates/${encodeURIComponent(name)}?workspace=${encodeURIComponent(workspace)}`;
}

export function Templates() {
  const answer = useResource("/templates", { isSlow: true, isAbout: () => false });
  const isNew = param("new") !== "";
  const canMake = (me.value?.workspaces ?? []).some((workspace) => mayChange({ workspace }));
  return html`<div class="head"><h1 tabindex="-1">Templates</h1>${canMake && !isNew ? html`<a class="button primary" href="/templates?new=1">New template</a>` : null}</div>
    <p class="soft">A template has fields of a launch. A launch that names it has these fields, unless it sets them itself.</p>
    ${isNew ? html`<${NewTemplate} />` : null}
    <${Answered} answer=${answer} what="templates" rows=${3}>${({ items }) => items.length ? html`<table class="list" aria-label="Templates">
      <thead><tr><th>Name</th><th>Workspace</th><th>Made</th><th>Sets</th></tr></thead>
      <tbody>${items.map((each) => html`<tr key=${`${each.workspace}/${each.name}`}><th scope="row"><a href=${pageOfTemplate(each)}>${each.name}</a></th>
        <td data-label="Workspace">${each.workspace}</td><td data-label="Made"><${Ago} time=${each.createdAt} /></td>
        <td class="note">${Object.keys(each.body).join(", ") || "nothing"}</td></tr>`)}</tbody></table>`
      : isNew ? null : html`<${Empty} title="There are no templates">A template stores an image, resources or volumes, so that launches need not repeat them.<//>`}<//>`;
}

function NewTemplate() {
  const name = useSignal("");
  const workspaces = (me.value?.workspaces ?? []).filter((workspace) => mayChange({ workspace }));
  const workspace = useSignal(workspaces.includes("default") ? "default" : workspaces[0] ?? "default");
  const isNamed = isName(name.value);
  return html`<section class="card"><h2>New template</h2><div class="row">
      <${Field} name="name" label="Name" error=${name.value && !isNamed ? "Write small letters, digits and hyphens." : ""} hint="such as a100-large"><input id="field-name" value=${name.value} maxlength="63"
        autocomplete="off" aria-describedby="about-name" onInput=${(event) => (name.value = event.target.value.trim())} /><//>
      <${Field} name="workspace" label="Workspace"><select id="field-workspace" onChange=${(event) => (workspace.value = event.target.value)}>
        ${workspaces.map((each) => html`<option key=${each} value=${each} selected=${each === workspace.value}>${each}</option>`)}</select><//></div>
    <${Editor} start=${START} isReady=${isNamed} verb="Make it" onLeave=${() => go("/templates")}
      save=${async (body) => { const made = await call("POST", "/templates", { body: { name: name.value, workspace: workspace.value, body } }); go(pageOfTemplate(made)); }} />
  </section>`;
}

export function Template({ name }) {
  const place = { name, workspace: param("workspace") || "default" };
  const answer = useResource(apiPathOfTemplate(place), { isAbout: () => false });
  const isEdited = useSignal(false);
  return html`<${Answered} answer=${answer} what=${`template ${name}`} isPage=${true} rows=${4}>${(found) => html`
    <div class="head"><div><h1 tabindex="-1">Template ${found.name}</h1><p class="soft about"><span>in workspace ${found.workspace}</span><span>made <${Ago} time=${found.createdAt} /></span></p></div>
      <div class="actions"><a class="button primary" href=${`/launch?template=${encodeURIComponent(found.name)}&workspace=${encodeURIComponent(found.workspace)}`}>Launch with it</a>
        ${mayChange(found) && !isEdited.value ? html`<button type="button" onClick=${() => (isEdited.value = true)}>Change</button>` : null}
        ${mayChange(found) ? html`<${Action} label="Remove" title=${`Remove template ${found.name}?`} no="Keep it" isDanger=${true}
          send=${async () => { await call("DELETE", apiPathOfTemplate(found)); go("/templates"); }}><p>Workloads that were launched with it do not change.</p><//>` : null}</div></div>
    ${isEdited.value ? html`<${Editor} start=${toYaml(found.body)} isReady=${true} verb="Save" onLeave=${() => (isEdited.value = false)}
        save=${async (body) => { await call("PUT", `/templates/${encodeURIComponent(found.name)}`, { body: { workspace: found.workspace, body } }); isEdited.value = false; answer.reload(); }} />`
      : html`<section class="yaml"><div class="bar"><${Copy} text=${toYaml(found.body)} what="the YAML" /></div><pre tabindex="0" aria-label="The template as YAML">${toYaml(found.body)}</pre></section>`}`}<//>`;
}

function Editor({ start, isReady, verb, save, onLeave }) {
  const text = useSignal(start);
  const read = useYaml(text.value);
  const refusal = useSignal(null);
  const isBusy = useSignal(false);
  const send = async (event) => {
    event.preventDefault();
    isBusy.value = true;
    refusal.value = null;
    try {
      await save(read.value);
    } catch (found) {
      refusal.value = found;
    }
    isBusy.value = false;
  };
  return html`<form class="editor" onSubmit=${send}>
    <${Field} name="yaml" label="Fields of a launch, as YAML" error=${faultOf(read)}><textarea id="field-yaml" class="mono" rows="14" spellcheck=${false}
      value=${text.value} aria-invalid=${read.error ? "true" : undefined} aria-describedby="about-yaml" onInput=${(event) => (text.value = event.target.value)}></textarea><//>
    ${refusal.value ? html`<${Refused} error=${refusal.value} />` : null}
    <p class="actions"><button class="primary" disabled=${!read.value || !read.isRead || !isReady || isBusy.value}>${verb}</button><button type="button" onClick=${onLeave}>Cancel</button></p>
  </form>`;
}
