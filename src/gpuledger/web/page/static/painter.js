// Draws the timeline on a canvas: an axis, a track per device, a bar per session. Finds the bar at a point.
import { clock, day } from "./format.js";
import { ownerName, plain } from "./names.js";

export const AXIS = 26;
const ROW = 18;
const GAP = 7;
const MAX_TRACK = 110;
const MIN_BAR = 2;
const COLORS = 8;
const STEPS = [10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600];

const colors = new Map();

/** The color number of a session's owner: stable, and unique as long as there are unused colors. */
export function colorOf(session) {
  const group = session.namespace || session.job || session.user || session.command;
  if (!colors.has(group)) {
    let color = hashOf(group) % COLORS;
    if (colors.size < COLORS) {
      const taken = new Set(colors.values());
      while (taken.has(color)) color = (color + 1) % COLORS;
    }
    colors.set(group, color);
  }
  return colors.get(group);
}

function hashOf(text) {
  let hash = 2166136261;
  for (const character of text) hash = Math.imul(hash ^ character.codePointAt(0), 16777619);
  return hash >>> 0;
}

/** Whether a session held its device without activity for over 90 % of the time. */
export const onlyHeld = (bar) => bar.session.held_seconds > 0.9 * Math.max(1, bar.to - bar.from);

export class TimelinePainter {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.width = 1;
  }

  timeAt(x, { from, to }) {
    return from + ((x - this.gutter) / this.width) * (to - from);
  }

  layout(tracks) {
    let y = AXIS;
    for (const track of tracks) {
      track.y = y;
      track.height = Math.min(MAX_TRACK, track.rows * ROW);
      y += track.height + GAP;
    }
    return y;
  }

  paint(wide, scene) {
    this.gutter = wide < 600 ? 52 : 76;
    this.width = Math.max(1, wide - this.gutter - 2);
    const high = this.layout(scene.tracks);
    const ratio = devicePixelRatio || 1;
    const [w, h] = [Math.round(wide * ratio), Math.round(high * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      [this.canvas.width, this.canvas.height] = [w, h];
      this.canvas.style.height = `${high}px`;
    }
    const style = getComputedStyle(this.canvas);
    this.color = (name) => style.getPropertyValue(`--${name}`).trim();
    this.fills = Array.from({ length: COLORS }, (_, index) => [this.color(`o${index}`), this.color(`o${index}-edge`)]);
    const { pen } = this;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.font = `12px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    this.drawAxis(scene, high);
    for (const track of scene.tracks) this.drawTrack(track, scene, wide);
    this.drawNow(scene, high);
  }

  xOf(time, { from, to }) {
    return this.gutter + ((time - from) / (to - from)) * this.width;
  }

  drawAxis(scene, high) {
    const { pen } = this;
    const room = 70;
    const step = STEPS.find((one) => (one / (scene.to - scene.from)) * this.width >= room) ?? 21600;
    const shift = new Date(scene.to * 1000).getTimezoneOffset() * 60;
    pen.lineWidth = 1;
    for (let time = Math.ceil((scene.from - shift) / step) * step + shift; time <= scene.to; time += step) {
      const x = Math.round(this.xOf(time, scene)) + 0.5;
      pen.strokeStyle = this.color("line");
      pen.beginPath();
      pen.moveTo(x, AXIS - 5);
      pen.lineTo(x, high);
      pen.stroke();
      pen.fillStyle = this.color("soft");
      pen.textAlign = "center";
      // Not by the shift: clocks may change within the scene.
      const local = new Date(time * 1000);
      const midnight = !(local.getHours() + local.getMinutes() + local.getSeconds());
      const words = midnight ? day(time) : step < 60 ? `${clock(time)}:${String(Math.round(time % 60)).padStart(2, "0")}` : clock(time);
      if (x < this.gutter + this.width - 18 && x > this.gutter + 12) pen.fillText(words, x, AXIS / 2 - 2);
    }
  }

  drawTrack(track, scene, wide) {
    const { pen } = this;
    pen.fillStyle = this.color("track");
    pen.fillRect(this.gutter, track.y, this.width, track.height);
    pen.fillStyle = this.color("ink");
    pen.textAlign = "left";
    pen.fillText(wide < 600 ? track.place : `GPU ${track.place}`, 2, track.y + track.height / 2, this.gutter - 6);
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, track.y - 2, this.width, track.height + 4);
    pen.clip();
    const marked = [];
    for (const bar of track.bars) {
      if (bar.to < scene.from || bar.from > scene.to) continue;
      this.drawBar(track, bar, scene);
      if (bar === scene.selected || bar === scene.hovered) marked.push(bar);
    }
    for (const bar of marked) this.drawMark(track, bar, scene);
    pen.restore();
  }

  barBox(track, bar, scene) {
    const left = Math.max(this.gutter - 2, this.xOf(bar.from, scene));
    const right = Math.min(this.gutter + this.width + 2, this.xOf(bar.to, scene));
    const high = track.height / track.rows;
    return [left, track.y + bar.row * high, Math.max(MIN_BAR, right - left), high];
  }

  drawBar(track, bar, scene) {
    const { pen } = this;
    const [x, y, wide, high] = this.barBox(track, bar, scene);
    const [fill, edge] = this.fills[colorOf(bar.session)];
    const inset = high > 5 ? 1 : 0;
    const hollow = onlyHeld(bar);
    if (wide <= 4 || high <= 4) {
      pen.fillStyle = edge;
      pen.globalAlpha = hollow ? 0.45 : 1;
      pen.fillRect(x, y + inset, wide, high - 2 * inset);
      pen.globalAlpha = 1;
    } else {
      pen.fillStyle = hollow ? this.color("track") : fill;
      pen.fillRect(x, y + inset, wide, high - 2 * inset);
      pen.strokeStyle = edge;
      pen.setLineDash(hollow ? [3, 2] : []);
      pen.strokeRect(x + 0.5, y + inset + 0.5, wide - 1, high - 2 * inset - 1);
      pen.setLineDash([]);
    }
    if (wide > 46 && high > 12) this.drawLabel(bar, x, y, wide, high);
  }

  drawLabel(bar, x, y, wide, high) {
    const { pen } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x + 2, y, wide - 6, high);
    pen.clip();
    pen.fillStyle = this.color("ink");
    pen.textAlign = "left";
    pen.fillText(plain(ownerName(bar.session), 60), x + 6, y + high / 2 + 0.5);
    pen.restore();
  }

  drawMark(track, bar, scene) {
    const { pen } = this;
    const [x, y, wide, high] = this.barBox(track, bar, scene);
    pen.strokeStyle = this.color("ink");
    pen.lineWidth = 2;
    pen.strokeRect(x, y, wide, high);
    pen.lineWidth = 1;
  }

  drawNow(scene, high) {
    const x = Math.round(this.xOf(scene.now, scene)) + 0.5;
    if (x < this.gutter || x > this.gutter + this.width) return;
    const { pen } = this;
    pen.strokeStyle = this.color("now");
    pen.beginPath();
    pen.moveTo(x, AXIS - 8);
    pen.lineTo(x, high - GAP);
    pen.stroke();
  }

  /** The bar at a point, or up to 4 pixels beside it; null if there is none. */
  barAt(x, y, scene) {
    const track = scene.tracks.find((one) => y >= one.y && y < one.y + one.height);
    if (!track || x < this.gutter) return null;
    let best = null;
    let nearest = 4;
    for (const bar of track.bars) {
      if (bar.to < scene.from || bar.from > scene.to) continue;
      const [left, top, wide, high] = this.barBox(track, bar, scene);
      if (y < top || y >= top + high) continue;
      const distance = x < left ? left - x : x > left + wide ? x - left - wide : 0;
      if (distance < nearest) [best, nearest] = [bar, distance];
    }
    return best;
  }
}
