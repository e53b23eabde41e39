// The GPUs of the nodes of a cluster, the free ones, and the largest gang that fits. Pure.

/**
 * @typedef {{name: string, pool: string, gpuType: string, gpus: number, gpusUsed: number, ready: boolean,
 *   schedulable: boolean, scheduling: string, labels: Record<string, string>, ranks: any[]}} NodeView
 * @typedef {{pool: string, type: string, gpus: number, free: number, unusable: number, nodes: number}} Part
 */

/**
 * Whether new work may be placed on the node.
 * @param {NodeView} node
 * @returns {boolean}
 */
export function isUsable(node) {
  return node.ready && node.schedulable;
}

/**
 * The number of its free GPUs; 0 when no new work may be placed on it.
 * @param {NodeView} node
 * @returns {number}
 */
export function freeOf(node) {
  return isUsable(node) ? Math.max(0, node.gpus - node.gpusUsed) : 0;
}

/**
 * GPUs by pool and type; the part with the most free GPUs is first.
 * @param {NodeView[]} nodes
 * @returns {Part[]}
 */
export function partsOf(nodes) {
  /** @type {Map<string, Part>} */
  const parts = new Map();
  for (const node of nodes) {
    if (!node.gpus) continue;
    const key = `${node.pool}\n${node.gpuType}`;
    const part = parts.get(key) ?? { pool: node.pool, type: node.gpuType, gpus: 0, free: 0, unusable: 0, nodes: 0 };
    part.gpus += node.gpus;
    part.free += freeOf(node);
    part.unusable += isUsable(node) ? 0 : Math.max(0, node.gpus - node.gpusUsed);
    part.nodes += 1;
    parts.set(key, part);
  }
  return [...parts.values()].sort((a, b) => b.free - a.free || b.gpus - a.gpus);
}

/**
 * Number of ranks of a size that fit on the free GPUs now, each on one node. Only GPUs are considered: the planner also
 * considers CPU, memory, quotas and topology.
 * @param {NodeView[]} nodes
 * @param {number} size GPUs of a rank
 * @returns {number}
 */
export function ranksThatFit(nodes, size) {
  return nodes.reduce((sum, node) => sum + Math.floor(freeOf(node) / size), 0);
}

/**
 * The usual sizes of a rank: powers of two up to the GPUs of the largest node.
 * @param {NodeView[]} nodes
 * @returns {number[]}
 */
export function sizesOf(nodes) {
  const most = Math.max(0, ...nodes.map((node) => node.gpus));
  const sizes = [];
  for (let size = 1; size <= most; size *= 2) sizes.push(size);
  return sizes;
}

/**
 * Number of free GPUs that ranks of a size cannot use, because too few of them are on one node.
 * @param {NodeView[]} nodes
 * @param {number} size GPUs of a rank
 * @returns {number}
 */
export function scatteredFor(nodes, size) {
  return nodes.reduce((sum, node) => sum + (freeOf(node) % size), 0);
}
