// Words of a shell: a command line taken apart, and put together again. Pure.

/**
 * The words of a command line, with single quotes, double quotes and backslashes as a shell has them.
 * @param {string} line
 * @returns {string[]} Throws an Error for a quote without its end.
 */
export function wordsOf(line) {
  const words = [];
  let word = null;
  let quote = "";
  for (let at = 0; at < line.length; at += 1) {
    const letter = line[at];
    if (quote) {
      if (letter === quote) quote = "";
      else if (letter === "\\" && quote === '"' && '"\\$`'.includes(line[at + 1] ?? " ")) word += line[(at += 1)];
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      word ??= "";
    } else if (letter === "\\" && at + 1 < line.length) {
      at += 1;
      if (line[at] !== "\n") word = (word ?? "") + line[at];
    } else if (/\s/.test(letter)) {
      if (word !== null) words.push(word);
      word = null;
    } else {
      word = (word ?? "") + letter;
    }
  }
  if (quote) throw new Error(`a ${quote} has no end`);
  if (word !== null) words.push(word);
  return words;
}

/**
 * A word as a shell takes it.
 * @param {string} word
 * @returns {string}
 */
export function quoted(word) {
  return /^[A-Za-z0-9_./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/**
 * Whether Kubernetes takes it as the name of an object.
 * @param {string} text
 * @returns {boolean}
 */
export function isName(text) {
  return /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/.test(text);
}
