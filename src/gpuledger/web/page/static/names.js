// Shows names of processes, pods and users, which may be hostile: invisible characters are made visible.
import { createNode, setText } from "./dom.js";

// Controls, bidirectional overrides, zero-width and other format characters, surrogates without a partner,
// private use, line separators, blank letters.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0]/u;
const EACH = new RegExp(UNSEEN.source, "gu");
const KNOWN = { 9: "TAB", 10: "LF", 13: "CR", 27: "ESC", 0: "NUL" };
const LONGEST = 160;

const code = (character) => KNOWN[character.codePointAt(0)] ?? `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** A name as one line of plain text, for titles and labels. */
export function plain(name, longest = LONGEST) {
  const text = UNSEEN.test(name) ? name.slice(0, longest + 1).replace(EACH, (found) => `[${code(found)}]`) : name;
  return text.length <= longest ? text : `${cut(text, longest)}\u2026`;
}

/** Fills `node` with a name: invisible characters as boxed codes, truncated to `longest` characters. */
export function setName(node, name, longest = LONGEST) {
  if (node.named === name) return;
  const short = name.length > longest ? cut(name, longest) : name;
  const rest = name.length - short.length;
  if (!rest && !UNSEEN.test(short)) {
    setText(node, short);
  } else {
    node.replaceChildren(...boxed(short));
    if (rest) node.append(createNode("span", { class: "cut" }, `\u2026 ${rest.toLocaleString("en")} more characters`));
  }
  node.named = name;
  node.title = plain(name, 400);
}

function boxed(text) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(EACH)) {
    if (found.index > from) nodes.push(text.slice(from, found.index));
    nodes.push(createNode("span", { class: "code" }, code(found[0])));
    from = found.index + found[0].length;
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

/** Truncates without splitting a surrogate pair. */
function cut(text, longest) {
  const last = text.charCodeAt(longest - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? longest - 1 : longest);
}

/** The most specific name of an owner: pod, job, container or user. */
export function ownerName(owner) {
  if (owner.pod) return owner.namespace ? `${owner.namespace}/${owner.pod}` : owner.pod;
  if (owner.job) return owner.user ? `job ${owner.job} (${owner.user})` : `job ${owner.job}`;
  if (owner.container) return owner.container;
  if (owner.user) return owner.user;
  return owner.namespace ? `${owner.namespace}/?` : "unknown owner";
}

/** The name of an owner, split into its namespace and the rest: a narrow card shortens only the namespace. */
export function ownerParts(owner) {
  const name = ownerName(owner);
  const cutAt = owner.pod && owner.namespace ? owner.namespace.length + 1 : 0;
  return { within: name.slice(0, cutAt), name: name.slice(cutAt) };
}

/** The short name of a device: 4, or 6/2_0 for an instance. */
export const place = (device) => (device.instance ? `${device.gpu}/${device.instance}` : device.gpu);

/** A sort key for device names: by number, a GPU before its instances. */
export function placeOrder(name) {
  const numbers = name.split(/\D+/).map((part) => Number(part) + 1);
  return numbers.reduce((order, part) => order * 1000 + part, 0) * 1000 ** (3 - numbers.length);
}

const RECEIPT_NAMES = {
  pod: (owner) => owner.pod && ["pod", `${owner.namespace}/${owner.pod}`],
  slurm: (owner) => owner.job && ["job", owner.job],
  job: (owner) => owner.job && ["job", owner.job],
  container: (owner) => owner.container && ["container", owner.container],
  user: (owner) => owner.user && ["user", owner.user],
};

/** The URL of the receipt of a KIND and a name of several parts. */
export const receiptUrl = (kind, name) => `receipt/${kind}:${name.split("/").map(encodeURIComponent).join("/")}`;

/** The URL of the receipt of an owner; undefined if it has no name. */
export function ownerReceipt(owner) {
  const found = RECEIPT_NAMES[owner.owner_kind]?.(owner);
  return found ? receiptUrl(...found) : undefined;
}
