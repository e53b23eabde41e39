// Escape sequences of terminals in log lines: colours and styles are kept, all other sequences are removed. Pure.

/**
 * @typedef {{text: string, classes: string, color: string, background: string}} Run text in one style
 */

// Control Sequence Introducers, Operating System Commands, and two-character escapes. Source: ECMA-48.
const ESCAPES = /\u001b(?:\[([0-9;:]*)[ -/]*([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[ -/]*[0-~])/g;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f]/g;
const STYLES = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 9: "strike" };
const ENDS = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 29: ["strike"] };
const LEVELS = [0, 95, 135, 175, 215, 255];

/**
 * A line without its escape sequences. Text that a carriage return overwrites is removed.
 * @param {string} line
 * @returns {string}
 */
export function plainText(line) {
  return printed(line).replace(ESCAPES, "").replace(CONTROLS, "");
}

function printed(line) {
  if (!line.includes("\r")) return line;
  const parts = line.split("\r").filter(Boolean);
  return parts.at(-1) ?? "";
}

/**
 * A line as runs of text; each run has one style.
 * @param {string} line
 * @returns {Run[]}
 */
export function styledRuns(line) {
  const text = printed(line);
  if (!text.includes("\u001b")) return [{ text: text.replace(CONTROLS, ""), classes: "", color: "", background: "" }];
  const style = { on: new Set(), color: "", background: "" };
  /** @type {Run[]} */
  const runs = [];
  let from = 0;
  const add = (until) => {
    const part = text.slice(from, until).replace(CONTROLS, "");
    if (part) runs.push({ text: part, ...shown(style) });
  };
  for (const found of text.matchAll(ESCAPES)) {
    add(found.index);
    from = found.index + found[0].length;
    if (found[2] === "m") change(style, found[1]);
  }
  add(text.length);
  return runs;
}

function shown({ on, color, background }) {
  const [front, back] = on.has("reverse") ? [background || "paper", color || "ink"] : [color, background];
  const named = [...on].map((name) => `ansi-${name}`);
  if (front && !front.startsWith("rgb")) named.push(`ansi-${front}`);
  if (back && !back.startsWith("rgb")) named.push(`ansi-on-${back}`);
  return {
    classes: named.join(" "),
    color: front.startsWith("rgb") ? front : "",
    background: back.startsWith("rgb") ? back : "",
  };
}

function change(style, codes) {
  const numbers = codes.split(/[;:]/).map(Number);
  for (let index = 0; index < numbers.length; index += 1) {
    const code = numbers[index];
    if (code === 0) Object.assign(style, { on: new Set(), color: "", background: "" });
    else if (STYLES[code]) style.on.add(STYLES[code]);
    else if (ENDS[code]) ENDS[code].forEach((name) => style.on.delete(name));
    else if (code === 7) style.on.add("reverse");
    else if (code === 27) style.on.delete("reverse");
    else if (code === 39) style.color = "";
    else if (code === 49) style.background = "";
    else if (code >= 30 && code <= 37) style.color = String(code - 30);
    else if (code >= 90 && code <= 97) style.color = String(code - 82);
    else if (code >= 40 && code <= 47) style.background = String(code - 40);
    else if (code >= 100 && code <= 107) style.background = String(code - 92);
    else if (code === 38 || code === 48) {
      const [value, used] = extended(numbers.slice(index + 1));
      style[code === 38 ? "color" : "background"] = value;
      index += used;
    }
  }
}

/** @returns {[string, number]} the colour, and how many numbers it used */
function extended([form, ...rest]) {
  if (form === 2) return [`rgb(${rest.slice(0, 3).map((part) => part & 255).join(" ")})`, 4];
  if (form !== 5) return ["", 1];
  const number = rest[0] & 255;
  if (number < 16) return [String(number), 2];
  if (number > 231) {
    const grey = 8 + 10 * (number - 232);
    return [`rgb(${grey} ${grey} ${grey})`, 2];
  }
  const cube = number - 16;
  const parts = [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map((part) => LEVELS[part]);
  return [`rgb(${parts.join(" ")})`, 2];
}
