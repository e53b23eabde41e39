// Splits a command line into words like a shell, and quotes words for a shell. Pure.

/**
 * The words of a command line. Single quotes, double quotes and backslashes work as in a shell.
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
  if (quote) throw new Error(`a ${quote} is not closed`);
  if (word !== null) words.push(word);
  return words;
}

/**
 * A word, quoted for a shell if necessary.
 * @param {string} word
 * @returns {string}
 */
export function quoted(word) {
  return /^[A-Za-z0-9_./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/**
 * Whether Kubernetes accepts a text as the name of an object.
 * @param {string} text
 * @returns {boolean}
 */
export function isName(text) {
  return /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/.test(text);
}
