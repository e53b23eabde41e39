// The waiting page: follows the events of its allocation, and reloads to the workload's own page as soon as that answers.
const { id, phase, ended } = document.body.dataset;
const STEPS = ["Pending", "Assigned", "Pulling", "Starting", "Running"];
const LOOK_MS = 2000;
const LOOK_MAX_MS = 10000;
const root = new URL(document.body.dataset.root, location.href);
const api = `api/v1/allocations/${encodeURIComponent(id)}`;
const started = new Map();
const steps = new Map([...document.querySelectorAll(".steps li")].map((item) => [item.dataset.phase, item]));
const message = document.querySelector(".message");
let now = phase;
let isLooking = false;
let isDue = false;

const url = (path) => new URL(path, root);

function show() {
  const place = STEPS.indexOf(now);
  STEPS.forEach((name, index) => {
    const item = steps.get(name);
    if (!item) return;
    item.classList.toggle("done", index < place);
    item.classList.toggle("now", index === place && !ended);
    if (index === place) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
    const begin = started.get(name);
    const after = STEPS.slice(index + 1).map((each) => started.get(each)).find(Boolean);
    if (begin && index <= place) item.querySelector("time").textContent = spent(((after ?? Date.now()) - begin) / 1000);
  });
}

function spent(seconds) {
  if (seconds < 0.05) return "";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

function happened({ data }) {
  const { type, time, data: { phase: reached } = {} } = JSON.parse(data);
  if (!reached) return;
  if (type.endsWith(".restarted")) started.clear();
  if (!started.has(reached)) started.set(reached, Date.parse(time));
  now = reached;
  show();
  look();
}

// One look at a time, so that an API that hangs collects no requests. A look that is due meanwhile follows.
async function look() {
  isDue = true;
  if (isLooking) return;
  isLooking = true;
  while (isDue) {
    isDue = false;
    if (await answers()) location.reload();
  }
  isLooking = false;
}

// Whether the workload's own page answers; if not, the reason is shown.
async function answers() {
  const answer = await read(location.href, { headers: { accept: "text/html" }, redirect: "manual" });
  if (answer && ![502, 503, 504].includes(answer.status)) return true;
  const why = await read(url(`${api}/explain`)).then((found) => found.json()).catch(() => null);
  if (why?.message && now !== "Running") message.textContent = why.message;
  return false;
}

function read(address, options) {
  return fetch(address, { ...options, signal: AbortSignal.timeout(LOOK_MAX_MS) }).catch(() => null);
}

if (!ended) {
  new EventSource(url(`${api}/events`)).onmessage = happened;
  setInterval(look, LOOK_MS);
  setInterval(show, 500);
}
show();
