// Draws the timeline: an axis, a lane per device, a bar per session; and finds the bar at a point.
import { clock, day } from "./format.js";
import { ownerName, plain } from "./names.js";

export const AXIS = 26;
const ROW = 18;
const GAP = 7;
const MOST_LANE = 110;
const NARROWEST = 2;
const COLOURS = 8;
const STEPS = [10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600];

const colours = new Map();

/** A colour number for an owner: as far as they go, no two have the same, and nobody's changes. */
export function colourOf(session) {
  const group = session.namespace || session.job || session.user || session.command;
  if (!colours.has(group)) {
    let colour = hashOf(group) % COLOURS;
    if (colours.size < COLOURS) {
      const taken = new Set(colours.values());
      while (taken.has(colour)) colour = (colour + 1) % COLOURS;
    }
    colours.set(group, colour);
  }
  return colours.get(group);
}

function hashOf(text) {
  let hash = 2166136261;
  for (const character of text) hash = Math.imul(hash ^ character.codePointAt(0), 16777619);
  return hash >>> 0;
}

/** Whether a session has done next to nothing but hold the device. */
export const onlyHeld = (bar) => bar.session.held_seconds > 0.9 * Math.max(1, bar.to - bar.from);

export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.width = 1;
  }

  timeAt(x, { from, to }) {
    return from + ((x - this.gutter) / this.width) * (to - from);
  }

  layout(lanes) {
    let y = AXIS;
    for (const lane of lanes) {
      lane.y = y;
      lane.height = Math.min(MOST_LANE, lane.rows * ROW);
      y += lane.height + GAP;
    }
    return y;
  }

  paint(wide, scene) {
    this.gutter = wide < 600 ? 52 : 76;
    this.width = Math.max(1, wide - this.gutter - 2);
    const high = this.layout(scene.lanes);
    const ratio = devicePixelRatio || 1;
    const [w, h] = [Math.round(wide * ratio), Math.round(high * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      [this.canvas.width, this.canvas.height] = [w, h];
      this.canvas.style.height = `${high}px`;
    }
    const style = getComputedStyle(this.canvas);
    this.colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.fills = Array.from({ length: COLOURS }, (_, index) => [this.colour(`o${index}`), this.colour(`o${index}-edge`)]);
    const { pen } = this;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.font = `12px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    this.axis(scene, high);
    for (const lane of scene.lanes) this.lane(lane, scene, wide);
    this.nowLine(scene, high);
  }

  xOf(time, { from, to }) {
    return this.gutter + ((time - from) / (to - from)) * this.width;
  }

  axis(scene, high) {
    const { pen } = this;
    const room = 70;
    const step = STEPS.find((one) => (one / (scene.to - scene.from)) * this.width >= room) ?? 21600;
    const shift = new Date(scene.to * 1000).getTimezoneOffset() * 60;
    pen.lineWidth = 1;
    for (let time = Math.ceil((scene.from - shift) / step) * step + shift; time <= scene.to; time += step) {
      const x = Math.round(this.xOf(time, scene)) + 0.5;
      pen.strokeStyle = this.colour("line");
      pen.beginPath();
      pen.moveTo(x, AXIS - 5);
      pen.lineTo(x, high);
      pen.stroke();
      pen.fillStyle = this.colour("soft");
      pen.textAlign = "center";
      const midnight = (time - shift) % 86400 === 0;
      const words = midnight ? day(time) : step < 60 ? `${clock(time)}:${String(Math.round(time % 60)).padStart(2, "0")}` : clock(time);
      if (x < this.gutter + this.width - 18 && x > this.gutter + 12) pen.fillText(words, x, AXIS / 2 - 2);
    }
  }

  lane(lane, scene, wide) {
    const { pen } = this;
    pen.fillStyle = this.colour("lane");
    pen.fillRect(this.gutter, lane.y, this.width, lane.height);
    pen.fillStyle = this.colour("ink");
    pen.textAlign = "left";
    pen.fillText(wide < 600 ? lane.place : `GPU ${lane.place}`, 2, lane.y + lane.height / 2, this.gutter - 6);
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, lane.y - 2, this.width, lane.height + 4);
    pen.clip();
    const marked = [];
    for (const bar of lane.bars) {
      if (bar.to < scene.from || bar.from > scene.to) continue;
      this.bar(lane, bar, scene);
      if (bar === scene.selected || bar === scene.hovered) marked.push(bar);
    }
    for (const bar of marked) this.mark(lane, bar, scene);
    pen.restore();
  }

  box(lane, bar, scene) {
    const left = Math.max(this.gutter - 2, this.xOf(bar.from, scene));
    const right = Math.min(this.gutter + this.width + 2, this.xOf(bar.to, scene));
    const high = lane.height / lane.rows;
    return [left, lane.y + bar.row * high, Math.max(NARROWEST, right - left), high];
  }

  bar(lane, bar, scene) {
    const { pen } = this;
    const [x, y, wide, high] = this.box(lane, bar, scene);
    const [fill, edge] = this.fills[colourOf(bar.session)];
    const inset = high > 5 ? 1 : 0;
    const hollow = onlyHeld(bar);
    if (wide <= 4 || high <= 4) {
      pen.fillStyle = edge;
      pen.globalAlpha = hollow ? 0.45 : 1;
      pen.fillRect(x, y + inset, wide, high - 2 * inset);
      pen.globalAlpha = 1;
    } else {
      pen.fillStyle = hollow ? this.colour("lane") : fill;
      pen.fillRect(x, y + inset, wide, high - 2 * inset);
      pen.strokeStyle = edge;
      pen.setLineDash(hollow ? [3, 2] : []);
      pen.strokeRect(x + 0.5, y + inset + 0.5, wide - 1, high - 2 * inset - 1);
      pen.setLineDash([]);
    }
    if (wide > 46 && high > 12) this.label(bar, x, y, wide, high);
  }

  label(bar, x, y, wide, high) {
    const { pen } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x + 2, y, wide - 6, high);
    pen.clip();
    pen.fillStyle = this.colour("ink");
    pen.textAlign = "left";
    pen.fillText(plain(ownerName(bar.session), 60), x + 6, y + high / 2 + 0.5);
    pen.restore();
  }

  mark(lane, bar, scene) {
    const { pen } = this;
    const [x, y, wide, high] = this.box(lane, bar, scene);
    pen.strokeStyle = this.colour("ink");
    pen.lineWidth = 2;
    pen.strokeRect(x, y, wide, high);
    pen.lineWidth = 1;
  }

  nowLine(scene, high) {
    const x = Math.round(this.xOf(scene.now, scene)) + 0.5;
    if (x < this.gutter || x > this.gutter + this.width) return;
    const { pen } = this;
    pen.strokeStyle = this.colour("now");
    pen.beginPath();
    pen.moveTo(x, AXIS - 8);
    pen.lineTo(x, high - GAP);
    pen.stroke();
  }

  /** The bar under a point, or within a finger's breadth sideways; null where there is none. */
  barAt(x, y, scene) {
    const lane = scene.lanes.find((one) => y >= one.y && y < one.y + one.height);
    if (!lane || x < this.gutter) return null;
    let best = null;
    let nearest = 4;
    for (const bar of lane.bars) {
      if (bar.to < scene.from || bar.from > scene.to) continue;
      const [left, top, wide, high] = this.box(lane, bar, scene);
      if (y < top || y >= top + high) continue;
      const distance = x < left ? left - x : x > left + wide ? x - left - wide : 0;
      if (distance < nearest) [best, nearest] = [bar, distance];
    }
    return best;
  }
}
