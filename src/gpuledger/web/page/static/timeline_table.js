// The visible sessions as a table, an alternative to the canvas.
import { syncChildren, createNode, setAttribute, setText } from "./dom.js";
import { bytes, duration, joules, moment, plural } from "./format.js";
import { ownerName, ownerReceipt, place, setName } from "./names.js";

const MOST = 200;

/** Fills the folded table with the newest bars. */
export function fillTable(fold, bars, now) {
  const newest = bars.sort((a, b) => b.from - a.from).slice(0, MOST);
  const more = bars.length - newest.length;
  setText(fold.querySelector("caption"), more ? `The newest ${MOST} of ${plural(bars.length, "session")} in this window` : `${plural(bars.length, "session")} in this window`);
  syncChildren(fold.querySelector("tbody"), newest, (bar) => bar.session.id, () => rowNode(), (node, bar) => fill(node, bar, now));
}

function rowNode() {
  return createNode("tr", {}, createNode("th", { scope: "row", class: "name" }, createNode("a", { class: "name" })), createNode("td", { class: "name" }), ...["", "", "", " number", " number", " number"].map((more) => createNode("td", { class: `cell${more}` })));
}

function fill(node, { session, from, to }, now) {
  const [who, what, device, began, ended, held, memory, energy] = node.children;
  setName(who.firstChild, ownerName(session), 100);
  setAttribute(who.firstChild, "href", ownerReceipt(session));
  setName(what, `${session.command} (${session.pid})`, 80);
  setText(device, place(session));
  setText(began, moment(from, now));
  setText(ended, session.ended === null ? `running, ${duration(to - from)}` : `${moment(to, now)}, ${duration(to - from)}`);
  setText(held, duration(session.held_seconds));
  setText(memory, bytes(session.peak_memory_bytes));
  const bounds = session.high_joules === null || session.low_joules === session.high_joules ? "" : ` (${joules(session.low_joules)} to ${joules(session.high_joules)})`;
  setText(energy, joules(session.joules) + bounds);
}
