// Writes a JSON value, such as an answer of the API, as YAML that parses to the same value. Pure.
const PLAIN = /^[A-Za-z_/][A-Za-z0-9_./@%+-]*(?: [A-Za-z0-9_./@%+-]+)*$/;
const WORDS = /^(?:true|false|yes|no|on|off|null|y|n|~)$/i;

/**
 * A value as a YAML document.
 * @param {any} value
 * @returns {string}
 */
export function toYaml(value) {
  return `${block(value, "").replace(/^\n/, "")}\n`;
}

function block(value, indent) {
  if (Array.isArray(value)) return value.length ? value.map((item) => `\n${indent}- ${entry(item, indent)}`).join("") : " []";
  if (value && typeof value === "object") {
    const rows = Object.entries(value).filter(([, each]) => each !== undefined);
    return rows.length ? rows.map(([key, each]) => `\n${indent}${scalar(key)}:${under(each, indent)}`).join("") : " {}";
  }
  return ` ${scalar(value)}`;
}

function entry(item, indent) {
  const inner = block(item, `${indent}  `);
  return inner.startsWith("\n") ? inner.slice(1).trimStart() : inner.slice(1);
}

function under(value, indent) {
  if (typeof value === "string" && value.includes("\n")) return literal(value, `${indent}  `);
  return block(value, Array.isArray(value) ? indent : `${indent}  `);
}

// A text of several lines as a YAML block; as a quoted text if YAML would change it in a block.
function literal(text, indent) {
  if (/[\u0000-\u0008\u000b-\u001f\u007f\u0085\u2028\u2029]/.test(text) || /^[ \n]/.test(text)) return ` ${JSON.stringify(text)}`;
  const end = text.endsWith("\n\n") ? "+" : text.endsWith("\n") ? "" : "-";
  const lines = (end === "+" || end === "" ? text.slice(0, -1) : text).split("\n");
  return ` |${end}${lines.map((line) => `\n${line && indent}${line}`).join("")}`;
}

function scalar(value) {
  if (typeof value !== "string") return String(value);
  return PLAIN.test(value) && !WORDS.test(value) ? value : JSON.stringify(value);
}
