// Who was on which device when: a canvas to look at and to walk through with keys, and the same as a table.
import { oncePerFrame, setAttribute, setText, show } from "./dom.js";
import { duration, joules, moment, percent, plural } from "./format.js";
import { follow } from "./gestures.js";
import { ownerName, plain, place, setName } from "./names.js";
import { lanesOf } from "./sessions.js";
import { Painter } from "./painter.js";
import { fillTable } from "./timeline_table.js";

const HOUR = 3600;
const DAY = 24 * HOUR;
const SHORTEST = 60;
// What is drawn right of now, so that what runs now is seen to run.
const MARGIN = 0.02;

/** The section in `root`; `view` keeps the span, `say` is the quiet live region. */
export class Timeline {
  constructor(root, view, say) {
    this.root = root;
    this.view = view;
    this.say = say;
    this.part = (name) => root.querySelector(`.${name}`);
    this.canvas = root.querySelector("canvas");
    this.stage = this.part("stage");
    this.painter = new Painter(this.canvas);
    this.lanes = [];
    this.open = [];
    this.places = [];
    this.selected = null;
    this.hovered = null;
    this.now = Date.now() / 1000;
    this.draw = oncePerFrame(() => this.paint());
    this.spanOf(view);
    this.listen();
  }

  listen() {
    new ResizeObserver(this.draw).observe(this.stage);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) matchMedia(query).addEventListener("change", this.draw);
    for (const button of this.root.querySelectorAll("[data-span]")) button.addEventListener("click", () => this.span(Number(button.dataset.span), true));
    const steps = { in: () => this.zoom(0.5), out: () => this.zoom(2), earlier: () => this.pan(-0.5), later: () => this.pan(0.5), now: () => this.span(this.length / HOUR) };
    for (const [name, step] of Object.entries(steps)) this.part(`do-${name}`).addEventListener("click", step);
    this.stage.addEventListener("keydown", (event) => this.key(event));
    this.stage.addEventListener("blur", () => this.select(null));
    this.part("fold").addEventListener("toggle", () => this.table());
    follow(this.canvas, {
      pan: (pixels) => this.pan(-pixels / this.painter.width),
      zoom: (factor, x) => this.zoom(factor, this.painter.timeAt(x, this)),
      hover: (x, y) => this.hover(x === null ? null : this.painter.barAt(x, y, this)),
      tap: (x, y) => this.select(this.painter.barAt(x, y, this)),
    });
    this.view.follow(() => this.spanOf(this.view));
  }

  snapshot(data, now) {
    this.now = now;
    const places = data.devices.filter((device) => device.holds_processes).map(place);
    if (places.join() !== this.places.join()) {
      this.places = places;
      this.arrange();
    } else if (this.following) this.draw();
  }

  sessions(store) {
    this.store = store;
    show(this.part("missing"), false);
    this.arrange();
  }

  failed(error) {
    show(this.part("missing"), true);
    setText(this.part("missing"), `The sessions could not be asked for: ${error.message}`);
  }

  arrange() {
    const known = this.store ? [...this.store.known.values()] : [];
    this.lanes = lanesOf(known, this.places, this.now);
    this.byId = new Map(this.lanes.flatMap((lane) => lane.bars.map((bar) => [bar.session.id, bar])));
    this.open = [...this.byId.values()].filter((bar) => bar.session.ended === null);
    for (const name of ["selected", "hovered"]) this[name] = this[name] ? (this.byId.get(this[name].session.id) ?? null) : null;
    const notes = [];
    if (this.store && !this.store.fromBooks) notes.push("No books are kept: only what runs now is known.");
    if (this.store?.cut) notes.push("There are more sessions than are shown here.");
    setText(this.part("notes"), notes.join(" "));
    setText(this.part("known"), this.store ? plural(known.length, "session") : "asking\u2026");
    if (this.store && this.undecided) this.decide();
    this.detail();
    this.draw();
    this.table();
  }

  // The window: from `from` for `length` seconds, moving along with now while `following`.

  /** As chosen, else as much as there is something to see. */
  spanOf(view) {
    const chosen = view.oneOf("span", ["1", "6", "24"]);
    this.undecided = chosen === "";
    this.span(Number(chosen || 24));
  }

  decide() {
    this.undecided = false;
    const oldest = Math.min(this.now, ...this.lanes.map((lane) => lane.bars[0]?.from ?? Infinity));
    this.span([1, 6].find((hours) => oldest > this.now - hours * HOUR) ?? 24);
  }

  span(hours, chosen = false) {
    this.length = hours * HOUR;
    this.following = true;
    if (chosen) {
      this.undecided = false;
      this.view.change({ span: String(hours) });
    }
    this.moved();
  }

  get to() {
    return this.following ? this.now + this.length * MARGIN : this.end;
  }

  get from() {
    return this.to - this.length * (this.following ? 1 + MARGIN : 1);
  }

  zoom(factor, around) {
    const { from, to } = this;
    const length = Math.min(DAY * (1 + MARGIN), Math.max(SHORTEST, (to - from) * factor));
    const fixed = around ?? (this.following ? to : this.selected ? Math.min(to, Math.max(from, this.selected.from)) : (from + to) / 2);
    const share = (to - fixed) / (to - from);
    this.go(fixed + length * share, length);
  }

  pan(share) {
    const length = this.to - this.from;
    this.go(this.to + length * share, length);
  }

  go(end, length) {
    const newest = this.now + length * MARGIN;
    const oldest = this.now - DAY + length;
    this.undecided = false;
    this.end = Math.min(newest, Math.max(Math.min(oldest, newest), end));
    this.length = length;
    this.following = false;
    this.moved();
  }

  moved() {
    for (const button of this.root.querySelectorAll("[data-span]")) {
      setAttribute(button, "aria-pressed", this.following && Math.abs(this.length - Number(button.dataset.span) * HOUR) < 1);
    }
    this.draw();
    clearTimeout(this.tabling);
    this.tabling = setTimeout(() => this.table(), 150);
  }

  // What is pointed at.

  hover(bar) {
    if (bar === this.hovered) return;
    this.hovered = bar;
    this.canvas.style.cursor = bar ? "pointer" : "";
    this.detail();
    this.draw();
  }

  select(bar, aloud = false) {
    if (bar === this.selected) return;
    this.selected = bar;
    if (bar) this.reveal(bar);
    if (bar && aloud) this.say(this.words(bar));
    this.detail();
    this.draw();
  }

  reveal(bar) {
    const { from, to } = this;
    if (bar.to >= from && bar.from <= to) return;
    const length = to - from;
    this.go(bar.to < from ? bar.from + length * 0.9 : bar.from + length * 0.5, length);
  }

  key(event) {
    const moves = {
      ArrowRight: () => (event.shiftKey ? this.pan(0.25) : this.step(1)),
      ArrowLeft: () => (event.shiftKey ? this.pan(-0.25) : this.step(-1)),
      ArrowDown: () => this.lane(1),
      ArrowUp: () => this.lane(-1),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.span(24, true),
      Escape: () => this.select(null),
    };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    moves[event.key]();
  }

  /** To the next or the last session of the same lane. */
  step(by) {
    const lane = this.lanes.find((one) => one.place === this.selected?.place);
    if (!lane) return this.first(by);
    const index = lane.bars.indexOf(this.selected) + by;
    if (lane.bars[index]) this.select(lane.bars[index], true);
    else this.say(by > 0 ? "last session of this lane" : "first session of this lane");
  }

  first(by) {
    const lane = this.lanes.find((one) => one.bars.length);
    if (lane) this.select(by > 0 ? (this.inSight(lane)[0] ?? lane.bars[0]) : lane.bars.at(-1), true);
  }

  inSight(lane) {
    return lane.bars.filter((bar) => bar.to >= this.from && bar.from <= this.to);
  }

  /** To the session nearest in time, one lane on. */
  lane(by) {
    if (!this.selected) return this.first(1);
    const filled = this.lanes.filter((one) => one.bars.length);
    const lane = filled[filled.findIndex((one) => one.place === this.selected.place) + by];
    if (!lane) return this.say(by > 0 ? "last lane" : "first lane");
    const distance = (bar) => Math.abs(bar.from - this.selected.from);
    this.select(lane.bars.reduce((best, bar) => (distance(bar) < distance(best) ? bar : best)), true);
  }

  words({ session, from, to }) {
    const ran = session.ended === null ? `since ${moment(from, this.now)}, for ${duration(to - from)} so far` : `${moment(from, this.now)} to ${moment(to, this.now)}, ${duration(to - from)}`;
    return `${plain(ownerName(session))}, ${plain(session.command, 60)} (${session.pid}) on GPU ${place(session)}: ${ran}; ${energyWords(session)}`;
  }

  detail() {
    const bar = this.hovered ?? this.selected;
    const box = this.part("detail");
    setAttribute(box, "data-empty", bar ? undefined : "");
    if (!bar) {
      setText(this.part("detail-who"), "Point at a session, or walk through them with the arrow keys.");
      for (const name of ["detail-what", "detail-when", "detail-energy"]) setText(this.part(name), "");
      return;
    }
    const { session } = bar;
    setName(this.part("detail-who"), ownerName(session), 120);
    setName(this.part("detail-what"), `${session.command} (${session.pid}) on GPU ${place(session)}`, 120);
    const until = session.ended === null ? "now" : moment(bar.to, this.now);
    const load = session.sm_mean_ratio === null ? "" : `, SM ${percent(session.sm_mean_ratio)} on average`;
    const held = session.held_seconds ? `, ${duration(session.held_seconds)} held without work` : "";
    setText(this.part("detail-when"), `${moment(bar.from, this.now)} to ${until}: ${duration(bar.to - bar.from)}${load}${held}`);
    setText(this.part("detail-energy"), `\u00b7 ${energyWords(session)}`);
  }

  paint() {
    for (const bar of this.open) bar.to = Math.max(this.now, bar.session.last_seen);
    const stamp = { lanes: this.lanes, from: this.from, to: this.to, now: this.now, selected: this.selected, hovered: this.hovered };
    this.painter.paint(this.stage.clientWidth, stamp);
    const inSight = this.lanes.reduce((sum, lane) => sum + this.inSight(lane).length, 0);
    setAttribute(this.stage, "aria-label", `Sessions by device, ${moment(this.from, this.now)} to ${moment(Math.min(this.to, this.now), this.now)}: ${plural(inSight, "session")} on ${plural(this.lanes.length, "device")}`);
    setAttribute(this.stage, "data-window", `${Math.round(this.from)} ${Math.round(this.to)}`);
  }

  table() {
    if (!this.part("fold").open) return;
    fillTable(this.part("fold"), this.lanes.flatMap((lane) => this.inSight(lane)), this.now);
  }
}

function energyWords(session) {
  if (session.joules === null) return "energy not told";
  const bounds = session.high_joules === null || session.low_joules === null ? "" : `, between ${joules(session.low_joules)} and ${joules(session.high_joules)}`;
  return joules(session.joules) + (session.low_joules === session.high_joules ? ", measured" : bounds);
}
