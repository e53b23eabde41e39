// How busy the GPUs of workloads are, if the cluster has a Prometheus with figures of its GPUs.
import { pageOf } from "./allocation.js";
import { Lasted, Meter, dash } from "./components.js";
import { plural, spellDuration } from "./format.js";
import { html } from "./runtime.js";
import { useResource } from "./store.js";

const PATH = "/gpu-use";

/**
 * @typedef {{id: string, user: string, queue: string, gpus: number, runningSince: string, percent: number | null,
 *   peakPercent: number | null, isIdle: boolean}} Use
 * @typedef {{isConfigured: boolean, windowSeconds: number, idleSeconds: number, idlePercent: number, items: Use[]}} GpuUse
 */

/**
 * The number of GPUs that idle workloads occupy, for a line of text; nothing when there are none, or no figures.
 * @returns {any}
 */
export function IdleGpus() {
  const { data } = useResource(PATH, { isSlow: true, isAbout: () => false });
  const idle = data?.items.filter((row) => row.isIdle) ?? [];
  const gpus = idle.reduce((sum, row) => sum + row.gpus, 0);
  return gpus ? html`${" · "}<a href="/usage#gpu-use">${plural(gpus, "GPU")} held and idle</a>` : null;
}

/**
 * How busy the GPUs of one running workload are, in a few words; nothing when there are no figures.
 * @param {{id: string}} properties
 */
export function UseOf({ id }) {
  const { data, error } = useResource(`${PATH}?id=${encodeURIComponent(id)}`, { isSlow: true, isAbout: () => false });
  if (error) return html`<span class="soft" title=${error.message}>use of GPUs unknown</span>`;
  const row = data?.items[0];
  if (!row || row.percent === null) return null;
  return html`<span title=${`mean over the last ${spellDuration(data.windowSeconds)}`}>GPUs ${Math.round(row.percent)} % busy</span>
    ${row.isIdle ? html`<span class="state tone-waits">GPUs idle for ${spellDuration(data.idleSeconds)}</span>` : null}`;
}

/**
 * A table of all workloads that occupy GPUs now, idle ones first; nothing when the cluster has no figures.
 * @returns {any}
 */
export function GpuUseNow() {
  const answer = useResource(PATH, { isSlow: true, isAbout: () => false });
  if (answer.error) return html`<section id="gpu-use"><h2>What GPUs do now</h2><p class="warning" role="status">${answer.error.message}</p></section>`;
  /** @type {GpuUse | null} */
  const found = answer.data;
  if (!found?.isConfigured) return null;
  const idle = found.items.filter((row) => row.isIdle).reduce((sum, row) => sum + row.gpus, 0);
  const held = found.items.reduce((sum, row) => sum + row.gpus, 0);
  return html`<section id="gpu-use"><h2>What GPUs do now <small>${held ? `${idle} of ${plural(held, "GPU")} held and idle` : "no GPU is held"}</small></h2>
    ${found.items.length ? html`<table class="list usage" aria-label="What GPUs do now">
      <thead><tr><th>Workload</th><th>User</th><th>Queue</th><th class="number">GPUs</th><th>Busy</th><th class="number">Mean</th><th class="number">Peak</th><th>Running</th></tr></thead>
      <tbody>${found.items.map((row) => html`<${UseRow} key=${row.id} row=${row} found=${found} />`)}</tbody></table>` : null}
    <p class="soft">Mean over the last ${spellDuration(found.windowSeconds)}, peak over the last ${spellDuration(found.idleSeconds)}. GPUs are idle if they
      were never ${found.idlePercent} % busy or more in that time.</p></section>`;
}

function UseRow({ row, found }) {
  const known = row.percent !== null;
  return html`<tr><th scope="row"><a href=${pageOf(row.id)}>${row.id}</a>${row.isIdle ? html` <span class="state tone-waits" title=${`idle for ${spellDuration(found.idleSeconds)}`}>idle</span>` : null}</th>
    <td data-label="User">${row.user || dash()}</td><td data-label="Queue">${row.queue}</td><td class="number" data-label="GPUs">${row.gpus}</td>
    <td class="wide">${known ? html`<${Meter} used=${row.percent} whole=${100} label=${`${Math.round(row.percent)} % busy`} />` : null}</td>
    <td class="number" data-label="Mean">${known ? `${Math.round(row.percent)} %` : html`<span class="soft">no data</span>`}</td>
    <td class="number" data-label="Peak">${known ? `${Math.round(row.peakPercent)} %` : dash()}</td>
    <td data-label="Running"><${Lasted} from=${row.runningSince} /></td></tr>`;
}
