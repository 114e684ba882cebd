// The table of energy since midnight by owner: measured, apportioned, bounds, and the accounts without an owner.
import { syncChildren, createNode, setAttribute, setText, setVisible } from "./dom.js";
import { clock, cost, energyScale, fixed, gpuHours, kilograms } from "./format.js";
import { setName } from "./names.js";
import { fetchJson } from "./live.js";

const FIRST_ROWS = 12;
const MOST_PAGES = 20;
const OWN = {
  idle: ["Idle", "no process on the GPU"],
  unattributed: ["Unattributed", "used by an unknown owner"],
  unobserved: ["Unobserved", "gpuledger did not read the GPU"],
};
const NAMELESS = { namespace: "outside Kubernetes", pod: "outside pods", user: "in pods, or user unknown" };
const milli = (value) => Math.round((value ?? 0) * 1000);

/** Fetches all pages of the energy report. */
export async function fetchEnergy(by) {
  let found = await fetchJson(`api/v1/energy?by=${by}&limit=1000`);
  const rows = [...found.rows];
  for (let page = 1; found.next && page < MOST_PAGES; page += 1) {
    found = await fetchJson(`api/v1/energy?by=${by}&limit=1000&since=${found.since}&until=${found.until}&cursor=${encodeURIComponent(found.next)}`);
    rows.push(...found.rows);
  }
  return { ...found, rows };
}

/** The energy table in `root`. */
export class EnergyTable {
  constructor(root) {
    this.root = root;
    this.part = (name) => root.querySelector(`.${name}`);
    this.all = false;
    this.part("more").addEventListener("click", () => {
      this.all = !this.all;
      this.show(this.answer);
    });
  }

  /** Marks the table as busy until the report with another grouping arrives. */
  expect(by) {
    this.by = by;
    this.busy(this.answer !== undefined && this.answer.by !== by);
  }

  busy(busy) {
    setAttribute(this.part("report"), "aria-busy", busy ? "true" : undefined);
  }

  failed(error) {
    this.busy(false);
    setVisible(this.part("report"), false);
    setVisible(this.part("missing"), true);
    setText(this.part("missing"), error.message);
  }

  show(answer) {
    this.answer = answer;
    this.busy(answer.by !== this.by);
    setVisible(this.part("missing"), false);
    setVisible(this.part("report"), true);
    const rows = answer.rows.map((row) => ({ ...row, name: this.nameOf(row, answer.by) }));
    const own = answer.own.filter((row) => row.joules !== null && (row.joules > 0 || row.account === "idle"));
    const most = Math.max(...rows.map((row) => row.joules), ...own.map((row) => row.joules), 1);
    const scale = { ...energyScale(answer.total.joules), most, bill: answer.total.cost, currency: answer.currency };
    const table = this.root.querySelector("table");
    setAttribute(table, "data-priced", answer.total.cost === null ? undefined : "");
    setAttribute(table, "data-co2", answer.total.co2_grams === null ? undefined : "");
    for (const node of this.root.querySelectorAll(".unit")) setText(node, scale.unit);
    setText(this.part("key"), { namespace: "Namespace", pod: "Pod", user: "User" }[answer.by]);
    const shown = this.all ? rows : rows.slice(0, FIRST_ROWS);
    const body = this.root.querySelector("tbody");
    const lines = [...shown, ...own.map((row) => ({ ...row, own: true, key: [row.account] }))];
    syncChildren(body, lines, (row) => JSON.stringify([row.own ?? false, row.key]), rowNode, (node, row) => fill(node, row, scale));
    setVisible(this.part("more"), rows.length > FIRST_ROWS);
    setText(this.part("more"), this.all ? "Show the first only" : `Show all ${rows.length}`);
    fill(this.foot(), { ...answer.total, total: true, key: ["Total"], high_joules: null }, scale);
    setText(this.part("when"), `since ${clock(answer.since)}${answer.complete ? "" : "; the ledger begins later"}`);
    setText(this.part("sum"), this.balance(answer, scale));
    const notes = answer.notes ?? [];
    setVisible(this.part("notes"), notes.length > 0);
    setName(this.part("notes"), notes.join(" "), 1000);
  }

  foot() {
    const foot = this.root.querySelector("tfoot");
    if (!foot.firstElementChild) foot.append(rowNode());
    return foot.firstElementChild;
  }

  nameOf(row, by) {
    const words = row.key.filter(Boolean);
    return words.length ? words.join("/") : (NAMELESS[by] ?? "unknown");
  }

  /** Checks that the rows add up to the total and to the GPUs' counters, in whole millijoules. */
  balance(answer, scale) {
    const rows = [...answer.rows, ...answer.own].reduce((sum, row) => sum + milli(row.joules), 0);
    const gpus = answer.gpus.reduce((sum, row) => sum + milli(row.joules), 0);
    const total = milli(answer.total.joules);
    const words = `${scale.write(answer.total.joules)} ${scale.unit}`;
    if (answer.next) return "Not all rows are shown: there are too many.";
    if (answer.total.joules === null) return "No GPU is measured: their energy is not known.";
    if (rows !== total) return `The rows add up to ${fixed(rows / 1000, 3)} J, not to the total of ${fixed(total / 1000, 3)} J: please report this.`;
    if (gpus !== total) {
      const apart = fixed(Math.abs(gpus - total) / 1000, 3);
      return `These rows add up to the total of ${words}, but the GPUs' energy counters show ${scale.write(gpus / 1000)} ${scale.unit}: ${apart} J ${gpus > total ? "more" : "less"}. The ledger does not balance.`;
    }
    const measured = answer.total.unmetered_gpus ? "energy counters of the measured GPUs" : "GPUs' energy counters";
    return `These rows add up to the total of ${words}, which equals the ${measured}, to the millijoule.`;
  }
}

function rowNode() {
  const bar = createNode("div", { class: "stack", "aria-hidden": "true" }, createNode("div", { class: "measured" }), createNode("div", { class: "apportioned" }), createNode("div", { class: "own" }), createNode("div", { class: "range" }));
  const name = createNode("th", { scope: "row" }, createNode("span", { class: "name" }), createNode("span", { class: "soft" }));
  const cells = ["energy", "measured", "apportioned", "high", "hours", "held", "cost", "co2"].map((id) => createNode("td", { class: `number e-${id}` }));
  const [first, ...others] = cells;
  return createNode("tr", {}, name, first, createNode("td", { class: "e-bar" }, bar), ...others);
}

function fill(node, row, scale) {
  const [name, first, bar, ...others] = node.children;
  const own = row.own ? OWN[row.account] : null;
  setName(name.firstChild, own ? own[0] : (row.name ?? row.key[0]), 100);
  setText(name.lastChild, own ? own[1] : "");
  setAttribute(node, "data-own", own ? row.account : undefined);
  const split = own ? [null, null, null] : [row.measured_joules, row.apportioned_joules, row.high_joules];
  const texts = [row.joules, ...split].map((value) => scale.write(value));
  texts.push(gpuHours(row.gpu_seconds), gpuHours(row.held_gpu_seconds), cost(row.cost, scale.currency, scale.bill), kilograms(row.co2_grams));
  [first, ...others].forEach((cell, index) => setText(cell, texts[index]));
  bars(bar.firstChild, row, scale.most, Boolean(own));
}

function bars(stack, row, most, own) {
  const [measured, apportioned, other, range] = stack.children;
  const width = (node, value) => {
    const text = `${Math.min(100, (100 * (value ?? 0)) / most).toFixed(2)}%`;
    if (node.style.width !== text) node.style.width = text;
  };
  setVisible(stack, !row.total);
  width(measured, own ? 0 : row.measured_joules);
  width(apportioned, own ? 0 : row.apportioned_joules);
  width(other, own ? row.joules : 0);
  const bounds = !own && !row.total && row.high_joules !== null && row.high_joules > row.low_joules;
  setVisible(range, bounds);
  if (!bounds) return;
  const low = Math.min(100, (100 * row.low_joules) / most);
  const high = Math.min(100, (100 * row.high_joules) / most);
  range.style.left = `${low.toFixed(2)}%`;
  range.style.width = `${(high - low).toFixed(2)}%`;
  setAttribute(range, "data-beyond", row.high_joules > most ? "" : undefined);
}
