// The frame: navigation, the state of the connection, the theme, and the choice of the page.
import { loginHref } from "./components.js";
import { facts } from "./facts.js";
import { Home } from "./home.js";
import { latePage } from "./late_page.js";
import { MorePages } from "./more.js";
import { KeysButton, MODIFIER, openPalette, Palette, startKeys } from "./palette.js";
import { path, routes, startRouter } from "./router.js";
import { html, render, signal, useEffect } from "./runtime.js";
import { connection, me, reloadAll, start } from "./store.js";

const Workload = latePage(() => import("./workload.js"), "Workload");
const Queues = latePage(() => import("./queues.js"), "Queues");
const Cluster = latePage(() => import("./cluster.js"), "Cluster");
const Launch = latePage(() => import("./launch.js"), "Launch");
const Usage = latePage(() => import("./usage.js"), "Usage");
const History = latePage(() => import("./history.js"), "History");
const Jobs = latePage(() => import("./jobs.js"), "Jobs");
const Job = latePage(() => import("./jobs.js"), "Job");
const Nodes = latePage(() => import("./nodes.js"), "Nodes");
const OneNode = latePage(() => import("./nodes.js"), "OneNode");
const Templates = latePage(() => import("./templates.js"), "Templates");
const Template = latePage(() => import("./templates.js"), "Template");
const Webhooks = latePage(() => import("./webhooks.js"), "Webhooks");
const Tokens = latePage(() => import("./tokens.js"), "Tokens");
const DeadLetters = latePage(() => import("./dead_letters.js"), "DeadLetters");
// The other pages are loaded after the first page has had time to render, so that they open without a delay.
const OTHERS_AFTER_MS = 3000;

/** {path: [the page, its title]}; the API serves the frame at each of these. */
const PAGES = {
  "/": [Home, () => "Workloads"],
  "/w/{id}": [Workload, ({ id }) => id],
  "/queues": [Queues, () => "Queues"],
  "/queues/{name}": [Queues, ({ name }) => `Queue ${name}`],
  "/cluster": [Cluster, () => "Cluster"],
  "/launch": [Launch, () => "Launch"],
  "/usage": [Usage, () => "Usage"],
  "/history": [History, () => "History"],
  "/jobs": [Jobs, () => "Jobs"],
  "/jobs/{name}": [Job, ({ name }) => `Job ${name}`],
  "/nodes": [Nodes, () => "Nodes"],
  "/nodes/{name}": [OneNode, ({ name }) => `Node ${name}`],
  "/templates": [Templates, () => "Templates"],
  "/templates/{name}": [Template, ({ name }) => `Template ${name}`],
  "/webhooks": [Webhooks, () => "Webhooks"],
  "/tokens": [Tokens, () => "Tokens"],
  "/dead": [DeadLetters, () => "Dead letters"],
  "/more": [MorePages, () => "More"],
};
/** The links of the navigation. A phone has no room for rare ones (`isRare`); the page More shows them as well. */
const LINKS = [
  { href: "/", text: "Workloads", key: "w" },
  { href: "/jobs", text: "Jobs", key: "j", isRare: true, about: "Groups of workloads with one priority and one limit of GPUs." },
  { href: "/queues", text: "Queues", key: "q" },
  { href: "/cluster", text: "Cluster", key: "c" },
  { href: "/launch", text: "Launch", key: "l" },
  { href: "/usage", text: "Usage", key: "u", isRare: true, about: "GPU hours by user, queue and day." },
  { href: "/history", text: "History", key: "h", isRare: true, about: "Workloads at a past time, and their state now." },
  { href: "/more", text: "More", key: "m" },
];
/** The links of the page More. */
const OTHERS = [
  { href: "/nodes", text: "Nodes", key: "n", about: "Nodes with their state, resources and workloads. Drain, disable and enable them." },
  { href: "/templates", text: "Templates", key: "t", about: "Fields of launches for reuse: images, resources, volumes." },
  { href: "/webhooks", text: "Webhooks", key: "k", about: "Receivers of events, and events that wait to be sent." },
  { href: "/dead", text: "Dead letters", key: "d", about: "Messages that could not be processed, and why. Send them again, or drop them." },
  { href: "/tokens", text: "Tokens", key: "o", about: "Users who may call the API, with their roles and expiry times." },
];
const MORE = [...LINKS.filter((link) => link.isRare), ...OTHERS];
const ALL = [...LINKS, ...OTHERS];
const CONNECTIONS = {
  connecting: ["Connecting", "waits"],
  live: ["Live", "good"],
  slow: ["Every few seconds", "waits"],
  offline: ["No answer", "bad"],
  login: ["Not logged in", "bad"],
};
const CONNECTION_HELP = {
  connecting: "The stream of events is being opened.",
  live: "Changes are shown as they happen.",
  slow: "There is no stream of events now (it needs Redis); the page asks again every few seconds.",
  offline: "The API does not answer. This page shows the last known state.",
  login: "Log in to see this page.",
};
const THEMES = { "": "System", light: "Light", dark: "Dark" };

const find = routes(Object.keys(PAGES));
const theme = signal(document.documentElement.dataset.theme ?? "");

function App() {
  const found = find(path.value);
  const [Page, titleOf] = PAGES[found?.pattern ?? "/"];
  useEffect(() => {
    document.title = `${titleOf(found?.params ?? {})} · Slipway`;
  }, [path.value]);
  return html`<a class="skip" href="#main">Skip to the content</a>
    <header><a class="brand" href="/"><span aria-hidden="true"></span>Slipway</a>
      <nav aria-label="Pages">${LINKS.map(({ href, text, isRare }) => html`<a key=${href} href=${href} class=${isRare ? "rare" : undefined} aria-current=${isHere(href) ? "page" : undefined}>${text}</a>`)}</nav>
      <button type="button" class="quiet find" title="Go to a page or a workload" onClick=${openPalette}>Go to <kbd>${MODIFIER} K</kbd></button>
      <${Connection} /><${Menu} /></header>
    <${Banner} /><${Palette} links=${ALL} />
    <main id="main">${connection.value === "login" ? html`<${Login} />` : html`<${Page} key=${found?.pattern} links=${MORE} ...${found?.params ?? {}} />`}</main>`;
}

function isHere(href) {
  if (href === "/more") return path.value === href || OTHERS.some((each) => path.value.startsWith(each.href));
  return href === "/" ? path.value === "/" || path.value.startsWith("/w/") : path.value.startsWith(href);
}

function Connection() {
  const [text, tone] = CONNECTIONS[connection.value];
  return html`<span class="connection" role="status" title=${CONNECTION_HELP[connection.value]}><i class="dot ${tone}"></i><span>${text}</span></span>`;
}

function Banner() {
  if (connection.value !== "offline") return null;
  return html`<p class="banner" role="alert">${CONNECTION_HELP.offline} <button class="quiet" onClick=${reloadAll}>Try now</button></p>`;
}

function Login() {
  return html`<div class="empty"><h1 tabindex="-1">You are not logged in</h1>
    <p>Log in with a token. On a local cluster, <code>slipway open</code> opens this page logged in.</p>
    <p><a class="button primary" href=${loginHref()}>Log in</a></p></div>`;
}

function Menu() {
  const choose = (value) => {
    theme.value = value;
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
    try {
      localStorage.setItem("slipway-theme", value);
    } catch {
      // Without storage, the choice is valid until the page is closed.
    }
  };
  const user = me.value?.user;
  return html`<details class="menu"><summary aria-label=${user ? `${user}: menu` : "Menu"}><span>${user ?? "Menu"}</span></summary><div>
    ${user ? html`<p class="soft">${user}${me.value.auth === "none" ? ", without a login" : ""}</p>` : null}
    <p class="choice" role="group" aria-label="Colours">${Object.entries(THEMES).map(([value, text]) => html`<button key=${value} type="button"
      aria-pressed=${String(theme.value === value)} onClick=${() => choose(value)}>${text}</button>`)}</p>
    <p><a href="/docs" target="_blank" rel="noopener">REST API</a> <${KeysButton} /></p>
    ${me.value && me.value.auth !== "none" ? html`<form method="post" action="/logout"><button>Log out</button></form>` : null}
    <p class="soft">Slipway ${facts.version}</p></div></details>`;
}

startRouter();
startKeys(ALL);
start();
setTimeout(() => Object.values(PAGES).forEach(([Page]) => "load" in Page && Page.load()), OTHERS_AFTER_MS);
document.addEventListener("click", (event) => {
  const menu = document.querySelector("details.menu[open]");
  if (menu && event.target instanceof Node && !menu.contains(event.target)) menu.removeAttribute("open");
});
render(html`<${App} />`, document.getElementById("app"));
