// What is wrong with a GPU and what to do: on its card, in the tile of problems, and the list of the last Xids.
import { byId, createNode, icon, setAttribute, setIcon, setText, setVisible, syncChildren } from "./dom.js";
import { duration, moment, percent, plural } from "./format.js";
import { place, setName } from "./names.js";

const ICONS = { failure: "failure", warning: "warning", info: "live" };

/** The worst level that needs somebody, or undefined: an `info` is only shown. The worst problem is the first. */
const worstOf = (device) => device.problems.map((one) => one.level).find((level) => level !== "info");

export const createProblems = () => createNode("ul", { class: "problems", "aria-label": "Problems" });

/** Fills the list of a card, and marks the card with its worst level. */
export function fillProblems(card, list, device, now) {
  setAttribute(card, "data-worst", worstOf(device));
  setVisible(list, device.problems.length > 0);
  syncChildren(list, device.problems, (one) => `${one.kind} ${one.label}`, problemNode, (node, one) => {
    setAttribute(node, "data-level", one.level);
    setIcon(node.parts.icon, ICONS[one.level]);
    const texts = { label: one.label, summary: `${sentence(one)}.`, when: whenText(one, device, now), remedy: `${one.remedy}.` };
    for (const [name, text] of Object.entries(texts)) setName(node.parts[name], text, 500);
  });
}

/** The label of an Xid has its number already. */
const sentence = (one) => (one.kind === "xid" ? one.summary.replace(/^reported Xid \d+: /, "") : `The GPU ${one.summary}`);

function problemNode() {
  const parts = { icon: icon("warning"), label: createNode("strong"), when: createNode("span"), summary: createNode("p"), remedy: createNode("p") };
  const node = createNode("li", {}, parts.icon, createNode("div", {}, createNode("p", {}, parts.label, " ", parts.when), parts.summary, parts.remedy));
  node.parts = parts;
  return node;
}

/** When it happened or began, the only process then, and its share of the last hour, or of the shorter time watched. */
function whenText(one, device, now) {
  const words = one.since ? [one.kind === "xid" ? happened(one, one.since, now, "at ") : `since ${moment(one.since, now)}`] : [];
  const xid = one.kind === "xid" && device.xids.find((row) => row.unix === one.since && `Xid ${row.xid}` === one.label);
  if (xid && xid.pid !== null) words.push(`while ${xid.command || "a process"} (pid ${xid.pid}) was on it`);
  if (one.ratio !== null) words.push(`${percent(one.ratio)} of the last ${one.observed_seconds >= 3540 ? "hour" : duration(one.observed_seconds)}`);
  return words.join(", ");
}

const happened = (one, unix, now, at = "") => `${one.count > 1 ? `${plural(one.count, "time")}, last ` : ""}${at}${moment(unix, now)}`;

/** The tile is visible while a device has a problem. New problems are announced. */
export class ProblemSummary {
  snapshot(data, announce) {
    const found = data.devices.filter(worstOf);
    const names = (up) => found.filter((device) => device.up === up).map(place).join(", ");
    const words = [names(false) && `GPU ${names(false)} down`, names(true) && `GPU ${names(true)} degraded`];
    setVisible(byId("tile-problems").closest(".tile"), found.length > 0);
    setText(byId("tile-problems"), String(found.length));
    setText(byId("tile-problems-detail"), words.filter(Boolean).join("; "));
    const labels = found.map((device) => `GPU ${place(device)}: ${device.problems[0].label}`);
    const fresh = labels.filter((label) => this.known && !this.known.includes(label));
    if (fresh.length) announce(`New problem. ${fresh.join(", ")}`);
    this.known = labels;
    showXids(data);
  }
}

function showXids(data) {
  const rows = data.devices.flatMap((device) => device.xids.map((one) => ({ ...one, gpu: place(device) }))).sort((a, b) => b.unix - a.unix);
  setVisible(byId("xids"), rows.length > 0);
  syncChildren(byId("xids").querySelector("tbody"), rows, (one) => `${one.gpu} ${one.xid} ${one.unix}`, xidNode, (node, one) => {
    const process = [one.command, one.pid !== null && `pid ${one.pid}`, one.instance && `instance ${one.instance}`].filter(Boolean).join(", ");
    const texts = [happened(one, one.unix, data.unix), one.gpu, `${one.xid}: ${one.meaning}`, process, one.advice];
    texts.forEach((text, at) => setName(node.children[at], text, 400));
  });
}

const xidNode = () => createNode("tr", {}, createNode("th", { scope: "row" }), ...Array.from({ length: 4 }, () => createNode("td")));
