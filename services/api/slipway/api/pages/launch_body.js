// The fields of the launch form, as a body of the API and as commands that do the same. Pure.
import { facts } from "./facts.js";
import { quoted, wordsOf } from "./words.js";

/**
 * @typedef {{kind: string, name: string, workspace: string, image: string, command: string, ranks: string, gpus: string,
 *   cpu: string, memory: string, queue: string, priority: string, maxRuntime: string, env: string, hold: boolean}} Fields
 */

/** @type {Fields} */
export const BLANK = { kind: "command", name: "", workspace: "", image: "", command: "", ranks: "1", gpus: "0", cpu: "",
  memory: "", queue: "", priority: "", maxRuntime: "", env: "", hold: false };

/** Which field of the form a JSON pointer of the API is about; the longest that fits counts. */
const POINTERS = [["/kind", "kind"], ["/name", "name"], ["/workspace", "workspace"], ["/image", "image"], ["/command", "command"],
  ["/queue", "queue"], ["/priority", "priority"], ["/maxRuntime", "maxRuntime"], ["/env", "env"], ["/hold", "hold"],
  ["/ranks/0/count", "ranks"], ["/ranks/0/resources/cpu", "cpu"], ["/ranks/0/resources/memory", "memory"],
  ["/ranks/0/resources", "gpus"], ["/ranks", "ranks"]];

/**
 * What the form asks for.
 * @param {Fields} fields
 * @returns {{body: any, errors: Record<string, string>}} `errors` are those of fields that no body can be made of
 */
export function bodyOf(fields) {
  /** @type {Record<string, string>} */
  const errors = {};
  const body = { kind: fields.kind };
  for (const name of ["name", "workspace", "image", "queue", "maxRuntime"]) if (fields[name].trim()) body[name] = fields[name].trim();
  try {
    const words = wordsOf(fields.command);
    if (words.length) body.command = words;
  } catch (error) {
    errors.command = error.message;
  }
  if (fields.priority.trim()) body.priority = numberOr(fields.priority);
  if (fields.hold) body.hold = true;
  const env = envOf(fields.env, errors);
  if (Object.keys(env).length) body.env = env;
  const resources = {};
  if (fields.cpu.trim()) resources.cpu = fields.cpu.trim();
  if (fields.memory.trim()) resources.memory = fields.memory.trim();
  if (Number(fields.gpus)) resources[facts.gpu] = numberOr(fields.gpus);
  const count = numberOr(fields.ranks || "1");
  if (count !== 1 || Object.keys(resources).length) body.ranks = [{ name: "worker", count, ...(Object.keys(resources).length ? { resources } : {}) }];
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
 * Which field a problem is about; empty for one that the form has no field for.
 * @param {string} pointer
 * @returns {string}
 */
export function fieldOf(pointer) {
  // The name of a resource has a slash, which a pointer spells ~1.
  if (pointer.includes(facts.gpu.replace("/", "~1"))) return "gpus";
  return POINTERS.find(([start]) => pointer === start || pointer.startsWith(`${start}/`))?.[1] ?? "";
}

/**
 * The fields of an allocation, to launch it again.
 * @param {any} view
 * @returns {{fields: Fields, isWhole: boolean}} not whole: it has what the form does not show
 */
export function fieldsOf(view) {
  const { spec } = view;
  const main = spec.template?.spec?.containers?.[0] ?? {};
  const role = spec.ranks?.[0] ?? {};
  const asked = role.resources?.requests ?? {};
  const env = Object.entries(spec.env ?? {}).map(([name, value]) => `${name}=${value}`).join("\n");
  const fields = { ...BLANK, kind: view.kind, workspace: view.workspace, image: main.image ?? "", queue: view.queue, env,
    command: [...(main.command ?? []), ...(main.args ?? [])].map(quoted).join(" "), ranks: String(role.count ?? 1),
    gpus: String(asked[facts.gpu] ?? 0), cpu: asked.cpu ?? "", memory: asked.memory ?? "", priority: String(view.priority), maxRuntime: spec.maxRuntime ?? "" };
  const pod = spec.template?.spec ?? {};
  const more = [...(spec.ranks ?? []).slice(1), ...(pod.containers ?? []).slice(1), ...(pod.initContainers ?? []), ...(pod.volumes ?? []), ...(main.env ?? [])];
  const isWhole = !more.length && !spec.context && !spec.files && !spec.secretVariables && !spec.maxRestarts && !view.job;
  return { fields, isWhole };
}

/**
 * The command that launches the same.
 * @param {any} body
 * @returns {string}
 */
export function toCommand(body) {
  const role = body.ranks?.[0] ?? {};
  const words = ["slipway", ...(body.kind === "training" ? ["run"] : [body.kind, "start"])];
  const add = (option, value) => value !== undefined && words.push(option, quoted(String(value)));
  add("--name", body.name);
  add("--workspace", body.workspace);
  add("--image", body.image);
  add("--queue", body.queue);
  if (body.kind === "training") add("--ranks", role.count);
  add("--gpus", role.resources?.[facts.gpu]);
  add("--cpus", role.resources?.cpu);
  add("--memory", role.resources?.memory);
  add("--priority", body.priority);
  add("--max-runtime", body.maxRuntime);
  for (const [name, value] of Object.entries(body.env ?? {})) add("--env", `${name}=${value}`);
  if (body.hold) words.push("--hold");
  if (body.command) words.push("--", ...body.command.map(quoted));
  return words.join(" ");
}

/**
 * The request that launches the same; the token is that of the shell's environment.
 * @param {any} body
 * @param {string} origin
 * @param {boolean} needsToken
 * @returns {string}
 */
export function toCurl(body, origin, needsToken) {
  const head = needsToken ? ` \\\n  -H "Authorization: Bearer $SLIPWAY_TOKEN"` : "";
  return `curl -X POST ${quoted(`${origin}/api/v1/allocations`)}${head} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(body))}`;
}
