// Parses YAML that people write. The parser is loaded when it is first needed.
import { useEffect, useSignal } from "./runtime.js";

const NO_MAPPING = "write names and values, such as kind: command";

/**
 * @typedef {{value: any, error: string, line: number}} ReadYaml `error` is empty when the text is valid; `line` is that of
 *   the error, from 1; 0 when the error has no line
 * @typedef {ReadYaml & {isRead: boolean}} YamlNow `isRead` false: the other fields are those of an older text
 */

/**
 * Read one document that is a mapping, as YAML 1.2 or JSON.
 * @param {string} text
 * @returns {Promise<ReadYaml>}
 */
export async function readYaml(text) {
  if (!text.trim()) return { value: null, error: NO_MAPPING, line: 0 };
  const { load } = await import("js-yaml");
  try {
    const value = load(text);
    if (value === null || typeof value !== "object" || Array.isArray(value)) return { value: null, error: NO_MAPPING, line: 0 };
    return { value, error: "", line: 0 };
  } catch (error) {
    return { value: null, error: error.reason ?? error.message, line: error.mark ? error.mark.line + 1 : 0 };
  }
}

/**
 * The value of a text while it is typed; with null nothing is parsed.
 * @param {string | null} text
 * @returns {YamlNow}
 */
export function useYaml(text) {
  const read = useSignal({ value: null, error: "", line: 0, text: /** @type {string | null} */ (null) });
  useEffect(() => {
    let isOver = false;
    if (text !== null) readYaml(text).then((found) => isOver || (read.value = { ...found, text }));
    return () => (isOver = true);
  }, [text]);
  const { value, error, line } = read.value;
  return { value, error, line, isRead: text !== null && read.value.text === text };
}

/**
 * The error of a text, with its line; empty when the text is valid.
 * @param {ReadYaml} read
 * @returns {string}
 */
export function faultOf({ error, line }) {
  return error && line ? `Line ${line}: ${error}` : error;
}
