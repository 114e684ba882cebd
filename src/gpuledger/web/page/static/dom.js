// Making and changing nodes. Text goes in as text alone: no name can become markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with attributes (undefined and false leave one out) and children (nodes or texts). */
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function makeSvg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) setAttribute(node, name, value);
  node.append(...children);
  return node;
}

/** One of the symbols at the head of index.html, as decoration: words stand beside it. */
export function icon(name) {
  return makeSvg("svg", { class: "icon", "aria-hidden": "true" }, makeSvg("use", { href: `#i-${name}` }));
}

export function setIcon(svg, name) {
  setAttribute(svg.firstChild, "href", `#i-${name}`);
}

export function setAttribute(node, name, value) {
  if (value === undefined || value === null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, value);
  }
}

/** The text of a leaf, changed only where it differs, so that what a reader has selected stays selected. */
export function setText(node, text) {
  forget(node);
  const only = node.firstChild;
  if (only && only === node.lastChild && only.nodeType === Node.TEXT_NODE) {
    if (only.data !== text) only.data = text;
  } else if (only || text) {
    node.textContent = text;
  }
}

/** What `names.js` keeps of a name that stood here: other words have neither its title nor its place. */
function forget(node) {
  if (node.named === undefined) return;
  node.named = undefined;
  node.removeAttribute("title");
}

/** Whether a node is shown at all. */
export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/**
 * Children of `parent` by key: made once, updated after, moved only where the order changed. `make` gives the
 * node for an item, `update(node, item)` fills it.
 */
export function keep(parent, items, keyOf, makeNode, update) {
  const known = (parent.kept ??= new Map());
  const now = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (now.has(key)) continue;
    const node = known.get(key) ?? makeNode(item);
    known.delete(key);
    now.set(key, node);
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  for (const gone of known.values()) gone.remove();
  parent.kept = now;
}

/** Runs `work` at most once per frame, however often it is called. */
export function oncePerFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}
