// Filters GPUs by words, and groups them by node, model or owner.

/** All GPUs of all nodes, each with its node. */
export function gpusOf(nodes) {
  return nodes.flatMap((node) => node.gpus.map((gpu) => ({ ...gpu, node, place: gpu.instance ? `${gpu.gpu}/${gpu.instance}` : gpu.gpu })));
}

export const modelOf = (gpu) => (gpu.model.replace(/^NVIDIA /, "") + (gpu.profile ? ` ${gpu.profile}` : "")) || "unknown model";

const FIELDS = {
  node: (gpu) => [gpu.node.name],
  model: (gpu) => [modelOf(gpu)],
  owner: (gpu) => gpu.owners.flatMap((owner) => [owner.name, owner.group]),
  state: (gpu) => [gpu.state],
  gpu: (gpu) => [gpu.place, gpu.uuid],
};

/** A predicate of GPUs: all words match; `!word` excludes, `node:`, `model:`, `owner:`, `state:`, `gpu:` match one field. */
export function matcher(text) {
  const tests = text.toLowerCase().split(/\s+/).filter(Boolean).map(wordTest);
  return (gpu) => tests.every((test) => test(gpu));
}

function wordTest(word) {
  const excluded = word.length > 1 && word.startsWith("!");
  const bare = excluded ? word.slice(1) : word;
  const [name, ...rest] = bare.split(":");
  const field = rest.length && FIELDS[name] ? name : null;
  const wanted = field ? rest.join(":") : bare;
  const exact = field === "state" || field === "gpu";
  const values = (gpu) => (field ? FIELDS[field](gpu) : Object.values(FIELDS).flatMap((read) => read(gpu)));
  const found = (gpu) => values(gpu).some((value) => (exact ? value.toLowerCase() === wanted : value.toLowerCase().includes(wanted)));
  return excluded ? (gpu) => !found(gpu) : found;
}

const GROUPINGS = {
  node: (gpu) => [{ key: gpu.node.key, name: gpu.node.name, page: gpu.node.page, node: gpu.node }],
  model: (gpu) => [{ key: modelOf(gpu), name: modelOf(gpu) }],
  owner: (gpu) => ownerGroups(gpu).map((name) => ({ key: `owner ${name}`, name })),
};
export const GROUPING_NAMES = Object.keys(GROUPINGS);

/** The users or namespaces that hold a GPU; a word for a GPU without one. */
export function ownerGroups(gpu) {
  const named = [...new Set(gpu.owners.map((owner) => owner.group))];
  if (named.length) return named;
  return [{ free: "(free)", down: "(down)", unknown: "(unknown)" }[gpu.state] ?? "(unknown owner)"];
}

/** Groups in order, each with its GPUs. A GPU that several owners share is in the group of each. */
export function groupGpus(gpus, by) {
  const groups = new Map();
  for (const gpu of gpus) {
    for (const group of GROUPINGS[by](gpu)) {
      if (!groups.has(group.key)) groups.set(group.key, { ...group, gpus: [] });
      groups.get(group.key).gpus.push(gpu);
    }
  }
  const found = [...groups.values()];
  if (by !== "node") found.sort((one, other) => other.gpus.length - one.gpus.length || one.name.localeCompare(other.name));
  return found;
}
