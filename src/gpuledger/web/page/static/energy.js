// The table of usage: cost, GPU time and energy by owner, the accounts without an owner, and their sum.
import { createNode, setAttribute, setText, setVisible, syncChildren } from "./dom.js";
import { energyScale, kilograms } from "./format.js";
import { receiptUrl, setName } from "./names.js";
import { balanceText, keyName, notBilledText, tableOf, textsOf, whenText } from "./report.js";

const FIRST_ROWS = 12;
const CELLS = ["cost", "hours", "held", "energy", "bar", "measured", "apportioned", "high", "co2"];

/** The table in `root`. `choose(by)` is called when the user chooses a key. */
export class EnergyTable {
  constructor(root, choose) {
    this.root = root;
    this.part = (name) => root.querySelector(`.${name}`);
    this.all = false;
    this.part("more").addEventListener("click", () => {
      this.all = !this.all;
      this.show(this.answer);
    });
    this.part("keys").addEventListener("click", ({ target }) => target.dataset.by && choose(target.dataset.by));
  }

  /** Marks the table as busy until the report of this choice arrives. */
  expect(by, period) {
    const shown = this.answer;
    this.busy(shown !== undefined && ((by !== "auto" && shown.by !== by) || shown.period !== period));
  }

  busy(busy) {
    setAttribute(this.part("report"), "aria-busy", busy ? "true" : undefined);
  }

  failed(error) {
    this.busy(false);
    setVisible(this.part("report"), false);
    setVisible(this.part("missing"), true);
    setText(this.part("missing"), error.message);
    setText(this.part("when"), "");
  }

  show(answer) {
    this.answer = answer;
    this.busy(false);
    setVisible(this.part("missing"), false);
    setVisible(this.part("report"), true);
    this.offer(answer);
    const table = tableOf(answer, this.all ? Infinity : FIRST_ROWS);
    const most = Math.max(...table.lines.map(({ row }) => row.joules ?? 0), 1);
    const look = { by: answer.by, most, columns: table.columns, write: energyScale(answer.total.joules).write };
    const node = this.root.querySelector("table");
    setAttribute(node, "data-priced", answer.total.cost === null ? undefined : "");
    setAttribute(node, "data-co2", answer.total.co2_grams === null ? undefined : "");
    for (const unit of this.root.querySelectorAll(".unit")) setText(unit, table.columns.unit);
    setText(this.part("key"), keyName(answer.by));
    const keyOf = ({ row }) => JSON.stringify([row.account ?? row.rest ?? "", row.key]);
    syncChildren(this.root.querySelector("tbody"), table.lines, keyOf, rowNode, (line, item) => fill(line, item, look));
    setVisible(this.part("more"), table.count > FIRST_ROWS + 1);
    setText(this.part("more"), this.all ? "Show the first only" : `Show all ${table.count}`);
    fill(this.foot(), table.total, look);
    setText(this.part("when"), whenText(answer));
    setText(this.part("sum"), [balanceText(answer, table), notBilledText(answer, table)].filter(Boolean).join(" "));
    const notes = [...marks(answer.total), ...(answer.notes ?? [])];
    setVisible(this.part("notes"), notes.length > 0);
    setName(this.part("notes"), notes.join(" "), 1000);
  }

  /** Shows a button for each key that has names. */
  offer({ groupings, by }) {
    const found = (groupings ?? []).map((one) => one.by);
    const keys = found.includes(by) ? found : [...found, by];
    const button = () => createNode("button", { type: "button" });
    syncChildren(this.part("keys"), keys, (key) => key, button, (node, key) => {
      setAttribute(node, "data-by", key);
      setAttribute(node, "aria-pressed", key === by);
      setName(node, keyName(key), 40);
    });
  }

  foot() {
    const foot = this.root.querySelector("tfoot");
    if (!foot.firstElementChild) foot.append(rowNode());
    return foot.firstElementChild;
  }
}

function marks(total) {
  const unpriced = total.unpriced_microseconds > 0 || total.unpriced_millijoules > 0;
  return [
    total.estimated_microseconds > 0 && "~ rests on allocations of an unknown part of the GPU.",
    unpriced && "+ without what no entry of the price list matches.",
    total.unmetered_gpus > 0 && "+ without energy that was not measured.",
  ].filter(Boolean);
}

function rowNode() {
  const bar = createNode("div", { class: "stack", "aria-hidden": "true" }, createNode("div", { class: "measured" }), createNode("div", { class: "apportioned" }), createNode("div", { class: "own" }), createNode("div", { class: "range" }));
  const name = createNode("th", { scope: "row", role: "rowheader" }, createNode("a", { class: "name" }), createNode("span", { class: "soft" }));
  const cells = CELLS.map((id) => createNode("td", { role: "cell", class: id === "bar" ? "e-bar" : `number e-${id}` }, ...(id === "bar" ? [bar] : [])));
  return createNode("tr", { role: "row" }, name, ...cells);
}

/** The URL of the receipt of a row; undefined for accounts, sums, and rows without a name. */
function receiptOf(row, by) {
  const words = (row.key ?? []).filter(Boolean);
  if (row.own || row.rest || row.total || by === "gpu" || by === "model" || !words.length) return undefined;
  // One value of a label is written with a sign of equality.
  return by.startsWith("label:") ? `receipt/${encodeURIComponent(`${by}=`)}${encodeURIComponent(words[0])}` : receiptUrl(by, words.join("/"));
}

function fill(node, line, { most, columns, write, by }) {
  const { row } = line;
  const [name, ...cells] = node.children;
  setName(name.firstChild, line.name[0], 100);
  setAttribute(name.firstChild, "href", receiptOf(row, by));
  setText(name.lastChild, line.name[1]);
  setAttribute(node, "data-own", row.own ? row.account : row.rest ? "rest" : undefined);
  const texts = { ...textsOf(line, columns), measured: write(row.measured_joules), apportioned: write(row.apportioned_joules), high: write(row.high_joules), co2: kilograms(row.co2_grams) };
  CELLS.forEach((id, place) => id !== "bar" && setText(cells[place], texts[id]));
  bars(node.querySelector(".stack"), row, most);
}

function bars(stack, row, most) {
  const [measured, apportioned, other, range] = stack.children;
  const width = (node, value) => {
    const text = `${Math.min(100, (100 * (value ?? 0)) / most).toFixed(2)}%`;
    if (node.style.width !== text) node.style.width = text;
  };
  setVisible(stack, !row.total && !row.rest);
  width(measured, row.own ? 0 : row.measured_joules);
  width(apportioned, row.own ? 0 : row.apportioned_joules);
  width(other, row.own ? row.joules : 0);
  const bounds = !row.own && !row.total && (row.high_joules ?? null) !== null && row.high_joules > row.low_joules;
  setVisible(range, bounds);
  if (!bounds) return;
  const low = Math.min(100, (100 * row.low_joules) / most);
  const high = Math.min(100, (100 * row.high_joules) / most);
  range.style.left = `${low.toFixed(2)}%`;
  range.style.width = `${(high - low).toFixed(2)}%`;
  setAttribute(range, "data-beyond", row.high_joules > most ? "" : undefined);
}
