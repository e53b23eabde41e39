// Converts the fields of the launch form to a body of the API and to equivalent commands, and back. Pure.
import { facts } from "./facts.js";
import { quoted, wordsOf } from "./words.js";

/**
 * @typedef {{kind: string, name: string, workspace: string, template: string, job: string, image: string, command: string,
 *   ranks: string, gpus: string, cpu: string, memory: string, queue: string, priority: string, maxRuntime: string,
 *   maxRestarts: string, setup: string, env: string, home: boolean, hold: boolean, role: string, rest: Record<string, any>}} Fields `rest` are the fields of the body for which the
 *   form has no field; `role` is the name of the only role
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
  for (const name of TEXTS) if (fields[name].trim()) body[name] = fields[name].trim();
  try {
    const words = wordsOf(fields.command);
    if (words.length) body.command = words;
  } catch (error) {
    errors.command = error.message;
  }
  for (const name of NUMBERS) if (fields[name].trim()) body[name] = numberOr(fields[name]);
  for (const name of CHECKS) if (fields[name]) body[name] = true;
  const env = envOf(fields.env, errors);
  if (Object.keys(env).length) body.env = env;
  if (fields.rest.ranks) return { body, errors };
  const resources = {};
  if (fields.cpu.trim()) resources.cpu = fields.cpu.trim();
  if (fields.memory.trim()) resources.memory = fields.memory.trim();
  if (Number(fields.gpus)) resources[facts.gpu] = numberOr(fields.gpus);
  const count = numberOr(fields.ranks || "1");
  if (count !== 1 || Object.keys(resources).length) body.ranks = [{ name: fields.role, count, ...(Object.keys(resources).length ? { resources } : {}) }];
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
 * The form fields of a body. Values without a form field are kept in `rest`, so that no part of the body is lost.
 * @param {any} body
 * @returns {Fields}
 */
export function fieldsOfBody(body) {
  const fields = { ...BLANK, rest: {} };
  for (const [name, value] of Object.entries(body)) if (!take(fields, name, value)) fields.rest[name] = value;
  return fields;
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
  return value !== null && typeof value === "object" && !Array.isArray(value) && Object.values(value).every((each) => typeof each === "string" && !each.includes("\n"));
}

function takeRanks(fields, value) {
  if (!Array.isArray(value) || value.length !== 1) return false;
  const [role] = value;
  if (role === null || typeof role !== "object" || Object.keys(role).some((key) => !["name", "count", "resources"].includes(key))) return false;
  const asked = role.resources ?? {};
  if (Object.keys(asked).some((key) => !["cpu", "memory", facts.gpu].includes(key)) || Object.values(asked).some((each) => !["string", "number"].includes(typeof each))) return false;
  fields.role = role.name ?? "worker";
  fields.ranks = String(role.count ?? 1);
  fields.cpu = String(asked.cpu ?? "");
  fields.memory = String(asked.memory ?? "");
  fields.gpus = String(asked[facts.gpu] ?? 0);
  return true;
}

/** Fields of a spec that a launch cannot have: those that the API adds, and secret variables, whose values are unknown. */
const NOT_OF_A_BODY = new Set(["requestHash", "signals", "desired", "hold", "queuePosition", "maxRuntimeOverride", "secretVariables", "after"]);
/** Fields of a spec that do not prevent a simple form. Any other field that is not empty needs the whole body. */
const SHOWN = new Set(["kind", "queue", "priority", "ranks", "minAvailable", "template", "env", "maxRuntime", "job", "preemptionGrace"]);

/**
 * The whole body that launches an allocation again, under a new name. `slipway rerun` sends the same.
 * @param {any} view
 * @returns {any}
 */
export function bodyAgain(view) {
  const spec = Object.fromEntries(Object.entries(view.spec).filter(([name]) => !NOT_OF_A_BODY.has(name)));
  const labels = ownLabels(view);
  return { workspace: view.workspace, ...(Object.keys(labels).length ? { labels } : {}), ...spec };
}

// The labels of the user: Slipway sets labels of its own, and refuses them in a launch.
function ownLabels(view) {
  return Object.fromEntries(Object.entries(view.labels ?? {}).filter(([name]) => !name.split("/")[0].endsWith("slipway.dev")));
}

/**
 * The form fields to launch an allocation again. A simple allocation fills the form. For any other one the whole body is
 * kept, and the form shows the part that it can show.
 * @param {any} view
 * @returns {Fields}
 */
export function fieldsOf(view) {
  return isSimple(view) ? simpleFields(view) : fieldsOfBody(bodyAgain(view));
}

function isSimple(view) {
  const { spec } = view;
  const pod = spec.template?.spec ?? {};
  const [role = {}] = spec.ranks ?? [];
  const isServing = ["notebook", "shell", "tensorboard"].includes(view.kind);
  const hasMore = Object.entries(spec).some(([name, value]) => !SHOWN.has(name) && !NOT_OF_A_BODY.has(name) && !isEmpty(value)
    && !(name === "pool" && value === "default") && !(name === "ports" && isServing));
  const main = pod.containers?.[0] ?? {};
  const more = [...(spec.ranks ?? []).slice(1), ...(pod.containers ?? []).slice(1), ...(pod.initContainers ?? []), ...(pod.volumes ?? []), ...(main.env ?? [])];
  return !hasMore && !more.length && !spec.secretVariables?.length && !Object.keys(ownLabels(view)).length && (role.minAvailable ?? role.count) === role.count;
}

function isEmpty(value) {
  return !value || (typeof value === "object" && Object.keys(value).length === 0);
}

function simpleFields(view) {
  const { spec } = view;
  const main = spec.template?.spec?.containers?.[0] ?? {};
  const role = spec.ranks?.[0] ?? {};
  const asked = role.resources?.requests ?? {};
  const env = Object.entries(spec.env ?? {}).map(([name, value]) => `${name}=${value}`).join("\n");
  return { ...BLANK, rest: {}, kind: view.kind, role: role.name ?? BLANK.role, job: view.job ?? "", workspace: view.workspace, image: main.image ?? "", queue: view.queue, env,
    command: [...(main.command ?? []), ...(main.args ?? [])].map(quoted).join(" "), ranks: String(role.count ?? 1),
    gpus: String(asked[facts.gpu] ?? 0), cpu: asked.cpu ?? "", memory: asked.memory ?? "", priority: String(view.priority), maxRuntime: spec.maxRuntime ?? "" };
}

/**
 * The `slipway` command for the same launch; `slipway apply` with a file when options cannot express it.
 * @param {Fields} fields
 * @param {any} body the body of these fields
 * @returns {string}
 */
export function toCommand(fields, body) {
  const role = body.ranks?.[0] ?? {};
  const isSayable = fields.role === BLANK.role && (body.kind === "training" || (role.count ?? 1) === 1);
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
