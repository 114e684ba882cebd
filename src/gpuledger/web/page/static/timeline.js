// The timeline of sessions by device: a canvas with mouse, touch and key control, and the same data as a table.
import { oncePerFrame, setAttribute, setText, setVisible } from "./dom.js";
import { duration, joules, moment, percent, plural } from "./format.js";
import { trackGestures } from "./gestures.js";
import { ownerName, plain, place, setName } from "./names.js";
import { buildTracks } from "./sessions.js";
import { TimelinePainter } from "./painter.js";
import { fillTable } from "./timeline_table.js";

const HOUR = 3600;
const DAY = 24 * HOUR;
const MIN_SPAN = 60;
// The share of the width to the right of now.
const MARGIN = 0.02;

/** The section in `root`; `view` stores the span, `announce` writes to the live region. */
export class Timeline {
  constructor(root, view, announce) {
    this.root = root;
    this.view = view;
    this.announce = announce;
    this.part = (name) => root.querySelector(`.${name}`);
    this.canvas = root.querySelector("canvas");
    this.stage = this.part("stage");
    this.painter = new TimelinePainter(this.canvas);
    this.tracks = [];
    this.open = [];
    this.places = [];
    this.selected = null;
    this.hovered = null;
    this.pointer = null;
    this.now = Date.now() / 1000;
    this.draw = oncePerFrame(() => this.paint());
    this.applySpan(view);
    this.listen();
  }

  listen() {
    new ResizeObserver(this.draw).observe(this.stage);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) matchMedia(query).addEventListener("change", this.draw);
    for (const button of this.root.querySelectorAll("[data-span]")) button.addEventListener("click", () => this.setSpan(Number(button.dataset.span), true));
    const steps = { in: () => this.zoom(0.5), out: () => this.zoom(2), earlier: () => this.pan(-0.5), later: () => this.pan(0.5), now: () => this.setSpan(this.length / HOUR) };
    for (const [name, step] of Object.entries(steps)) this.part(`do-${name}`).addEventListener("click", step);
    this.stage.addEventListener("keydown", (event) => this.onKey(event));
    this.stage.addEventListener("blur", () => this.select(null));
    this.part("fold").addEventListener("toggle", () => this.updateTable());
    trackGestures(this.canvas, {
      pan: (pixels) => this.pan(-pixels / this.painter.width),
      zoom: (factor, x) => this.zoom(factor, this.painter.timeAt(x, this)),
      hover: (x, y) => this.point(x === null ? null : [x, y]),
      tap: (x, y) => this.select(this.painter.barAt(x, y, this)),
    });
    this.view.onChange(() => this.applySpan(this.view));
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
    setVisible(this.part("missing"), false);
    this.arrange();
  }

  failed(error) {
    setVisible(this.part("missing"), true);
    setText(this.part("missing"), `The sessions could not be loaded: ${error.message}`);
  }

  arrange() {
    const known = this.store ? [...this.store.known.values()] : [];
    this.tracks = buildTracks(known, this.places, this.now);
    this.byId = new Map(this.tracks.flatMap((track) => track.bars.map((bar) => [bar.session.id, bar])));
    this.open = [...this.byId.values()].filter((bar) => bar.session.ended === null);
    for (const name of ["selected", "hovered"]) this[name] = this[name] ? (this.byId.get(this[name].session.id) ?? null) : null;
    const notes = [];
    if (this.store && !this.store.fromBooks) notes.push("No ledger is kept on disk: only running sessions are known.");
    if (this.store?.truncated) notes.push("There are more sessions than shown here.");
    setText(this.part("notes"), notes.join(" "));
    setText(this.part("known"), this.store ? plural(known.length, "session") : "loading\u2026");
    if (this.store && this.spanIsOpen) this.chooseSpan();
    this.updateDetail();
    this.draw();
    this.updateTable();
  }

  // The window: `length` seconds up to `end`, or up to now while `following`.

  /** Applies the chosen span; without a choice, `chooseSpan` picks the shortest that shows all sessions. */
  applySpan(view) {
    const chosen = view.oneOf("span", ["1", "6", "24"]);
    this.spanIsOpen = chosen === "";
    this.setSpan(Number(chosen || 24));
  }

  chooseSpan() {
    this.spanIsOpen = false;
    const oldest = Math.min(this.now, ...this.tracks.map((track) => track.bars[0]?.from ?? Infinity));
    this.setSpan([1, 6].find((hours) => oldest > this.now - hours * HOUR) ?? 24);
  }

  setSpan(hours, chosen = false) {
    this.length = hours * HOUR;
    this.following = true;
    if (chosen) {
      this.spanIsOpen = false;
      this.view.change({ span: String(hours) });
    }
    this.onMoved();
  }

  get to() {
    return this.following ? this.now + this.length * MARGIN : this.end;
  }

  get from() {
    return this.to - this.length * (this.following ? 1 + MARGIN : 1);
  }

  zoom(factor, around) {
    const { from, to } = this;
    const length = Math.min(DAY * (1 + MARGIN), Math.max(MIN_SPAN, (to - from) * factor));
    const anchor = around ?? (this.following ? to : this.selected ? Math.min(to, Math.max(from, this.selected.from)) : (from + to) / 2);
    const share = (to - anchor) / (to - from);
    this.moveTo(anchor + length * share, length);
  }

  pan(share) {
    const length = this.to - this.from;
    this.moveTo(this.to + length * share, length);
  }

  moveTo(end, length) {
    const newest = this.now + length * MARGIN;
    const oldest = this.now - DAY + length;
    this.spanIsOpen = false;
    this.end = Math.min(newest, Math.max(Math.min(oldest, newest), end));
    this.length = length;
    this.following = false;
    this.onMoved();
  }

  onMoved() {
    for (const button of this.root.querySelectorAll("[data-span]")) {
      setAttribute(button, "aria-pressed", this.following && Math.abs(this.length - Number(button.dataset.span) * HOUR) < 1);
    }
    this.draw();
    clearTimeout(this.tableTimer);
    this.tableTimer = setTimeout(() => this.updateTable(), 150);
  }

  // Hovered and selected sessions.

  point(pointer) {
    this.pointer = pointer;
    this.hover();
  }

  /** Shows the session under the pointer, which may rest while the timeline moves below it. */
  hover() {
    const bar = this.pointer && this.painter.barAt(...this.pointer, this);
    if (bar === this.hovered) return;
    this.hovered = bar;
    this.canvas.style.cursor = bar ? "pointer" : "";
    this.updateDetail();
    this.draw();
  }

  select(bar, aloud = false) {
    if (bar === this.selected) return;
    this.selected = bar;
    if (bar) this.reveal(bar);
    if (bar && aloud) this.announce(this.describe(bar));
    this.updateDetail();
    this.draw();
  }

  reveal(bar) {
    const { from, to } = this;
    if (bar.to >= from && bar.from <= to) return;
    const length = to - from;
    this.moveTo(bar.to < from ? bar.from + length * 0.9 : bar.from + length * 0.5, length);
  }

  onKey(event) {
    const moves = {
      ArrowRight: () => (event.shiftKey ? this.pan(0.25) : this.selectNeighbour(1)),
      ArrowLeft: () => (event.shiftKey ? this.pan(-0.25) : this.selectNeighbour(-1)),
      ArrowDown: () => this.selectTrack(1),
      ArrowUp: () => this.selectTrack(-1),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.setSpan(24, true),
      Escape: () => this.select(null),
    };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    moves[event.key]();
  }

  /** Selects the next or the previous session of the same device. */
  selectNeighbour(by) {
    const track = this.tracks.find((one) => one.place === this.selected?.place);
    if (!track) return this.selectFirst(by);
    const index = track.bars.indexOf(this.selected) + by;
    if (track.bars[index]) this.select(track.bars[index], true);
    else this.announce(by > 0 ? "last session of this device" : "first session of this device");
  }

  selectFirst(by) {
    const track = this.tracks.find((one) => one.bars.length);
    if (track) this.select(by > 0 ? (this.visibleBars(track)[0] ?? track.bars[0]) : track.bars.at(-1), true);
  }

  visibleBars(track) {
    return track.bars.filter((bar) => bar.to >= this.from && bar.from <= this.to);
  }

  /** Selects the session of the next or previous device that is nearest in time. */
  selectTrack(by) {
    if (!this.selected) return this.selectFirst(1);
    const filled = this.tracks.filter((one) => one.bars.length);
    const track = filled[filled.findIndex((one) => one.place === this.selected.place) + by];
    if (!track) return this.announce(by > 0 ? "last device" : "first device");
    const distance = (bar) => Math.abs(bar.from - this.selected.from);
    this.select(track.bars.reduce((best, bar) => (distance(bar) < distance(best) ? bar : best)), true);
  }

  describe({ session, from, to }) {
    const ran = session.ended === null ? `since ${moment(from, this.now)}, for ${duration(to - from)} so far` : `${moment(from, this.now)} to ${moment(to, this.now)}, ${duration(to - from)}`;
    return `${plain(ownerName(session))}, ${plain(session.command, 60)} (${session.pid}) on GPU ${place(session)}: ${ran}; ${energyText(session)}`;
  }

  updateDetail() {
    const bar = this.hovered ?? this.selected;
    const box = this.part("detail");
    setAttribute(box, "data-empty", bar ? undefined : "");
    if (!bar) {
      setText(this.part("detail-who"), "Point at a session, or use the arrow keys.");
      for (const name of ["detail-what", "detail-when", "detail-energy"]) setText(this.part(name), "");
      return;
    }
    const { session } = bar;
    setName(this.part("detail-who"), ownerName(session), 120);
    setName(this.part("detail-what"), `${session.command} (${session.pid}) on GPU ${place(session)}`, 120);
    const until = session.ended === null ? "now" : moment(bar.to, this.now);
    const load = session.sm_mean_ratio === null ? "" : `, SM ${percent(session.sm_mean_ratio)} on average`;
    const held = session.held_seconds ? `, ${duration(session.held_seconds)} idle but allocated` : "";
    setText(this.part("detail-when"), `${moment(bar.from, this.now)} to ${until}: ${duration(bar.to - bar.from)}${load}${held}`);
    setText(this.part("detail-energy"), `\u00b7 ${energyText(session)}`);
  }

  paint() {
    for (const bar of this.open) bar.to = Math.max(this.now, bar.session.last_seen);
    const scene = { tracks: this.tracks, from: this.from, to: this.to, now: this.now, selected: this.selected, hovered: this.hovered };
    this.painter.paint(this.stage.clientWidth, scene);
    this.hover();
    const visible = this.tracks.reduce((sum, track) => sum + this.visibleBars(track).length, 0);
    setAttribute(this.stage, "aria-label", `Sessions by device, ${moment(this.from, this.now)} to ${moment(Math.min(this.to, this.now), this.now)}: ${plural(visible, "session")} on ${plural(this.tracks.length, "device")}`);
    setAttribute(this.stage, "data-window", `${Math.round(this.from)} ${Math.round(this.to)}`);
  }

  updateTable() {
    if (!this.part("fold").open) return;
    fillTable(this.part("fold"), this.tracks.flatMap((track) => this.visibleBars(track)), this.now);
  }
}

function energyText(session) {
  if (session.joules === null) return "energy not reported";
  const bounds = session.high_joules === null || session.low_joules === null ? "" : `, between ${joules(session.low_joules)} and ${joules(session.high_joules)}`;
  return joules(session.joules) + (session.low_joules === session.high_joules ? ", measured" : bounds);
}
