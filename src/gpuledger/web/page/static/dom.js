// Creates and updates DOM nodes. Text is only inserted as text, so no name can become markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Creates an element with attributes (undefined and false omit one) and children (nodes or texts). */
export function createNode(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Creates an SVG element. */
export function createSvgNode(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) setAttribute(node, name, value);
  node.append(...children);
  return node;
}

/** Creates one of the symbols defined in index.html, as decoration next to text. */
export function icon(name) {
  return createSvgNode("svg", { class: "icon", "aria-hidden": "true" }, createSvgNode("use", { href: `#i-${name}` }));
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

/** Sets the text of a leaf node only if it differs, to keep the user's selection. */
export function setText(node, text) {
  clearName(node);
  const only = node.firstChild;
  if (only && only === node.lastChild && only.nodeType === Node.TEXT_NODE) {
    if (only.data !== text) only.data = text;
  } else if (only || text) {
    node.textContent = text;
  }
}

/** Removes what `setName` of names.js stored on the node: the name and the title. */
function clearName(node) {
  if (node.named === undefined) return;
  node.named = undefined;
  node.removeAttribute("title");
}

/** Shows or hides a node. */
export function setVisible(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/**
 * Synchronizes the children of `parent` with `items` by key: creates nodes with `makeNode(item)`, fills them
 * with `update(node, item)`, and moves them only when the order has changed.
 */
export function syncChildren(parent, items, keyOf, makeNode, update) {
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
  let scheduled = false;
  return () => {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      work();
    });
  };
}
