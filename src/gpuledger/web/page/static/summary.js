// The tiles at the top: free, held and active devices, power, energy and cost of today.
import { byId, setAttribute, setText, setVisible } from "./dom.js";
import { DASH, clock, cost, energy, percent, watts } from "./format.js";
import { place } from "./names.js";

const SHOWN = 8;

/** The state of a device in one word; a lost device is `down`. */
export function stateOf(device) {
  if (!device.up) return "down";
  return device.state ?? (device.holds_processes ? "unknown" : null);
}

function tile(name, value, detail) {
  setText(byId(`tile-${name}`), value);
  setText(byId(`tile-${name}-detail`), detail);
}

/** Shows the current counts. A GPU with MIG instances is counted by its instances. */
export function snapshotTiles(data) {
  const places = { idle: [], held: [], active: [], unknown: [], down: [] };
  for (const device of data.devices) {
    const state = stateOf(device);
    if (state in places && (device.holds_processes || state === "down")) places[state].push(place(device));
  }
  // If the state of every device is unknown, so are the counts.
  const known = places.idle.length + places.held.length + places.active.length + places.down.length;
  const reported = data.status.readings && (known > 0 || places.unknown.length === 0);
  for (const [name, state] of [["free", "idle"], ["held", "held"], ["active", "active"]]) {
    const found = places[state];
    tile(name, reported ? String(found.length) : DASH, reported ? list(found) : "not reported");
    setAttribute(byId(`tile-${name}`).closest(".tile"), "data-none", !reported || found.length === 0 ? "" : undefined);
  }
  setVisible(byId("tile-other").closest(".tile"), data.status.readings && places.unknown.length > 0);
  tile("other", String(places.unknown.length), `state of ${list(places.unknown)} unknown`);
  power(data);
}

function list(found) {
  if (!found.length) return "none";
  const more = found.length - SHOWN;
  return `GPU ${found.slice(0, SHOWN).join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
}

function power(data) {
  const gpus = data.devices.filter((device) => !device.instance);
  const reported = gpus.filter((gpu) => gpu.power_watts !== null);
  const limits = reported.map((gpu) => gpu.power_limit_watts);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const limit = limits.every((value) => value !== null) ? `limit ${watts(sum(limits))}` : "";
  const partly = reported.length < gpus.length ? `, reported by ${reported.length} of ${gpus.length} GPUs` : "";
  if (reported.length) tile("power", watts(sum(reported.map((gpu) => gpu.power_watts))), `${limit}${partly}` || "of all GPUs");
  else tile("power", DASH, "not reported");
}

/** Shows the energy, the cost and the idle time of today from the ledger. */
export function energyTiles(answer) {
  const { total } = answer;
  // Midnight at the node, at a full hour: it may differ from midnight at the browser.
  const since = `since ${clock(answer.since)}`;
  // With a price of time, the cost is not that of the energy alone.
  const price = total.time_cost === null || total.time_cost === undefined ? ": " : ", with GPU time: ";
  tile("energy", energy(total.joules), total.cost === null ? `${since}; no price is set` : `${since}${price}${cost(total.cost, answer.currency)}`);
  const idle = answer.own.filter((row) => row.account === "idle");
  const share = (name) => (idle.length && total[name] > 0 ? percent(idle.reduce((sum, row) => sum + row[name], 0) / total[name]) : DASH);
  tile("idle", share("gpu_microseconds"), `of today's GPU time; ${share("millijoules")} of its energy`);
}

/** Shows why there is no energy of today. */
export function noEnergyTiles(reason) {
  tile("energy", DASH, reason);
  tile("idle", DASH, reason);
}
