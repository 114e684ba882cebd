// The tiles at the top: free, held and active devices, power, energy and cost of today.
import { byId, setAttribute, setText, setVisible } from "./dom.js";
import { DASH, clock, cost, energy, gpuHours, percent, plural, watts } from "./format.js";
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
  const other = [...places.down, ...places.unknown];
  setVisible(byId("tile-other").closest(".tile"), data.status.readings && other.length > 0);
  const words = [places.down.length && `${plural(places.down.length, "device")} not answering`, places.unknown.length && `state of ${list(places.unknown)} unknown`];
  tile("other", String(other.length), words.filter(Boolean).join(", "));
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

/** Shows the energy of today from the ledger. */
export function energyTiles(answer) {
  const { total } = answer;
  // Midnight at the node, at a full hour: it may differ from midnight at the browser.
  const since = `since ${clock(answer.since)}`;
  tile("energy", energy(total.joules), total.cost === null ? `${since}; no price is set` : `${since}: ${cost(total.cost, answer.currency)}`);
  const idle = answer.own.find((row) => row.account === "idle")?.joules ?? null;
  const share = total.joules > 0 && idle !== null ? percent(idle / total.joules) : DASH;
  const held = total.held_gpu_seconds === null ? "" : `; ${gpuHours(total.held_gpu_seconds)} GPU-hours idle but allocated`;
  tile("idle", share, `of today's energy${held}`);
}

/** Shows why there is no energy of today. */
export function noEnergyTiles(reason) {
  tile("energy", DASH, reason);
  tile("idle", DASH, reason);
}
