// One small cell for each GPU, in groups. One cell is a tab stop; arrow keys move between them.
import { byId, createNode, setAttribute, setText, setVisible, syncChildren } from "./dom.js";
import { bytesOf, duration, percent, plural, watts } from "./format.js";
import { modelOf } from "./fleet_filter.js";
import { plain, setName } from "./names.js";

const SIGNS = { free: "\u25cb", held: "\u25d0", active: "\u25cf", down: "\u2715", unknown: "?" };
const STATES = { free: "free", held: "idle but allocated", active: "active", down: "down", unknown: "unknown" };
const OWNERS_SHOWN = 4;

/** What a person wants to know of a GPU, in one line. */
export function describe(gpu) {
  const parts = [`${plain(gpu.node.name)} GPU ${gpu.place}`, plain(modelOf(gpu)), STATES[gpu.state] ?? "unknown"];
  if (gpu.state === "free" && !gpu.free_now) parts.push(plain(gpu.availability_reason || (gpu.reserved_by ? `reserved by ${gpu.reserved_by}` : "not available now")));
  if (gpu.problem) parts.push(plain(gpu.problem));
  const owners = gpu.owners.slice(0, OWNERS_SHOWN).map((owner) => {
    const idle = gpu.state === "held" && owner.held_seconds >= 60 ? ` (${duration(owner.held_seconds)} unused so far)` : "";
    return plain(owner.name) + idle;
  });
  if (gpu.owners.length > OWNERS_SHOWN) owners.push(`and ${gpu.owners.length - OWNERS_SHOWN} more`);
  if (owners.length) parts.push(owners.join(", "));
  if (gpu.memory_total_bytes !== null) parts.push(`memory ${bytesOf(gpu.memory_used_bytes, gpu.memory_total_bytes)}`);
  if (gpu.utilization_ratio !== null) parts.push(`utilization ${percent(gpu.utilization_ratio)}`);
  if (gpu.power_watts !== null) parts.push(watts(gpu.power_watts));
  if (!gpu.node.up) parts.push(plain(gpu.node.reason));
  return parts.join(" \u00b7 ");
}

/** The groups in `root`. */
export class CellGroups {
  constructor(root) {
    this.root = root;
    this.detail = byId("detail");
    this.stop = null;
    root.addEventListener("keydown", (event) => this.onKey(event));
    root.addEventListener("focusin", (event) => this.show(event.target.closest(".cells .cell")));
    root.addEventListener("focusout", () => this.show(null));
    root.addEventListener("pointerover", (event) => this.show(event.target.closest(".cells .cell")));
    root.addEventListener("pointerleave", () => this.show(this.root.contains(document.activeElement) ? document.activeElement.closest(".cells .cell") : null));
  }

  /** Shows these groups; `wide` for groups without a node. */
  fill(groups, wide) {
    setAttribute(this.root, "data-wide", wide ? "" : undefined);
    syncChildren(this.root, groups, (group) => group.key, groupNode, (node, group) => this.fillGroup(node, group));
    const cells = this.cells();
    if (!cells.includes(this.stop)) this.setStop(cells[0] ?? null);
    if (this.shown && !this.shown.isConnected) this.show(null);
    else if (this.shown) setText(this.detail, this.shown.described);
  }

  fillGroup(node, group) {
    const { parts } = node;
    setName(parts.name, group.name, 80);
    setAttribute(parts.name, "href", group.page);
    const free = group.gpus.filter((gpu) => gpu.free_now).length;
    setText(parts.count, group.gpus.length ? (free ? `${free} of ${group.gpus.length} free` : gpuCount(group.gpus.length)) : "");
    const why = group.node && !group.node.up ? group.node : null;
    setVisible(parts.why, why !== null);
    if (why) setText(parts.why, `${plain(why.reason, 300)}${group.since ? `, since ${group.since}` : ""}`);
    syncChildren(parts.cells, group.gpus, (gpu) => `${gpu.node.key}|${gpu.uuid}|${gpu.instance}`, cellItem, (item, gpu) => {
      const cell = item.firstChild;
      setAttribute(cell, "data-state", gpu.state);
      setAttribute(cell, "data-taken", gpu.state === "free" && !gpu.free_now ? "" : undefined);
      setAttribute(cell, "href", gpu.node.page);
      setText(cell, `${SIGNS[gpu.state] ?? "?"}\u00a0${gpu.place}`);
      cell.described = describe(gpu);
      setAttribute(cell, "aria-label", cell.described);
    });
  }

  cells() {
    return [...this.root.querySelectorAll(".cells .cell")];
  }

  setStop(cell) {
    if (this.stop) setAttribute(this.stop, "tabindex", "-1");
    this.stop = cell;
    if (cell) setAttribute(cell, "tabindex", "0");
  }

  onKey(event) {
    const cell = event.target.closest(".cells .cell");
    if (!cell || event.ctrlKey || event.altKey || event.metaKey) return;
    const next = this.neighbor(cell, event.key);
    if (!next) return;
    event.preventDefault();
    this.setStop(next);
    next.focus();
  }

  /** The cell to which a key moves; undefined for other keys and at the ends. */
  neighbor(cell, key) {
    const group = cell.closest(".group");
    const own = [...group.querySelectorAll(".cells .cell")];
    const cells = this.cells();
    const at = cells.indexOf(cell);
    const groups = [...this.root.children].filter((one) => one.querySelector(".cells .cell"));
    const beside = (step) => groups[groups.indexOf(group) + step]?.querySelector(".cells .cell");
    const moves = {
      ArrowRight: () => cells[at + 1],
      ArrowLeft: () => cells[at - 1],
      ArrowDown: () => beside(1) ?? own.at(-1),
      ArrowUp: () => beside(-1) ?? own[0],
      PageDown: () => beside(1),
      PageUp: () => beside(-1),
      Home: () => own[0],
      End: () => own.at(-1),
    };
    return moves[key]?.();
  }

  show(cell) {
    this.shown = cell;
    setVisible(this.detail, Boolean(cell));
    if (cell) setText(this.detail, cell.described);
  }
}

function groupNode() {
  const parts = {
    name: createNode("a", { class: "name" }),
    count: createNode("span", { class: "soft" }),
    why: createNode("p", { class: "why" }),
    cells: createNode("ul", { class: "cells" }),
  };
  const node = createNode("section", { class: "group" }, createNode("h3", {}, parts.name, parts.count), parts.cells, parts.why);
  node.parts = parts;
  return node;
}

function cellItem() {
  return createNode("li", {}, createNode("a", { class: "cell", tabindex: "-1", "aria-describedby": "cells-help", rel: "noreferrer" }));
}

export const gpuCount = (count) => plural(count, "GPU");
