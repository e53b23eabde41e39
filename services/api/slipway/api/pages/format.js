// Formats times, durations, amounts and counts for people. Pure.
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const SCALES = { m: 1e-3, k: 1e3, K: 1e3, M: 1e6, G: 1e9, T: 1e12, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40 };

/**
 * A duration in at most two units.
 * @param {number} seconds
 * @returns {string}
 */
export function spellDuration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 1) return s === 0 ? "0 s" : `${Math.max(1, Math.round(s * 1000))} ms`;
  if (s < 10) return `${s.toFixed(1).replace(".0", "")} s`;
  if (s < MINUTE) return `${Math.floor(s)} s`;
  if (s < HOUR) return two(s, MINUTE, "min", 1, "s");
  if (s < DAY) return two(s, HOUR, "h", MINUTE, "min");
  return two(s, DAY, "d", HOUR, "h");
}

function two(seconds, large, largeName, small, smallName) {
  const whole = Math.floor(seconds / large);
  const rest = Math.floor((seconds - whole * large) / small);
  return rest && whole < 10 ? `${whole} ${largeName} ${rest} ${smallName}` : `${whole} ${largeName}`;
}

/**
 * A time relative to now: how long ago, or in how long.
 * @param {string} time RFC 3339
 * @param {number} now in milliseconds
 * @returns {string}
 */
export function spellAgo(time, now) {
  const seconds = (now - Date.parse(time)) / 1000;
  if (Number.isNaN(seconds)) return "";
  if (Math.abs(seconds) < 2) return "now";
  const whole = spellDuration(Math.floor(Math.abs(seconds)));
  return seconds < 0 ? `in ${whole}` : `${whole} ago`;
}

/**
 * The exact time, in the zone of the reader and in UTC.
 * @param {string} time RFC 3339
 * @returns {string}
 */
export function spellExact(time) {
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? time : `${at.toLocaleString()} (${time.replace(".000", "")})`;
}

/**
 * The time of day of a log line or an event.
 * @param {string} time RFC 3339
 * @returns {string}
 */
export function spellClock(time) {
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? "" : at.toLocaleTimeString(undefined, { hour12: false });
}

/**
 * A Kubernetes quantity as a number, in its base unit.
 * @param {string | number | undefined} quantity
 * @returns {number}
 */
export function amountOf(quantity) {
  if (quantity === undefined || quantity === null) return 0;
  const found = /^([0-9.]+)([A-Za-z]*)$/.exec(String(quantity));
  return found ? Number(found[1]) * (SCALES[found[2]] ?? 1) : 0;
}

/**
 * Bytes in binary units.
 * @param {number} bytes
 * @returns {string}
 */
export function spellBytes(bytes) {
  for (const unit of ["Ti", "Gi", "Mi", "Ki"]) {
    if (bytes >= SCALES[unit]) return `${trim(bytes / SCALES[unit])} ${unit}B`;
  }
  return `${bytes} B`;
}

/**
 * A number with at most one decimal, and separators between thousands.
 * @param {number} value
 * @returns {string}
 */
export function trim(value) {
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

/**
 * A count with its noun.
 * @param {number} count
 * @param {string} one
 * @param {string} [many]
 * @returns {string}
 */
export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

/**
 * A text of the API as a sentence: with a capital letter; the caller adds the full stop.
 * @param {string} text
 * @returns {string}
 */
export function sentence(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : "";
}

/**
 * A filter that tests whether the text of an item contains the wanted words; upper and lower case are equal. The text of
 * an item is cached, because a changed item is another object.
 * @template {object} T
 * @param {(item: T) => string} textOf
 * @returns {(item: T, wanted: string) => boolean}
 */
export function finder(textOf) {
  /** @type {WeakMap<T, string>} */
  const known = new WeakMap();
  return (item, wanted) => {
    if (!wanted) return true;
    let text = known.get(item);
    if (text === undefined) known.set(item, (text = textOf(item).toLowerCase()));
    return text.includes(wanted.toLowerCase());
  };
}
