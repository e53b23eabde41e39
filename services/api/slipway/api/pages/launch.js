// `/launch`: a form that the API checks with dry runs while the user types; it shows what would be launched.
import { apiPathOf, pageOf } from "./allocation.js";
import { call, newKey } from "./api.js";
import { Choice, Copy, Failure, Field, Loading } from "./components.js";
import { facts } from "./facts.js";
import { plural, sentence } from "./format.js";
import { BLANK, bodyOf, fieldOf, fieldsOfBody, isSameWork, shortFields, toCommand, toCurl, toManifest, toPython, wholeFields } from "./launch_body.js";
import { go, param, setParam } from "./router.js";
import { html, useEffect, useMemo, useSignal } from "./runtime.js";
import { me, useResource } from "./store.js";
import { toYaml } from "./yaml.js";
import { faultOf, useYaml } from "./yaml_reader.js";

const TYPING_MS = 350;

export function Launch() {
  const from = param("from");
  if (from) return html`<${Again} key=${from} from=${from} />`;
  return html`<${Draft} start=${{ ...BLANK, template: param("template"), workspace: param("workspace"), job: param("job") }} />`;
}

function Again({ from }) {
  const source = useResource(apiPathOf(from), { isAbout: () => false });
  const start = useSignal(/** @type {import("./launch_body.js").Fields | null} */ (null));
  useEffect(() => {
    if (!source.data) return undefined;
    const aborter = new AbortController();
    startOf(source.data, aborter.signal).then((fields) => {
      if (!aborter.signal.aborted) start.value ??= fields;
    });
    return () => aborter.abort();
  }, [Boolean(source.data)]);
  if (start.value) return html`<${Draft} start=${start.value} from=${from} secrets=${source.data?.spec.secretVariables ?? []} />`;
  return source.error ? html`<${Failure} error=${source.error} what="that workload" onRetry=${source.reload} />` : html`<${Loading} rows=${6} label="Loading the first launch" />`;
}

// The short form, if the API makes the same spec of it as the first launch has; otherwise the whole body.
async function startOf(view, signal) {
  const short = shortFields(view);
  const preview = await call("POST", "/allocations?dryRun=true", { body: bodyOf(short).body, signal }).catch(() => null);
  return preview && isSameWork(view.spec, preview.spec) ? short : wholeFields(view);
}

function Draft({ start, from = "", secrets = [] }) {
  const fields = useSignal(start);
  /** The text of the YAML editor; null until it is first opened. */
  const text = useSignal(/** @type {string | null} */ (null));
  const check = useSignal({ errors: {}, others: [], preview: null, refusal: null, isBlank: false });
  const isBusy = useSignal(false);
  const key = useMemo(newKey, []);
  const isYaml = param("as") === "yaml";
  const ofForm = useMemo(() => bodyOf(fields.value), [fields.value]);
  useEffect(() => {
    if (isYaml && text.value === null) text.value = toYaml(ofForm.body);
  }, [isYaml]);
  const read = useYaml(isYaml ? text.value : null);
  const made = isYaml ? { body: read.value ?? ofForm.body, errors: read.error ? { yaml: faultOf(read) } : {} } : ofForm;
  const isReading = isYaml && !read.isRead;
  const sent = JSON.stringify(made.body);
  useEffect(() => {
    const aborter = new AbortController();
    const timer = setTimeout(() => rehearse(made, check, aborter.signal, isYaml), TYPING_MS);
    return () => {
      clearTimeout(timer);
      aborter.abort();
    };
  }, [sent, JSON.stringify(made.errors), isYaml]);
  const launch = async (event) => {
    event.preventDefault();
    if (isBusy.value || isReading) return;
    isBusy.value = true;
    try {
      const view = await call("POST", "/allocations", { body: made.body, headers: { "idempotency-key": `${key}-${hashOf(sent)}` } });
      go(pageOf(view.id));
    } catch (refusal) {
      check.value = { ...refused(refusal, isYaml), preview: null };
      isBusy.value = false;
    }
  };
  const writeAs = (way) => {
    if (way === "yaml") text.value = toYaml(ofForm.body);
    else if (read.value) fields.value = fieldsOfBody(read.value);
    setParam("as", way);
  };
  const shown = { ...check.value.errors, ...made.errors };
  const { others, preview, refusal, isBlank } = check.value;
  const isBad = Object.keys(shown).length > 0 || others.length > 0;
  return html`<div class="head"><h1 tabindex="-1">Launch</h1>
      <${Choice} label="Written as" options=${[["", "Form"], ["yaml", "YAML"]]} chosen=${isYaml ? "yaml" : ""} onChoose=${writeAs} /></div>
    ${from ? html`<p class="soft">Filled in from <a href=${pageOf(from)}>${from}</a>.${secrets.length ? ` The values of ${secrets.join(", ")} are not stored: write them again, in the YAML under secretValues.` : ""}</p>` : null}
    <form class="launch" onSubmit=${launch} aria-label="Launch">
      ${isYaml ? html`<div class="fields card"><${Field} name="yaml" label="Fields of the launch" error=${made.errors.yaml} hint="YAML or JSON; slipway apply -f accepts the same file"><textarea id="field-yaml" name="yaml"
          class="mono" rows="24" spellcheck=${false} value=${text.value ?? ""} aria-invalid=${made.errors.yaml ? "true" : undefined} aria-describedby="about-yaml" onInput=${(event) => (text.value = event.target.value)}></textarea><//></div>`
        : html`<${Form} fields=${fields} shown=${shown} />`}
      <aside class="outcome card" aria-label="What would happen">
        <h2>What would happen</h2>
        <div aria-live="polite">
          ${refusal ? html`<p class="bad">${refusal.status === 403 ? `Not permitted. ${sentence(refusal.message)}` : sentence(refusal.message)}</p>` : null}
          ${others.map((each) => html`<p class="bad">${each.pointer ? html`<code>${each.pointer.slice(1).replaceAll("/", ".")}</code> ` : null}${each.detail}</p>`)}
          ${isBad ? html`<p class="bad">${plural(Object.keys(shown).length + others.length, "thing")} to correct before it can be launched.</p>` : null}
          ${preview && !isBad ? html`<${Outcome} preview=${preview} />` : null}
          ${isBlank && !isBad ? html`<p class="soft">Write a command, or name an image that has one.</p>` : null}
          ${!preview && !isBad && !refusal && !isBlank ? html`<p class="soft">Checking</p>` : null}
        </div>
        <p class="actions"><button class="primary" disabled=${isBad || isBlank || isReading || isBusy.value}>${isBusy.value ? "Launching" : "Launch"}</button></p>
        <${Copies} fields=${isYaml ? fieldsOfBody(made.body) : fields.value} body=${made.body} preview=${preview} />
        ${preview ? html`<details><summary>The spec that would be stored</summary><pre tabindex="0">${toYaml(preview.spec)}</pre></details>
          <details><summary>The objects that would be created (${preview.objects.length})</summary><pre tabindex="0">${preview.objects.map(toYaml).join("---\n")}</pre></details>` : null}
      </aside>
    </form>`;
}

// The same launch for other tools: as a command, as YAML and so on.
function Copies({ fields, body, preview }) {
  const way = useSignal("Command");
  const texts = { Command: () => toCommand(fields, body), YAML: () => toYaml(body), curl: () => toCurl(body, location.origin, me.value?.auth !== "none"), Python: () => toPython(body),
    kubectl: () => (preview ? `kubectl create -f - <<'EOF'\n${toYaml(toManifest(body, preview.spec))}EOF\n` : "") };
  const text = texts[way.value]();
  return html`<div class="same"><p><b>The same as</b> ${text ? html`<${Copy} text=${text} what=${`as ${way.value}`} />` : null}</p>
    <${Choice} label="The same as" options=${Object.keys(texts).map((each) => [each, each])} chosen=${way.value} onChoose=${(value) => (way.value = value)} />
    ${text ? html`<pre tabindex="0">${way.value === "Command" ? unbroken(text) : text}</pre>` : html`<p class="soft">It is shown once the launch has no mistakes.</p>`}</div>`;
}

function Form({ fields, shown }) {
  const queues = useResource("/queues");
  const templates = useResource("/templates", { isAbout: () => false });
  const set = (name) => (event) => {
    const value = event.target.type === "checkbox" ? event.target.checked : event.target.value;
    fields.value = { ...fields.value, [name]: value };
  };
  const field = (name, label, input, hint) => html`<${Field} name=${name} label=${label} hint=${hint} error=${shown[name]}>${input}<//>`;
  const box = (name, more = {}) => html`<input id=${`field-${name}`} name=${name} value=${fields.value[name]} onInput=${set(name)} autocomplete="off" spellcheck=${false}
    aria-invalid=${shown[name] ? "true" : undefined} aria-describedby=${`about-${name}`} ...${more} />`;
  const own = queues.data?.items ?? [];
  const hasRanks = !fields.value.rest.ranks;
  const workspace = fields.value.workspace || "default";
  const named = (templates.data?.items ?? []).filter((each) => each.workspace === workspace).map((each) => each.name);
  const rest = Object.keys(fields.value.rest);
  return html`<div class="fields card">
        ${rest.length ? html`<p class="soft">The YAML also has ${rest.map((name, index) => html`${index ? ", " : ""}<code>${name}</code>`)}: the form does not show these fields, and does not change them.</p>` : null}
        <fieldset><legend>What</legend>
          <${Choice} label="Kind" options=${facts.kinds.map((kind) => [kind, kind])} chosen=${fields.value.kind} onChoose=${(kind) => (fields.value = { ...fields.value, kind })} />
          ${field("command", "Command", html`<textarea id="field-command" name="command" rows="3" class="mono" spellcheck=${false} value=${fields.value.command} onInput=${set("command")}
            placeholder="python train.py --epochs 3" aria-invalid=${shown.command ? "true" : undefined} aria-describedby="about-command"></textarea>`, "words and quotes as in a shell, but no shell runs them")}
          ${field("setup", "Setup", html`<textarea id="field-setup" name="setup" rows="2" class="mono" spellcheck=${false} value=${fields.value.setup} onInput=${set("setup")}
            placeholder="pip install -r requirements.txt" aria-invalid=${shown.setup ? "true" : undefined} aria-describedby="about-setup"></textarea>`, "a script that each rank runs before the command")}
          <div class="row">
            ${field("image", "Image", box("image", { placeholder: "the pool's", class: "mono" }))}
            ${field("name", "Name", box("name", { placeholder: "generated", maxlength: 40 }))}
          </div>
        </fieldset>
        <fieldset><legend>How much</legend>
          ${hasRanks ? null : html`<p class="soft">The ranks are written in the YAML.</p>`}
          <div class="row four">
            ${field("ranks", "Ranks", box("ranks", { type: "number", min: 1, max: 4096, disabled: !hasRanks }), "start together")}
            ${field("gpus", "GPUs", box("gpus", { type: "number", min: 0, disabled: !hasRanks }), "of each rank")}
            ${field("cpu", "CPU", box("cpu", { placeholder: "default", disabled: !hasRanks }), "such as 2 or 500m")}
            ${field("memory", "Memory", box("memory", { placeholder: "default", disabled: !hasRanks }), "such as 4Gi")}
          </div>
        </fieldset>
        <fieldset><legend>Where and when</legend>
          <div class="row four">
            ${field("queue", "Queue", own.length ? html`<select id="field-queue" name="queue" onChange=${set("queue")} aria-describedby="about-queue">
              ${optionsOf(own.map((queue) => queue.name), fields.value.queue)}</select>` : box("queue", { placeholder: "default" }))}
            ${field("workspace", "Workspace", html`<select id="field-workspace" name="workspace" onChange=${set("workspace")} aria-describedby="about-workspace">
              ${optionsOf(me.value?.workspaces ?? [], fields.value.workspace)}</select>`)}
            ${field("priority", "Priority", box("priority", { type: "number", min: 0, max: 1000, placeholder: "50" }), "higher goes first")}
            ${field("maxRuntime", "Longest run", box("maxRuntime", { placeholder: "no limit" }), "such as 2h")}
          </div>
          <div class="row three">
            ${field("template", "Template", html`<select id="field-template" name="template" disabled=${Boolean(fields.value.rest.template)} onChange=${set("template")} aria-describedby="about-template">
              <option value="" selected=${!fields.value.template}>none</option>${[...new Set([...named, ...(fields.value.template ? [fields.value.template] : [])])].map((name) => html`<option key=${name} value=${name} selected=${name === fields.value.template}>${name}</option>`)}</select>`, "fields that the launch inherits")}
            ${field("job", "Job", box("job", { placeholder: "none" }), "groups it with others")}
            ${field("maxRestarts", "Restarts", box("maxRestarts", { type: "number", min: 0, max: 1000, placeholder: "0" }), "when it fails")}
          </div>
          ${field("env", "Environment", html`<textarea id="field-env" name="env" rows="2" class="mono" spellcheck=${false} value=${fields.value.env} onInput=${set("env")} placeholder="NAME=value"
            aria-invalid=${shown.env ? "true" : undefined} aria-describedby="about-env"></textarea>`, "one variable a line")}
          <label class="check"><input type="checkbox" name="home" checked=${fields.value.home} onChange=${set("home")} aria-describedby="about-home" /> Home directory: a volume that is kept from launch to launch</label>
          <small id="about-home" class="bad">${shown.home}</small>
          <label class="check"><input type="checkbox" checked=${fields.value.hold} onChange=${set("hold")} /> Hold it: do not start before it is resumed</label>
        </fieldset>
      </div>`;
}

// The options of a select. Without a choice it is `default`; a chosen name stays an option even if it no longer exists.
function optionsOf(names, chosen) {
  const all = [...new Set(["default", ...(chosen ? [chosen] : []), ...names])];
  return all.map((name) => html`<option key=${name} value=${name} selected=${name === (chosen || "default")}>${name}</option>`);
}

function Outcome({ preview }) {
  const { capacity, warnings } = preview;
  const starts = capacity.startsNow ? html`<span class="state tone-good">fits now</span> ` : html`<span class="state tone-waits">would wait</span> `;
  return html`<p>${starts}${capacity.fitNow} of ${plural(capacity.ranks, "rank")} fit on the free nodes and devices of pool ${capacity.pool} (${plural(capacity.nodes, "node")}).</p>
    ${warnings.map((warning) => html`<p class="warning">${sentence(warning)}.</p>`)}`;
}

// Keeps an option of the command and its value on one line.
function unbroken(text) {
  return text.split(/( --?[a-z-]+(?: [^\s'"-][^\s'"]{0,30})?(?=\s|$))/).map((part, index) => (index % 2 ? html` <span class="word">${part.slice(1)}</span>` : part));
}

async function rehearse({ body, errors }, check, signal, isYaml) {
  if (Object.keys(errors).length) {
    check.value = { errors: {}, others: [], preview: null, refusal: null, isBlank: false };
    return;
  }
  if (!isYaml && !body.command && !body.image && !body.template && ["command", "training"].includes(body.kind)) {
    check.value = { errors: {}, others: [], preview: null, refusal: null, isBlank: true };
    return;
  }
  try {
    const preview = await call("POST", "/allocations?dryRun=true", { body, signal });
    check.value = { errors: {}, others: [], preview, refusal: null, isBlank: false };
  } catch (refusal) {
    if (signal.aborted) return;
    check.value = { ...refused(refusal, isYaml), preview: null };
  }
}

// In the form a problem is shown at its field. YAML has no fields, so its problems are listed with their pointers.
function refused(refusal, isYaml) {
  const errors = {};
  const others = [];
  for (const each of refusal.errors ?? []) {
    const name = isYaml ? "" : fieldOf(each.pointer);
    if (name && !errors[name]) errors[name] = each.detail;
    else others.push(each);
  }
  const isTold = Object.keys(errors).length || others.length;
  return { errors, others, refusal: isTold ? null : refusal, isBlank: false };
}

// A hash of the body, for the idempotency key: another body is another launch and needs another key.
function hashOf(text) {
  let hash = 0;
  for (const letter of text) hash = (Math.imul(hash, 31) + letter.codePointAt(0)) | 0;
  return (hash >>> 0).toString(16);
}
