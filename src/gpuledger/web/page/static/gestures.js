// Mouse, pen and touch gestures on a canvas that can be panned and zoomed horizontally.

const TAP_DISTANCE = 6;

/**
 * Calls `pan(pixels)`, `zoom(factor, x)`, `hover(x, y)` (with nulls when the pointer leaves) and `tap(x, y)`.
 * A vertical wheel without Ctrl scrolls the page.
 */
export function trackGestures(target, { pan, zoom, hover, tap }) {
  const down = new Map();
  let moved = 0;
  const at = (event) => {
    const box = target.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const spread = () => {
    const [a, b] = [...down.values()];
    return Math.max(10, Math.abs(a - b));
  };

  target.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (down.size === 0) moved = 0;
    down.set(event.pointerId, at(event)[0]);
    target.setPointerCapture(event.pointerId);
  });
  target.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (!down.has(event.pointerId)) {
      hover(x, y);
      return;
    }
    const before = down.get(event.pointerId);
    const wide = down.size === 2 ? spread() : 0;
    down.set(event.pointerId, x);
    moved += Math.abs(x - before);
    if (down.size === 2) {
      const [a, b] = [...down.values()];
      zoom(wide / spread(), (a + b) / 2);
    } else if (moved > TAP_DISTANCE) {
      pan(x - before);
    }
  });
  const up = (event) => {
    const held = down.delete(event.pointerId);
    if (held && event.type === "pointerup" && moved <= TAP_DISTANCE && down.size === 0) tap(...at(event));
  };
  target.addEventListener("pointerup", up);
  target.addEventListener("pointercancel", up);
  target.addEventListener("pointerleave", () => hover(null, null));
  target.addEventListener(
    "wheel",
    (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 300), at(event)[0]);
      else if (sideways) pan(-(event.deltaX || event.deltaY));
      else return;
      event.preventDefault();
    },
    { passive: false },
  );
}
