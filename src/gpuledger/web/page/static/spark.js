// A sparkline of one quantity over the last hour. Absent values are a gap, not a zero.
import { createNode, createSvgNode, setAttribute, setText } from "./dom.js";
import { bytes, duration, percent, watts } from "./format.js";

const HOUR = 3600;
const WIDTH = 360;
const HEIGHT = 40;

const QUANTITIES = {
  utilization: { field: "utilization_ratio", most: () => 1, write: percent, word: "utilization" },
  power: { field: "power_watts", most: (device) => device.power_limit_watts, write: watts, word: "power" },
  memory: { field: "memory_used_bytes", most: (device) => device.memory_total_bytes, write: bytes, word: "memory" },
};

export function createSparkline() {
  const area = createSvgNode("path", { class: "area" });
  const line = createSvgNode("path", { class: "line" });
  const picture = createSvgNode("svg", { class: "curve", role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" }, area, line);
  const caption = createNode("figcaption", { class: "soft" });
  const node = createNode("figure", { class: "spark" }, picture, caption);
  node.parts = { area, line, picture, caption };
  return node;
}

/** `history` is the device's part of /api/v1/recent, undefined before the first response. */
export function updateSparkline(node, history, quantity, span, device) {
  const { field, most, write, word } = QUANTITIES[quantity];
  const values = history?.[field] ?? [];
  const known = values.filter((value) => value !== null);
  const { area, line, picture, caption } = node.parts;
  setAttribute(node, "data-empty", known.length ? undefined : "");
  if (!known.length) {
    setText(caption, span ? `last hour: ${word} not reported` : "last hour");
    setAttribute(picture, "aria-label", `${word} of the last hour: not reported`);
    setAttribute(area, "d", "");
    setAttribute(line, "d", "");
    return;
  }
  const highest = Math.max(...known);
  const top = most(device) || highest || 1;
  const paths = curve(values, span.step, Math.max(top, highest));
  setAttribute(area, "d", paths.area);
  setAttribute(line, "d", paths.line);
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const length = values.length * span.step;
  const over = length >= HOUR - span.step ? "last hour" : `last ${duration(length)}`;
  setText(caption, `${over}: mean ${write(mean)}, max ${write(highest)}`);
  setAttribute(picture, "aria-label", `${word}, ${caption.textContent}` + (known.length < values.length ? ", with gaps" : ""));
}

/** SVG paths of a curve that ends at the right edge; shorter while the node is younger than an hour. */
function curve(values, step, top) {
  const wide = (WIDTH * step) / HOUR;
  let line = "";
  let area = "";
  let from = null;
  let x = WIDTH - values.length * wide;
  const close = () => {
    if (from !== null) area += `V${HEIGHT}H${from.toFixed(1)}Z`;
    from = null;
  };
  for (const value of values) {
    if (value === null) {
      close();
    } else {
      const y = (HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(1);
      const [a, b] = [x.toFixed(1), (x + wide).toFixed(1)];
      line += from === null ? `M${a} ${y}H${b}` : `V${y}H${b}`;
      area += from === null ? `M${a} ${HEIGHT}V${y}H${b}` : `V${y}H${b}`;
      from ??= x;
    }
    x += wide;
  }
  close();
  return { line, area };
}
