// The table of processes: sorted, filtered, and virtual: only visible rows are in the document.
import { COLUMNS, minWidth } from "./columns.js";
import { createNode, oncePerFrame, setAttribute, setText, setVisible } from "./dom.js";
import { count, joules, plural } from "./format.js";
import { place, placeOrder, setName } from "./names.js";

const OVERSCAN = 6;
const PRINTED = 1000;
const MOST_ENDED = 100;

const keyOf = (row) => `${row.uuid}|${row.instance}|${row.pid ?? "others"}|${row.start_unix}`;

/** The grid in `root` with its filter; sort order and filter are stored in `view`. */
export class ProcessGrid {
  constructor(root, view, announce) {
    this.view = view;
    this.announce = announce;
    this.rows = [];
    this.order = [];
    this.nodes = new Map();
    this.columns = [];
    this.active = null;
    this.root = root;
    this.scroller = root.querySelector(".scroller");
    this.grid = root.querySelector("[role=grid]");
    this.head = root.querySelector(".grid-head");
    this.body = root.querySelector(".grid-body");
    this.input = root.querySelector("input[type=search]");
    this.sorter = root.querySelector("select");
    this.draw = oncePerFrame(() => this.render());
    this.listen();
    this.input.value = view.get("q");
    view.onChange(() => {
      this.input.value = view.get("q");
      this.arrange(true);
    });
  }

  listen() {
    this.scroller.addEventListener("scroll", this.draw, { passive: true });
    new ResizeObserver(this.draw).observe(this.scroller);
    this.input.addEventListener("input", () => this.filter(this.input.value));
    this.sorter.addEventListener("change", () => {
      const [sort, order] = this.sorter.value.split(" ");
      this.sort(sort, order);
    });
    this.body.addEventListener("keydown", (event) => this.onKey(event));
    this.body.addEventListener("focusin", (event) => (this.active = event.target.closest("[role=row]")?.key ?? this.active));
    for (const gone of ["focusout", "pointerleave"]) this.grid.addEventListener(gone, () => setTimeout(() => this.arrange()));
    for (const [event, printing] of [["beforeprint", true], ["afterprint", false]]) {
      addEventListener(event, () => {
        this.printing = printing;
        this.render();
      });
    }
  }

  filter(text) {
    this.view.change({ q: text });
    if (this.input.value !== text) this.input.value = text;
    this.scroller.scrollTop = 0;
    this.arrange(true);
    clearTimeout(this.announceTimer);
    this.announceTimer = setTimeout(() => this.announce(`${plural(this.order.length, "process", "processes")} shown`), 700);
  }

  sort(id, order) {
    this.view.change({ sort: id, order });
    this.scroller.scrollTop = 0;
    this.arrange(true);
  }

  snapshot(data, now) {
    this.now = now;
    this.rows = data.processes;
    this.hasReadings = data.status.readings;
    for (const row of this.rows) row.key = keyOf(row);
    this.chooseColumns();
    this.arrange();
  }

  /** Chooses the columns for which a row has a value. */
  chooseColumns() {
    const some = (id) => this.rows.some((row) => row[id]);
    const columns = COLUMNS.filter((column) => !column.optional || (some(column.id) && !(column.alone && some("pod"))));
    if (columns.length === this.columns.length && columns.every((column, index) => column === this.columns[index])) return;
    this.columns = columns;
    this.grid.style.setProperty("--columns", columns.map((column) => column.width).join(" "));
    this.grid.style.setProperty("--least", minWidth(columns));
    setAttribute(this.grid, "aria-colcount", columns.length);
    this.head.replaceChildren(...columns.map((column) => this.heading(column)));
    const choices = columns.flatMap((column) => [["asc", "\u2191"], ["desc", "\u2193"]].map(([order, arrow]) => createNode("option", { value: `${column.id} ${order}` }, `by ${column.label} ${arrow}`)));
    this.sorter.replaceChildren(...choices);
    for (const node of this.nodes.values()) node.remove();
    this.nodes.clear();
  }

  heading(column) {
    const button = createNode("button", { type: "button" }, column.label, createNode("span", { class: "arrow", "aria-hidden": "true" }));
    button.addEventListener("click", () => {
      const { id, order } = this.sorting();
      const first = column.number ? "desc" : "asc";
      this.sort(column.id, id === column.id ? (order === "asc" ? "desc" : "asc") : first);
    });
    const node = createNode("div", { role: "columnheader", class: `c-${column.id}${column.number ? " number" : ""}` }, button);
    node.column = column.id;
    return node;
  }

  sorting() {
    const id = this.columns.some((column) => column.id === this.view.get("sort")) ? this.view.get("sort") : "gpu";
    return { id, order: this.view.oneOf("order", ["asc", "desc"]) };
  }

  /** Whether the user points at, selects or focuses rows: then they keep their order. */
  busy() {
    const selection = document.getSelection();
    const selects = selection && !selection.isCollapsed && this.body.contains(selection.anchorNode);
    return selects || this.body.contains(document.activeElement) || this.body.matches(":hover");
  }

  arrange(requested = false) {
    const shown = this.rows.filter(this.matcher());
    const now = new Map(shown.map((row) => [row.key, row]));
    const stay = this.order.map((row) => now.get(row.key) ?? ended(row));
    // A pointer left on the rows must not collect ended processes without limit.
    const few = stay.reduce((sum, row) => sum + (row.ended ? 1 : 0), 0) <= MOST_ENDED;
    const rest = !requested && few && this.order.length > 0 && this.busy();
    if (rest) {
      const before = new Set(this.order.map((row) => row.key));
      this.order = [...stay, ...shown.filter((row) => !before.has(row.key))];
    } else {
      this.order = shown.sort(this.comparison());
    }
    this.room = requested ? 0 : Math.max(this.room ?? 0, this.order.length);
    setVisible(this.root.querySelector(".order-paused"), rest && this.view.get("sort") !== "gpu");
    this.headings();
    const all = this.rows.reduce((sum, row) => sum + (row.count ?? 1), 0);
    const found = shown.reduce((sum, row) => sum + (row.count ?? 1), 0);
    const filtered = this.view.get("q").trim() !== "";
    setText(this.root.querySelector(".found"), `${filtered ? `${count(found)} of ` : ""}${plural(all, "process", "processes")}`);
    const empty = this.root.querySelector(".empty");
    setVisible(empty, this.order.length === 0);
    setText(empty, !this.hasReadings ? "The driver could not be read." : filtered ? "No process matches the filter." : "No process uses a GPU.");
    this.render();
  }

  headings() {
    const { id, order } = this.sorting();
    for (const node of this.head.children) {
      setAttribute(node, "aria-sort", node.column !== id ? undefined : order === "asc" ? "ascending" : "descending");
    }
    const value = `${id} ${order}`;
    if (this.sorter.value !== value) this.sorter.value = value;
  }

  /** A predicate: the row contains all words of the filter; gpu:4 and gpu:6/2_0 match a device. */
  matcher() {
    const words = this.view.get("q").toLowerCase().split(/\s+/).filter(Boolean);
    return (row) => words.every((word) => (word.startsWith("gpu:") ? isAt(row, word.slice(4)) : this.searchText(row).includes(word)));
  }

  searchText(row) {
    // Not cached: each of these may become known later.
    const words = [place(row), row.namespace, row.pod, row.container, row.job, row.user, row.command, row.pid ?? "", row.unresolved];
    return words.join("\n").toLowerCase();
  }

  comparison() {
    const { id, order } = this.sorting();
    const { sort } = COLUMNS.find((column) => column.id === id);
    const sign = order === "asc" ? 1 : -1;
    const compare = (a, b) => (typeof a === "string" ? (a < b ? -1 : a > b ? 1 : 0) : a - b);
    return (one, other) => {
      const [a, b] = [sort(one), sort(other)];
      // Absent values are last in both directions.
      if (a === null || b === null) return (a === null) - (b === null) || fallback(one, other);
      return sign * compare(a, b) || fallback(one, other);
    };
  }

  rowHeight() {
    return parseFloat(getComputedStyle(this.grid).getPropertyValue("--row")) || 34;
  }

  render() {
    const height = this.rowHeight();
    const total = this.order.length;
    const top = this.scroller.scrollTop;
    let from = Math.max(0, Math.floor(top / height) - OVERSCAN);
    let to = Math.min(total, Math.ceil((top + this.scroller.clientHeight) / height) + OVERSCAN);
    if (this.printing) [from, to] = [0, Math.min(total, PRINTED)];
    // With few rows the height does not shrink, so that updates do not move the sections below.
    this.body.style.height = `${Math.max(total, Math.min(this.room, 20)) * height}px`;
    setAttribute(this.grid, "aria-rowcount", total + 1);
    const focused = this.body.contains(document.activeElement) ? this.active : null;
    const needed = [];
    this.order.forEach((row, index) => {
      if ((index >= from && index < to) || row.key === focused) needed.push([row, index]);
    });
    const keys = new Set(needed.map(([row]) => row.key));
    for (const [key, node] of this.nodes) {
      if (keys.has(key)) continue;
      node.remove();
      this.nodes.delete(key);
    }
    const tabbed = keys.has(this.active) ? this.active : this.order[Math.min(total - 1, Math.ceil(top / height))]?.key;
    const still = this.busy();
    let spot = this.body.firstElementChild;
    for (const [row, index] of needed) {
      let node = this.nodes.get(row.key);
      const fresh = !node;
      node ??= this.rowNode(row);
      this.fill(node, row);
      setAttribute(node, "aria-rowindex", index + 2);
      setAttribute(node, "tabindex", row.key === tabbed ? 0 : -1);
      const shift = `translateY(${index * height}px)`;
      if (node.style.transform !== shift) node.style.transform = shift;
      // Moving a node would remove its focus and selection; its visible position is set by the transform.
      if (node === spot) spot = spot.nextElementSibling;
      else if (fresh || !still) this.body.insertBefore(node, spot);
    }
  }

  rowNode(row) {
    const cells = this.columns.map((column) => createNode("div", { role: "gridcell", class: `c-${column.id}${column.number ? " number" : ""}${column.name ? " name" : ""}` }));
    const node = createNode("div", { role: "row" }, ...cells);
    node.key = row.key;
    this.nodes.set(row.key, node);
    return node;
  }

  fill(node, row) {
    setAttribute(node, "data-ended", row.ended ? "" : undefined);
    this.columns.forEach((column, index) => {
      const cell = node.children[index];
      if (column.id === "command") {
        setName(cell, row.count === null ? row.command : plural(row.count, "further process", "further processes"));
      } else if (column.name) {
        const why = column.id === "pod" && row.unresolved && !row.pod;
        setName(cell, why ? `unknown: ${row.unresolved.replaceAll("_", " ")}` : column.text(row));
        setAttribute(cell, "data-soft", why ? "" : undefined);
        setAttribute(cell, "data-empty", why || row[column.id] ? undefined : "");
      } else {
        setText(cell, row.ended && column.id === "age" ? "ended" : column.text(row, this.now));
      }
      if (column.id === "joules") setAttribute(cell, "title", row.joules === null ? undefined : `${joules(row.joules)}, of which ${joules(row.measured_joules)} measured`);
    });
  }

  onKey(event) {
    const index = this.order.findIndex((row) => row.key === this.active);
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.rowHeight()) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.focus(Math.min(this.order.length - 1, Math.max(0, index + moves[event.key])));
  }

  focus(index) {
    const row = this.order[index];
    if (!row) return;
    const height = this.rowHeight();
    const room = this.scroller.clientHeight - this.head.offsetHeight;
    const { scrollTop } = this.scroller;
    if (index * height < scrollTop) this.scroller.scrollTop = index * height;
    else if ((index + 1) * height > scrollTop + room) this.scroller.scrollTop = (index + 1) * height - room;
    this.active = row.key;
    this.render();
    this.nodes.get(row.key)?.focus();
  }
}

const isAt = (row, name) => place(row).toLowerCase() === name || (row.gpu === name && !name.includes("/"));
const fallback = (one, other) => placeOrder(place(one)) - placeOrder(place(other)) || (other.memory_bytes ?? 0) - (one.memory_bytes ?? 0) || (one.pid ?? Infinity) - (other.pid ?? Infinity);
const ended = (row) => ({ ...row, ended: true, sm_ratio: null, power_watts: null });
