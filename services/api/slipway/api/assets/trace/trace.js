// The waterfall: the spans of one allocation on one time axis, children below their parents; it polls until the end.
const { id } = document.body.dataset;
const api = new URL(`../api/v1/allocations/${encodeURIComponent(id)}`, location.href);
const AGAIN_MS = 2000;
const FAR = 8;
const TICKS = matchMedia("(max-width: 40rem)").matches ? 3 : 6;
const SHOWN = ["api", "scheduler", "podworker", "watcher"];
const $ = (selector) => document.querySelector(selector);
const made = (tag, text = "", kind = "") => Object.assign(document.createElement(tag), { textContent: text, className: kind });
const open = new Set();
let spans = [];
let extent = "";

// Looks until the end. Nothing else schedules a look, so there is only one at a time.
async function look() {
  const [allocation, trace] = await Promise.all([read(""), read("/trace")]);
  const failure = [allocation, trace].find((answer) => !answer.data);
  if (failure ? tell(failure.status) : take(allocation.data, trace.data)) setTimeout(look, AGAIN_MS);
}

// The answer of the API; without `data` it was refused, and with status 0 it did not come.
async function read(path) {
  try {
    const answer = await fetch(`${api}${path}`, { headers: { accept: "application/json" } });
    return { status: answer.status, data: answer.ok ? await answer.json() : null };
  } catch {
    return { status: 0, data: null };
  }
}

// Shows what was read; returns whether more can follow.
function take(allocation, trace) {
  $("#phase").textContent = allocation.result ? `${allocation.phase}, ${allocation.result}` : allocation.phase;
  const before = spans.length;
  spans = ordered(trace.spans);
  $(".message").textContent = trace.warnings.join("; ") || (spans.length ? "" : "No spans are recorded.");
  if (spans.length !== before || !spans.length) show();
  document.body.dataset.ended = allocation.phase === "Terminated" ? "true" : "";
  // The last spans are written with a delay, so the page looks again after the end, until no more spans arrive.
  return allocation.phase !== "Terminated" || spans.length !== before;
}

// Says why nothing was read; returns whether the next look may read it.
function tell(status) {
  const message = $(".message");
  if (status === 401) {
    const login = made("a", "Log in");
    login.href = new URL(`../login?next=${encodeURIComponent(location.pathname)}`, location.href);
    message.replaceChildren(login, " to see it.");
    return false;
  }
  message.textContent = status === 404 ? "There is no such allocation." : "The API does not answer; trying again.";
  return status !== 404;
}

// Each span is followed by its children, the earliest first; a span without a known parent is at the top level.
function ordered(found) {
  const known = new Set(found.map((span) => span.spanId));
  const children = new Map();
  for (const span of [...found].sort((a, b) => a.startNs - b.startNs || b.endNs - a.endNs)) {
    const parent = known.has(span.parentSpanId) && span.parentSpanId !== span.spanId ? span.parentSpanId : "";
    children.set(parent, [...(children.get(parent) ?? []), span]);
  }
  const rows = [];
  const walk = (parent, depth) => {
    for (const span of children.get(parent) ?? []) {
      rows.push({ ...span, depth, start: span.startNs / 1e6, end: span.endNs / 1e6 });
      walk(span.spanId, depth + 1);
    }
  };
  walk("", 0);
  return rows;
}

// The time range: from the first span to the end of the first start, or to the end of the last span.
function frame() {
  const begin = Math.min(...spans.map((span) => span.start));
  const end = Math.max(...spans.map((span) => span.end), begin + 1);
  const work = spans.filter((span) => !/^(attempt|container|allocation)\b/.test(span.name));
  const up = work.filter((span) => span.name === "watcher.running").map((span) => span.end);
  const first = Math.max(begin + 1, up.length ? Math.min(...up) : Math.max(...work.map((span) => span.end), begin + 1));
  extent ||= end - begin > FAR * (first - begin) ? "start" : "all";
  return { begin, end: extent === "start" ? first : end };
}

function show() {
  const rows = $("ol.rows");
  rows.replaceChildren();
  $(".axis .ticks").replaceChildren();
  if (!spans.length) return;
  const { begin, end } = frame();
  const whole = end - begin;
  for (const button of document.querySelectorAll("[data-extent]")) {
    button.setAttribute("aria-pressed", String(button.dataset.extent === extent));
  }
  for (let tick = 0; tick < TICKS; tick += 1) {
    const mark = made("span", spell((whole * tick) / (TICKS - 1)));
    mark.style.left = `${(100 * tick) / (TICKS - 1)}%`;
    $(".axis .ticks").append(mark);
  }
  $("#whole").textContent = `${spans.length} spans, ${spell(Math.max(...spans.map((span) => span.end)) - begin)}`;
  rows.append(...spans.map((span) => row(span, begin, whole)));
}

function row(span, begin, whole) {
  const item = made("li");
  const details = made("details");
  const summary = made("summary");
  const name = made("span", span.name, "name");
  const track = made("span", "", "track");
  const bar = made("i");
  const from = Math.min(1, (span.start - begin) / whole);
  const to = Math.min(1, (span.end - begin) / whole);
  name.style.paddingLeft = `${span.depth * 0.9}em`;
  name.title = span.name;
  bar.style.left = `min(${100 * from}%, 100% - 3px)`;
  bar.style.width = `${100 * Math.max(0, to - from)}%`;
  bar.classList.toggle("far", span.start - begin > whole);
  track.append(bar);
  details.dataset.of = SHOWN.includes(span.service) ? span.service : "";
  details.dataset.span = span.spanId;
  details.classList.toggle("failed", !span.ok);
  summary.append(name, track, made("span", spell(span.end - span.start), "took"));
  details.append(summary);
  details.open = open.has(span.spanId);
  if (details.open) details.append(told(span, begin));
  details.addEventListener("toggle", () => {
    if (details.open) open.add(span.spanId);
    else open.delete(span.spanId);
    if (details.open && !details.querySelector("dl")) details.append(told(span, begin));
  });
  item.append(details);
  return item;
}

function told(span, begin) {
  const list = made("dl");
  const add = (key, value) => list.append(made("dt", key), made("dd", value));
  add("service", `${span.service} (${span.kind})`);
  add("begins after", spell(span.start - begin));
  add("at", new Date(span.start).toISOString());
  if (!span.ok) add("ended", "badly");
  for (const [key, value] of Object.entries(span.attributes).sort()) add(key, value);
  for (const link of span.links) {
    const named = spans.find((other) => link.split("-")[2] === other.spanId);
    add("follows from", named ? named.name : link);
  }
  add("span", span.spanId);
  return list;
}

function spell(ms) {
  if (ms < 1) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  if (ms < 3600000) return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
  return `${Math.floor(ms / 3600000)} h ${Math.round((ms % 3600000) / 60000)} min`;
}

for (const button of document.querySelectorAll("[data-extent]")) {
  button.addEventListener("click", () => {
    ({ extent } = button.dataset);
    show();
  });
}
look();
