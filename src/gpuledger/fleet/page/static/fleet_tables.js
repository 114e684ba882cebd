// The tables of the fleet: free GPUs by model, owners by the number of GPUs, nodes by their state.
import { byId, createNode, setAttribute, setText, setVisible, syncChildren } from "./dom.js";
import { bytes, count, duration, moment } from "./format.js";
import { modelOf, ownerGroups } from "./fleet_filter.js";
import { plain, setName } from "./names.js";

const PLACES_SHOWN = 12;
const HOLDERS_SHOWN = 20;

/** Free GPUs, grouped by model and memory, those with the most memory first. */
export function fillFree(gpus) {
  const groups = new Map();
  for (const gpu of gpus) {
    const key = `${modelOf(gpu)}|${gpu.memory_total_bytes}`;
    const group = groups.get(key) ?? { key, model: modelOf(gpu), memory: gpu.memory_total_bytes, all: 0, free: new Map(), count: 0 };
    groups.set(key, group);
    group.all += 1;
    if (!gpu.free_now) continue;
    group.count += 1;
    const node = group.free.get(gpu.node.key) ?? { node: gpu.node, places: [] };
    group.free.set(gpu.node.key, node);
    node.places.push(gpu.place);
  }
  const shown = [...groups.values()].filter((group) => group.count).sort((one, other) => (other.memory ?? 0) - (one.memory ?? 0) || one.model.localeCompare(other.model));
  setVisible(byId("free-table"), shown.length > 0);
  setVisible(byId("no-free"), shown.length === 0 && gpus.length > 0);
  syncChildren(byId("free-table").querySelector("tbody"), shown, (group) => group.key, freeRow, (row, group) => {
    setName(row.parts.model, group.model, 80);
    setText(row.parts.memory, bytes(group.memory));
    setText(row.parts.free, `${count(group.count)} of ${count(group.all)}`);
    const places = [...group.free.values()].sort((one, other) => other.places.length - one.places.length);
    syncChildren(row.parts.where, places.slice(0, PLACES_SHOWN), (one) => one.node.key, () => createNode("li", {}, createNode("a", { rel: "noreferrer" })), (item, one) => {
      setAttribute(item.firstChild, "href", one.node.page);
      setText(item.firstChild, `${plain(one.node.name, 60)}: GPU\u00a0${one.places.join(", ")}`);
    });
    setText(row.parts.more, places.length > PLACES_SHOWN ? `and ${count(places.length - PLACES_SHOWN)} more nodes` : "");
  });
}

function freeRow() {
  const parts = { model: createNode("span", { class: "name" }), memory: createNode("td", { role: "cell", class: "number" }), free: createNode("td", { role: "cell", class: "number" }), where: createNode("ul", { class: "where" }), more: createNode("span", { class: "soft" }) };
  const name = createNode("th", { scope: "row", role: "rowheader" }, parts.model);
  const row = createNode("tr", { role: "row" }, name, parts.memory, parts.free, createNode("td", { role: "cell", class: "places" }, parts.where, parts.more));
  row.parts = parts;
  return row;
}

/** Owners with the most GPUs first. A GPU that several owners share counts for each. `choose(name)` filters by an owner. */
export function fillHolders(gpus, choose) {
  const holders = new Map();
  for (const gpu of gpus.filter((one) => one.owners.length)) {
    for (const name of ownerGroups(gpu)) {
      const one = holders.get(name) ?? { name, gpus: 0, active: 0, held: 0, models: new Map() };
      holders.set(name, one);
      one.gpus += 1;
      if (gpu.state === "active") one.active += 1;
      if (gpu.state === "held") one.held += 1;
      one.models.set(modelOf(gpu), (one.models.get(modelOf(gpu)) ?? 0) + 1);
    }
  }
  const shown = [...holders.values()].sort((one, other) => other.gpus - one.gpus || other.held - one.held || one.name.localeCompare(other.name)).slice(0, HOLDERS_SHOWN);
  setVisible(byId("holders-table"), shown.length > 0);
  setVisible(byId("no-holders"), shown.length === 0 && gpus.length > 0);
  syncChildren(byId("holders-table").querySelector("tbody"), shown, (one) => one.name, () => holderRow(choose), (row, one) => {
    row.owner = one.name;
    setName(row.parts.name, one.name, 80);
    setText(row.parts.gpus, count(one.gpus));
    setText(row.parts.active, count(one.active));
    setText(row.parts.held, count(one.held));
    setText(row.parts.models, [...one.models].map(([model, number]) => `${number} × ${plain(model, 60)}`).join(", "));
  });
}

function holderRow(choose) {
  const cell = (kind) => createNode("td", { class: kind });
  const parts = { name: createNode("button", { type: "button", class: "link name" }), gpus: cell("number"), active: cell("number"), held: cell("number"), models: cell("words") };
  const row = createNode("tr", {}, createNode("th", { scope: "row" }, parts.name), parts.gpus, parts.active, parts.held, parts.models);
  parts.name.addEventListener("click", () => choose(row.owner));
  row.parts = parts;
  return row;
}

/** Since when a node is as it is, for people. */
export const sinceText = (node, now) => (node.since === null ? "" : `${moment(node.since, now)} (${duration(now - node.since)})`);

/** All nodes, those that cannot be read first. */
export function fillNodes(nodes, lists, now) {
  const shown = [...nodes].sort((one, other) => one.up - other.up);
  syncChildren(byId("nodes-table").querySelector("tbody"), shown, (node) => node.key, nodeRow, (row, node) => {
    setAttribute(row, "data-up", String(node.up));
    setName(row.parts.name, node.name, 80);
    setAttribute(row.parts.name, "href", node.page);
    setText(row.parts.state, stateText(node, now));
    setText(row.parts.gpus, node.gpus.length || node.last_read !== null || node.up ? count(node.gpus.length) : "\u2013");
    setText(row.parts.version, plain(node.gpuledger, 40) || "\u2013");
    setName(row.parts.address, node.key, 80);
  });
  const failing = lists.filter((one) => one.error);
  setVisible(byId("lists"), failing.length > 0 || nodes.length === 0);
  setText(byId("lists"), failing.length ? failing.map((one) => `${plain(one.error, 300)}${one.nodes && one.since !== null ? "; its last nodes are shown" : ""}`).join(". ") : "The lists have no nodes yet.");
}

function stateText(node, now) {
  const notes = [];
  if (!node.up) {
    notes.push(plain(node.reason, 300));
    if (node.since !== null) notes.push(`since ${sinceText(node, now)}`);
    if (node.last_read !== null) notes.push(`last read ${moment(node.last_read, now)}`);
  } else {
    notes.push("read");
  }
  if (node.counted_elsewhere) notes.push(node.gpus.length ? `${count(node.counted_elsewhere)} of its GPUs count on another node` : "listed twice: counted once");
  if (node.clock_ahead_seconds) notes.push(`its clock is ${duration(Math.abs(node.clock_ahead_seconds))} ${node.clock_ahead_seconds > 0 ? "ahead" : "behind"}`);
  if (!node.complete) notes.push("not all of its GPUs could be listed");
  if (node.simulated) notes.push("simulated data");
  return notes.join(", ");
}

function nodeRow() {
  const parts = { name: createNode("a", { class: "name", rel: "noreferrer" }), state: createNode("td", { class: "words" }), gpus: createNode("td", { class: "number" }), version: createNode("td", { class: "soft" }), address: createNode("td", { class: "name soft" }) };
  const row = createNode("tr", {}, createNode("th", { scope: "row" }, parts.name), parts.state, parts.gpus, parts.version, parts.address);
  row.parts = parts;
  return row;
}
