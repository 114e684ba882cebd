// Energy since midnight by owner: what was measured, what was split, between which bounds, and what nobody used.
import { keep, make, setAttribute, setText, show } from "./dom.js";
import { clock, cost, energyScale, fixed, gpuHours, kilograms } from "./format.js";
import { setName } from "./names.js";
import { ask } from "./live.js";

const FIRST_ROWS = 12;
const MOST_PAGES = 20;
const OWN = {
  idle: ["Idle", "nobody was on the GPU"],
  unattributed: ["Unattributed", "somebody worked, whose it is is not known"],
  unobserved: ["Unobserved", "nobody looked"],
};
const NAMELESS = { namespace: "outside Kubernetes", pod: "outside pods", user: "in pods, or no user known" };
const milli = (value) => Math.round((value ?? 0) * 1000);

/** The whole answer, all pages of it. */
export async function energyOf(by) {
  let found = await ask(`api/v1/energy?by=${by}&limit=1000`);
  const rows = [...found.rows];
  for (let page = 1; found.next && page < MOST_PAGES; page += 1) {
    found = await ask(`api/v1/energy?by=${by}&limit=1000&since=${found.since}&until=${found.until}&cursor=${encodeURIComponent(found.next)}`);
    rows.push(...found.rows);
  }
  return { ...found, rows };
}

/** The table in `root`. */
export class Energy {
  constructor(root) {
    this.root = root;
    this.part = (name) => root.querySelector(`.${name}`);
    this.all = false;
    this.part("more").addEventListener("click", () => {
      this.all = !this.all;
      this.show(this.answer);
    });
  }

  /** Another grouping was chosen: until its answer is here, what is shown is of the one before. */
  expect(by) {
    this.by = by;
    this.busy(this.answer !== undefined && this.answer.by !== by);
  }

  busy(busy) {
    setAttribute(this.part("books"), "aria-busy", busy ? "true" : undefined);
  }

  failed(error) {
    this.busy(false);
    show(this.part("books"), false);
    show(this.part("missing"), true);
    setText(this.part("missing"), error.message);
  }

  show(answer) {
    this.answer = answer;
    this.busy(answer.by !== this.by);
    show(this.part("missing"), false);
    show(this.part("books"), true);
    const rows = answer.rows.map((row) => ({ ...row, name: this.nameOf(row, answer.by) }));
    const own = answer.own.filter((row) => row.joules !== null && (row.joules > 0 || row.account === "idle"));
    const most = Math.max(...rows.map((row) => row.joules), ...own.map((row) => row.joules), 1);
    const scale = { ...energyScale(answer.total.joules), most, bill: answer.total.cost, currency: answer.currency };
    const table = this.root.querySelector("table");
    setAttribute(table, "data-priced", answer.total.cost === null ? undefined : "");
    setAttribute(table, "data-gas", answer.total.co2_grams === null ? undefined : "");
    for (const node of this.root.querySelectorAll(".unit")) setText(node, scale.unit);
    setText(this.part("key"), { namespace: "Namespace", pod: "Pod", user: "User" }[answer.by]);
    const shown = this.all ? rows : rows.slice(0, FIRST_ROWS);
    const body = this.root.querySelector("tbody");
    const lines = [...shown, ...own.map((row) => ({ ...row, own: true, key: [row.account] }))];
    keep(body, lines, (row) => JSON.stringify([row.own ?? false, row.key]), rowNode, (node, row) => fill(node, row, scale));
    show(this.part("more"), rows.length > FIRST_ROWS);
    setText(this.part("more"), this.all ? "Show the first only" : `Show all ${rows.length}`);
    fill(this.foot(), { ...answer.total, total: true, key: ["Total"], high_joules: null }, scale);
    setText(this.part("when"), `since ${clock(answer.since)}${answer.complete ? "" : "; the books begin later"}`);
    setText(this.part("sum"), this.balance(answer, scale));
    const notes = answer.notes ?? [];
    show(this.part("notes"), notes.length > 0);
    setName(this.part("notes"), notes.join(" "), 1000);
  }

  foot() {
    const foot = this.root.querySelector("tfoot");
    if (!foot.firstElementChild) foot.append(rowNode());
    return foot.firstElementChild;
  }

  nameOf(row, by) {
    const words = row.key.filter(Boolean);
    return words.length ? words.join("/") : (NAMELESS[by] ?? "not known");
  }

  /** Whether it adds up, in whole millijoules, as anyone can check. */
  balance(answer, scale) {
    const rows = [...answer.rows, ...answer.own].reduce((sum, row) => sum + milli(row.joules), 0);
    const gpus = answer.gpus.reduce((sum, row) => sum + milli(row.joules), 0);
    const total = milli(answer.total.joules);
    const words = `${scale.write(answer.total.joules)} ${scale.unit}`;
    if (answer.next) return "Not all rows are shown: there are too many.";
    if (rows !== total) return `The rows add up to ${fixed(rows / 1000, 3)} J and not to the total of ${fixed(total / 1000, 3)} J: please report it.`;
    if (gpus !== total) {
      const apart = fixed(Math.abs(gpus - total) / 1000, 3);
      return `These rows add up to the total of ${words}, but the GPUs' own counters say ${scale.write(gpus / 1000)} ${scale.unit}: ${apart} J ${gpus > total ? "more" : "less"}. The books do not meet their own totals.`;
    }
    return `These rows add up to the total of ${words}, and that is what the GPUs' own counters say, to the millijoule.`;
  }
}

function rowNode() {
  const bar = make("div", { class: "stack", "aria-hidden": "true" }, make("div", { class: "measured" }), make("div", { class: "apportioned" }), make("div", { class: "own" }), make("div", { class: "range" }));
  const name = make("th", { scope: "row" }, make("span", { class: "name" }), make("span", { class: "soft" }));
  const cells = ["energy", "measured", "apportioned", "high", "hours", "held", "cost", "gas"].map((id) => make("td", { class: `number e-${id}` }));
  const [first, ...others] = cells;
  return make("tr", {}, name, first, make("td", { class: "e-bar" }, bar), ...others);
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
  show(stack, !row.total);
  width(measured, own ? 0 : row.measured_joules);
  width(apportioned, own ? 0 : row.apportioned_joules);
  width(other, own ? row.joules : 0);
  const bounds = !own && !row.total && row.high_joules !== null && row.high_joules > row.low_joules;
  show(range, bounds);
  if (!bounds) return;
  const low = Math.min(100, (100 * row.low_joules) / most);
  const high = Math.min(100, (100 * row.high_joules) / most);
  range.style.left = `${low.toFixed(2)}%`;
  range.style.width = `${(high - low).toFixed(2)}%`;
  setAttribute(range, "data-beyond", row.high_joules > most ? "" : undefined);
}
