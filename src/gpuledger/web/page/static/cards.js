// One card per GPU, its MIG instances inside: state, load, who is there, the last hour.
import { byId, icon, keep, make, setAttribute, setIcon, setText, show } from "./dom.js";
import { NOT_TOLD, bytesOf, celsius, count, duration, percent, plural, wattsOf } from "./format.js";
import { ownerParts, place, setName } from "./names.js";
import { spark, updateSpark } from "./spark.js";
import { stateOf } from "./summary.js";

const WORDS = { active: "active", held: "held", idle: "idle", unknown: "unknown", down: "not answering" };
const HOUR = "no work in the last hour";
const OWNERS_SHOWN = 2;

const share = (part, whole) => (part === null || !whole ? null : Math.min(1, part / whole));

const METERS = [
  ["Utilization", (d) => percent(d.utilization_ratio, NOT_TOLD), (d) => d.utilization_ratio],
  ["Memory", (d) => bytesOf(d.memory_used_bytes, d.memory_total_bytes), (d) => share(d.memory_used_bytes, d.memory_total_bytes)],
  ["Power", (d) => wattsOf(d.power_watts, d.power_limit_watts), (d) => share(d.power_watts, d.power_limit_watts)],
  ["Temperature", (d) => celsius(d.temperature_celsius, NOT_TOLD), (d) => share(d.temperature_celsius, 100)],
];
const OF_INSTANCE = METERS.slice(0, 2);

/** The list of cards. `filter(text)` shows the processes of one device. */
export class Cards {
  constructor(list, filter) {
    this.list = list;
    this.filter = filter;
    this.history = new Map();
    this.quantity = "utilization";
  }

  snapshot(data) {
    const gpus = data.devices.filter((device) => !device.instance);
    const parts = byGpu(data.devices.filter((device) => device.instance));
    this.data = data;
    show(byId("no-gpus"), gpus.length === 0);
    if (gpus.length === 0) setName(byId("no-gpus"), nothing(data), 400);
    show(byId("some-gpus"), gpus.length > 0 && !data.devices_complete);
    keep(this.list, gpus, (gpu) => gpu.uuid, () => this.card(), (node, gpu) => this.fill(node, gpu, parts.get(gpu.gpu) ?? []));
  }

  recent(answer) {
    this.history = new Map(answer.devices.map((device) => [device.uuid + device.instance, device]));
    this.span = { step: answer.step_seconds, until: answer.until };
    if (this.data) this.snapshot(this.data);
  }

  choose(quantity) {
    this.quantity = quantity;
    if (this.data) this.snapshot(this.data);
  }

  card() {
    const parts = {
      name: make("span", { class: "name" }),
      title: make("span"),
      body: body(METERS),
      instances: make("ul", { class: "instances" }),
    };
    parts.state = parts.body.state;
    const node = make(
      "li",
      { class: "card" },
      make("div", { class: "head" }, make("h3", {}, parts.title, " ", parts.name), parts.state),
      ...parts.body.nodes,
      parts.instances,
    );
    node.parts = parts;
    return node;
  }

  fill(node, gpu, instances) {
    const { parts } = node;
    setText(parts.title, `GPU ${gpu.gpu}`);
    setName(parts.name, gpu.name.replace(/^NVIDIA /, "") || gpu.uuid);
    setAttribute(node, "data-mig", instances.length ? "" : undefined);
    setAttribute(node, "data-uuid", gpu.uuid);
    this.fillBody(node, parts.body, gpu, METERS, instances.length > 0);
    show(parts.instances, instances.length > 0);
    keep(parts.instances, instances, (one) => one.uuid + one.instance, instanceNode, (item, one) => {
      setText(item.parts.title, place(one));
      setName(item.parts.name, one.profile);
      this.fillBody(item, item.parts.body, one, OF_INSTANCE, false);
    });
  }

  fillBody(node, parts, device, meters, cut) {
    const state = stateOf(device);
    setAttribute(node, "data-state", state ?? "cut");
    show(parts.state, state !== null);
    if (state) {
      setIcon(parts.state.firstChild, state);
      setText(parts.state.lastChild, WORDS[state]);
    }
    show(parts.who, !cut);
    if (!cut) this.fillWho(parts, device, state);
    show(parts.meters, device.up);
    meters.forEach(([, write, ratio], place) => fillMeter(parts.each[place], write(device), ratio(device)));
    updateSpark(parts.spark, this.history.get(device.uuid + device.instance), this.quantity, this.span, device);
  }

  fillWho(parts, device, state) {
    const owners = device.owners.filter((owner) => owner.present);
    const lines = state === "down" ? [] : owners.slice(0, state === "held" ? 1 : OWNERS_SHOWN);
    keep(parts.owners, lines, ownerKey, ownerNode, (item, owner) => {
      const { within, name } = ownerParts(owner);
      setName(item.parts.within, within, 80);
      setName(item.parts.name, name, 80);
      setText(item.parts.detail, this.ownerDetail(owner, device, state));
      show(item.parts.detail, item.parts.detail.textContent !== "");
    });
    const more = owners.length - lines.length;
    show(parts.more, state !== "down" && more > 0);
    setText(parts.more, `of ${count(owners.length)} owners`);
    setText(parts.note, this.note(device, state, owners));
    show(parts.note, parts.note.textContent !== "");
    show(parts.count, Boolean(device.processes));
    setText(parts.count, plural(device.processes ?? 0, "process", "processes"));
    parts.count.onclick = () => this.filter(`gpu:${place(device)}`);
    setAttribute(parts.count, "aria-label", `${plural(device.processes ?? 0, "process", "processes")} of GPU ${place(device)}: show them in the table`);
  }

  note(device, state, owners) {
    if (state === "down") return "The GPU does not answer; nothing is known of it now.";
    if (state === "idle") return "Free: nobody holds it.";
    if (device.processes === null) return "Its processes could not be listed.";
    if (!owners.length) return state === "held" ? "Held, by whom is not known." : state === "active" ? "At work, for whom is not known." : "";
    return state === "unknown" ? "Whether it works is not told." : "";
  }

  ownerDetail(owner, device, state) {
    if (state !== "held") return owner.processes === 0 ? "runs nothing here" : "";
    const quiet = this.quiet(device);
    const words = [owner.processes === 0 ? "runs nothing" : "does not use it"];
    if (quiet && quiet !== HOUR) words.push(quiet);
    else if (owner.held_seconds >= 60) words.push(`${duration(owner.held_seconds)} unused so far`);
    return words.map((word) => word.replaceAll(" ", "\u00a0")).join(", ");
  }

  /** How long the device has shown no work, as far as the last hour tells. */
  quiet(device) {
    const values = this.history.get(device.uuid + device.instance)?.utilization_ratio;
    if (!values?.length) return "";
    let place = values.length;
    while (place > 0 && values[place - 1] === 0) place -= 1;
    const seconds = (values.length - place) * this.span.step;
    if (seconds < 60) return "";
    return place === 0 && seconds >= 3500 ? HOUR : `no work for ${duration(seconds)}`;
  }
}

/** Instances by the index of their GPU. */
function byGpu(instances) {
  const groups = new Map();
  for (const one of instances) groups.set(one.gpu, [...(groups.get(one.gpu) ?? []), one]);
  return groups;
}

function nothing(data) {
  if (!data.status.readings) return `No GPU is shown because nothing could be read: ${data.status.text}`;
  return data.devices_complete ? "This machine has no GPU." : "The GPUs could not be listed.";
}

const ownerKey = (owner) => [owner.owner_kind, owner.namespace, owner.pod, owner.container, owner.user, owner.job].join("\n");

function ownerNode() {
  const parts = { within: make("span", { class: "within name" }), name: make("span", { class: "owner name" }), detail: make("span", { class: "doing soft" }) };
  const node = make("li", {}, make("span", { class: "party" }, parts.within, parts.name), parts.detail);
  node.parts = parts;
  return node;
}

function body(meters) {
  const parts = {
    state: make("span", { class: "state" }, icon("unknown"), make("span")),
    owners: make("ul", { class: "owners" }),
    more: make("span", { class: "soft" }),
    note: make("p", { class: "note" }),
    count: make("button", { type: "button", class: "link" }),
    spark: spark(),
    each: meters.map(([label]) => meter(label)),
  };
  parts.who = make("div", { class: "who" }, parts.owners, parts.note, make("div", { class: "rest" }, parts.count, parts.more));
  parts.meters = make("dl", { class: "meters" }, ...parts.each.map((one) => one.node));
  parts.nodes = [parts.who, parts.meters, parts.spark];
  return parts;
}

function instanceNode() {
  const parts = { name: make("span", { class: "name" }), title: make("span"), body: body(OF_INSTANCE) };
  const head = make("div", { class: "head" }, make("h4", {}, parts.title, " ", parts.name), parts.body.state);
  const node = make("li", { class: "instance" }, head, ...parts.body.nodes);
  node.parts = parts;
  return node;
}

function meter(label) {
  const value = make("dd");
  const fill = make("div", { class: "fill" });
  const bar = make("dd", { class: "bar", "aria-hidden": "true" }, fill);
  return { node: make("div", { class: "meter" }, make("dt", {}, label), value, bar), value, fill, bar };
}

function fillMeter({ value, fill, bar }, text, ratio) {
  setText(value, text);
  setAttribute(value, "class", text === NOT_TOLD ? "absent" : undefined);
  setAttribute(bar, "data-absent", ratio === null ? "" : undefined);
  const scale = `scaleX(${(ratio ?? 0).toFixed(3)})`;
  if (fill.style.transform !== scale) fill.style.transform = scale;
}
