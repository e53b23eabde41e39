// Converts the fields of the launch form to a body of the API and to equivalent commands, and back. Pure.
import { facts } from "./facts.js";
import { quoted, wordsOf } from "./words.js";

/**
 * @typedef {{kind: string, name: string, workspace: string, template: string, job: string, image: string, command: string,
 *   ranks: string, gpus: string, cpu: string, memory: string, queue: string, priority: string, maxRuntime: string,
 *   maxRestarts: string, setup: string, env: string, home: boolean, hold: boolean, role: string, rest: Record<string, any>}} Fields `rest` are the fields of the body for which the
 *   form has no field; `role` is the name of the only role; empty: the API names it
 */

/** @type {Fields} */
export const BLANK = { kind: "command", name: "", workspace: "", template: "", job: "", image: "", command: "", ranks: "1", gpus: "0",
  cpu: "", memory: "", queue: "", priority: "", maxRuntime: "", maxRestarts: "", setup: "", env: "", home: false, hold: false, role: "worker", rest: {} };

/** Fields that are a line of text in the form and a string in the body. */
const TEXTS = ["name", "workspace", "template", "job", "image", "queue", "maxRuntime", "setup"];
/** Fields that are a number in the body. A text that is no number is sent as it is, and the API refuses it. */
const NUMBERS = ["priority", "maxRestarts"];
const CHECKS = ["home", "hold"];

/** [JSON pointer of the API, field of the form]; the first pointer that matches is used, so longer ones are first. */
const POINTERS = [["/kind", "kind"], ["/name", "name"], ["/workspace", "workspace"], ["/template", "template"], ["/job", "job"], ["/image", "image"], ["/command", "command"],
  ["/queue", "queue"], ["/priority", "priority"], ["/maxRuntime", "maxRuntime"], ["/maxRestarts", "maxRestarts"], ["/setup", "setup"], ["/env", "env"], ["/home", "home"], ["/hold", "hold"],
  ["/ranks/0/count", "ranks"], ["/ranks/0/resources/cpu", "cpu"], ["/ranks/0/resources/memory", "memory"],
  ["/ranks/0/resources", "gpus"], ["/ranks", "ranks"]];

/**
 * The body of the launch in the form.
 * @param {Fields} fields
 * @returns {{body: any, errors: Record<string, string>}} `errors`: {field: why it cannot be put into a body}
 */
export function bodyOf(fields) {
  /** @type {Record<string, string>} */
  const errors = {};
  /** @type {Record<string, any>} */
  const body = { ...fields.rest, kind: fields.kind };
  for (const name of TEXTS) if (fields[name].trim()) body[name] = name === "setup" ? fields[name] : fields[name].trim();
  try {
    const words = wordsOf(fields.command);
    if (words.length) body.command = words;
  } catch (error) {
    errors.command = error.message;
  }
  for (const name of NUMBERS) if (fields[name].trim()) body[name] = numberOr(fields[name]);
  for (const name of CHECKS) if (fields[name]) body[name] = true;
  const env = envOf(fields.env, errors);
  if (Object.keys(env).length) body.env = { ...(isObject(fields.rest.env) ? fields.rest.env : {}), ...env };
  if (fields.rest.ranks) return { body, errors };
  const resources = {};
  if (fields.cpu.trim()) resources.cpu = fields.cpu.trim();
  if (fields.memory.trim()) resources.memory = fields.memory.trim();
  if (Number(fields.gpus)) resources[facts.gpu] = numberOr(fields.gpus);
  const count = fields.ranks.trim() ? numberOr(fields.ranks) : undefined;
  const hasResources = Object.keys(resources).length > 0;
  if ((count ?? 1) !== 1 || hasResources) {
    body.ranks = [{ ...(fields.role ? { name: fields.role } : {}), ...(count === undefined ? {} : { count }), ...(hasResources ? { resources } : {}) }];
  }
  return { body, errors };
}

function numberOr(text) {
  const number = Number(text);
  return text.trim() && Number.isFinite(number) ? number : text;
}

function envOf(text, errors) {
  const env = {};
  for (const line of text.split("\n").filter((each) => each.trim())) {
    const at = line.indexOf("=");
    if (at < 1) errors.env = `write NAME=value, not ${line.trim()}`;
    else env[line.slice(0, at).trim()] = line.slice(at + 1);
  }
  return env;
}

/**
 * The form field of a problem; empty when the form has no field for it.
 * @param {string} pointer
 * @returns {string}
 */
export function fieldOf(pointer) {
  // The name of the GPU resource contains a slash, which is ~1 in a pointer.
  if (pointer.includes(facts.gpu.replace("/", "~1"))) return "gpus";
  return POINTERS.find(([start]) => pointer === start || pointer.startsWith(`${start}/`))?.[1] ?? "";
}

/**
 * The form fields of a body. A value is put into the form only if the form gives the same value back. Any other value is
 * kept in `rest`, so that no part of the body is lost.
 * @param {any} body
 * @returns {Fields}
 */
export function fieldsOfBody(body) {
  const fields = { ...BLANK, rest: {} };
  for (const [name, value] of Object.entries(body)) {
    const alone = { ...BLANK, rest: {} };
    if (take(alone, name, value) && isSame(bodyOf(alone).body[name], value, isSameText)) take(fields, name, value);
    else fields.rest[name] = value;
  }
  return fields;
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

// Whether two values of JSON are equal; the order of the keys of an object does not matter.
function isSame(one, other, isEqual = Object.is) {
  if (one === null || other === null || typeof one !== "object" || typeof other !== "object") return isEqual(one, other);
  const keys = Object.keys(one);
  return Array.isArray(one) === Array.isArray(other) && keys.length === Object.keys(other).length
    && keys.every((key) => Object.hasOwn(other, key) && isSame(one[key], other[key], isEqual));
}

// A number and its text are the same to the form: 2 CPUs and "2" CPUs.
function isSameText(one, other) {
  return one === other || (typeof one !== typeof other && [one, other].every((each) => ["number", "string"].includes(typeof each)) && String(one) === String(other));
}

// Puts a value of the body into its form field; returns false when the form cannot show the value.
function take(fields, name, value) {
  if (name === "kind" || TEXTS.includes(name)) return typeof value === "string" && setTo(fields, name, value);
  if (CHECKS.includes(name)) return typeof value === "boolean" && setTo(fields, name, value);
  if (NUMBERS.includes(name)) return typeof value === "number" && setTo(fields, name, String(value));
  if (name === "command") return isWords(value) && setTo(fields, name, value.map(quoted).join(" "));
  if (name === "env") return isPlainEnv(value) && setTo(fields, name, Object.entries(value).map(([key, each]) => `${key}=${each}`).join("\n"));
  return name === "ranks" && takeRanks(fields, value);
}

function setTo(fields, name, value) {
  fields[name] = value;
  return true;
}

function isWords(value) {
  return Array.isArray(value) && value.length > 0 && value.every((word) => typeof word === "string");
}

function isPlainEnv(value) {
  return isObject(value) && Object.values(value).every((each) => typeof each === "string");
}

function takeRanks(fields, value) {
  if (!Array.isArray(value) || value.length !== 1) return false;
  const [role] = value;
  if (!isObject(role)) return false;
  const asked = role.resources ?? {};
  fields.role = role.name ?? "";
  fields.ranks = String(role.count ?? "");
  fields.cpu = String(asked.cpu ?? "");
  fields.memory = String(asked.memory ?? "");
  fields.gpus = String(asked[facts.gpu] ?? 0);
  return true;
}

/** Fields of a spec that a launch cannot have: those that the API adds, and secret variables, whose values are unknown. */
const NOT_OF_A_BODY = new Set(["requestHash", "signals", "desired", "hold", "queuePosition", "maxRuntimeOverride", "secretVariables", "after"]);
/** Values of a body that a launch has without saying them. */
const UNSAID = { pool: "default", preemptible: false, home: false, maxRestarts: 0 };

/**
 * The whole body that launches an allocation again, under a new name. `slipway rerun` sends the same.
 * @param {any} view
 * @returns {any}
 */
export function bodyAgain(view) {
  const labels = ownLabels(view);
  return { workspace: view.workspace, ...(Object.keys(labels).length ? { labels } : {}), ...again(view.spec) };
}

// The part of a spec that the next launch of the same allocation has too.
function again(spec) {
  return Object.fromEntries(Object.entries(spec).filter(([name]) => !NOT_OF_A_BODY.has(name)));
}

// The labels of the user: Slipway sets labels of its own, and refuses them in a launch.
function ownLabels(view) {
  return Object.fromEntries(Object.entries(view.labels ?? {}).filter(([name]) => !name.split("/")[0].endsWith("slipway.dev")));
}

/**
 * Whether two allocations run the same work: whatever a launch can set is equal in both specs.
 * @param {any} spec
 * @param {any} other
 * @returns {boolean}
 */
export function isSameWork(spec, other) {
  return isSame(again(spec), again(other));
}

/**
 * The form fields to launch an allocation again, with its whole body. The form shows the part that it can show.
 * @param {any} view
 * @returns {Fields}
 */
export function wholeFields(view) {
  return fieldsOfBody(bodyAgain(view));
}

/**
 * The form fields that a user would have filled in to launch the allocation. They may miss something: they are good only if
 * `isSameWork` holds for the spec that the API makes of them.
 * @param {any} view
 * @returns {Fields}
 */
export function shortFields(view) {
  const { template, ranks, ...rest } = bodyAgain(view);
  for (const name of ["minAvailable", "preemptionGrace", "ports"]) delete rest[name];
  for (const [name, value] of Object.entries(UNSAID)) if (rest[name] === value) delete rest[name];
  const main = template?.spec?.containers?.[0] ?? {};
  const words = (main.command ?? []).map(typed);
  const role = shortRole(ranks?.[0] ?? {});
  return fieldsOfBody({ ...rest, ...(main.image ? { image: main.image } : {}), ...(words.length && !words.includes(null) ? { command: words } : {}),
    ...(role.resources || role.count > 1 ? { ranks: [role] } : {}) });
}

function shortRole({ name = BLANK.role, count = 1, resources }) {
  const { cpu, memory, [facts.gpu]: gpus } = resources?.requests ?? {};
  const asked = { ...(cpu ? { cpu } : {}), ...(memory ? { memory } : {}), ...(Number(gpus) ? { [facts.gpu]: Number(gpus) } : {}) };
  return { name, count, ...(Object.keys(asked).length ? { resources: asked } : {}) };
}

// A word of a stored command as the user typed it: the API writes $$ for a $ where Kubernetes would replace a variable.
// Null for a word that nobody can type, because Kubernetes replaces a variable in it.
function typed(word) {
  if (!/\$[$(]/.test(word)) return word;
  const plain = word.replaceAll("$$", () => "$");
  return plain.replaceAll("$", () => "$$") === word ? plain : null;
}

/**
 * The `slipway` command for the same launch; `slipway apply` with a file when options cannot express it.
 * @param {Fields} fields
 * @param {any} body the body of these fields
 * @returns {string}
 */
export function toCommand(fields, body) {
  const role = body.ranks?.[0] ?? {};
  const isSayable = ["", BLANK.role].includes(fields.role) && (body.kind === "training" || (role.count ?? 1) === 1);
  if (Object.keys(fields.rest).length || !isSayable) return "slipway apply -f launch.yaml";
  const words = ["slipway", ...(body.kind === "training" ? ["run"] : [body.kind, "start"])];
  const add = (option, value) => value !== undefined && words.push(option, quoted(String(value)));
  add("--name", body.name);
  add("--workspace", body.workspace);
  add("--template", body.template);
  add("--job", body.job);
  add("--image", body.image);
  add("--queue", body.queue);
  if (body.kind === "training") add("--ranks", role.count);
  add("--gpus", role.resources?.[facts.gpu]);
  add("--cpus", role.resources?.cpu);
  add("--memory", role.resources?.memory);
  add("--priority", body.priority);
  add("--max-runtime", body.maxRuntime);
  add("--max-restarts", body.maxRestarts);
  add("--setup", body.setup);
  for (const [name, value] of Object.entries(body.env ?? {})) add("--env", `${name}=${value}`);
  if (body.home) words.push("--home");
  if (body.hold) words.push("--hold");
  if (body.command) words.push("--", ...body.command.map(quoted));
  return words.join(" ");
}

/**
 * The `curl` command for the same launch; its token is taken from the environment of the shell.
 * @param {any} body
 * @param {string} origin
 * @param {boolean} needsToken
 * @returns {string}
 */
export function toCurl(body, origin, needsToken) {
  const head = needsToken ? ` \\\n  -H "Authorization: Bearer $SLIPWAY_TOKEN"` : "";
  return `curl -X POST ${quoted(`${origin}/api/v1/allocations`)}${head} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(body))}`;
}

/**
 * The Python program for the same launch, with the SDK.
 * @param {any} body
 * @returns {string}
 */
export function toPython(body) {
  const { kind, ...rest } = body;
  const lines = Object.entries(rest).map(([name, value]) => `    ${name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)}=${python(value, "    ")},\n`);
  return `from slipway.sdk import Client\n\nrun = Client().launch(\n    ${JSON.stringify(kind ?? "command")},\n${lines.join("")})\nrun.wait()\n`;
}

function python(value, indent) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  if (Array.isArray(value)) {
    const flat = `[${value.map((each) => python(each, inner)).join(", ")}]`;
    return flat.length < 72 ? flat : `[\n${value.map((each) => `${inner}${python(each, inner)},\n`).join("")}${indent}]`;
  }
  const rows = Object.entries(value);
  const flat = `{${rows.map(([key, each]) => `${JSON.stringify(key)}: ${python(each, inner)}`).join(", ")}}`;
  return flat.length < 72 ? flat : `{\n${rows.map(([key, each]) => `${inner}${JSON.stringify(key)}: ${python(each, inner)},\n`).join("")}${indent}}`;
}

/**
 * The same launch as an object of Kubernetes, for `kubectl create -f`.
 * @param {any} body
 * @param {any} spec the whole spec, from the answer to a dry run
 * @returns {any}
 */
export function toManifest(body, spec) {
  const named = body.name ? { name: body.name } : { generateName: `${body.kind}-` };
  return { apiVersion: "slipway.dev/v1alpha1", kind: "Allocation",
    metadata: { ...named, namespace: body.workspace || "default", ...(body.labels ? { labels: body.labels } : {}) }, spec };
}
