// The strip at the top: what is free, what is held without work, what is drawn, and what today has cost.
import { byId, setAttribute, setText, show } from "./dom.js";
import { DASH, clock, cost, energy, gpuHours, percent, plural, watts } from "./format.js";
import { place } from "./names.js";

const SHOWN = 8;

/** State of a device in one word of ours: what was lost is neither idle nor unknown. */
export function stateOf(device) {
  if (!device.up) return "down";
  return device.state ?? (device.holds_processes ? "unknown" : null);
}

function tile(name, value, detail) {
  setText(byId(`tile-${name}`), value);
  setText(byId(`tile-${name}-detail`), detail);
}

/** Counts of now. A device that was cut into instances is counted by these. */
export function snapshotTiles(data) {
  const places = { idle: [], held: [], active: [], unknown: [], down: [] };
  for (const device of data.devices) {
    const state = stateOf(device);
    if (state in places && (device.holds_processes || state === "down")) places[state].push(place(device));
  }
  // Of devices whose state nobody could tell, none is known to be free or held.
  const known = places.idle.length + places.held.length + places.active.length + places.down.length;
  const told = data.status.readings && (known > 0 || places.unknown.length === 0);
  for (const [name, state] of [["free", "idle"], ["held", "held"], ["active", "active"]]) {
    const found = places[state];
    tile(name, told ? String(found.length) : DASH, told ? list(found) : "not told");
    setAttribute(byId(`tile-${name}`).closest(".tile"), "data-none", !told || found.length === 0 ? "" : undefined);
  }
  const other = [...places.down, ...places.unknown];
  show(byId("tile-other").closest(".tile"), data.status.readings && other.length > 0);
  const words = [places.down.length && `${plural(places.down.length, "device")} not answering`, places.unknown.length && `state of ${list(places.unknown)} not told`];
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
  const told = gpus.filter((gpu) => gpu.power_watts !== null);
  const limits = told.map((gpu) => gpu.power_limit_watts);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const limit = limits.every((value) => value !== null) ? `of ${watts(sum(limits))} at most` : "";
  const partly = told.length < gpus.length ? `, ${told.length} of ${gpus.length} GPUs told` : "";
  if (told.length) tile("power", watts(sum(told.map((gpu) => gpu.power_watts))), `${limit}${partly}` || "of all GPUs");
  else tile("power", DASH, "not told");
}

/** What the books say of today. */
export function energyTiles(answer) {
  const { total } = answer;
  // The node's midnight, at a full hour: it may be another one than the reader's.
  const since = `since ${clock(answer.since)}`;
  tile("energy", energy(total.joules), total.cost === null ? `${since}; no price is set` : `${since}: ${cost(total.cost, answer.currency)}`);
  const idle = answer.own.find((row) => row.account === "idle")?.joules ?? null;
  const share = total.joules > 0 && idle !== null ? percent(idle / total.joules) : DASH;
  const held = total.held_gpu_seconds === null ? "" : `; ${gpuHours(total.held_gpu_seconds)} GPU-hours held without work`;
  tile("idle", share, `of today's energy${held}`);
}

/** Why there is no energy of today. */
export function noEnergyTiles(reason) {
  tile("energy", DASH, reason);
  tile("idle", DASH, reason);
}
