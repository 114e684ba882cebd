// One card per GPU with its MIG instances: state, meters, owners, and a sparkline of the last hour.
import { byId, icon, syncChildren, createNode, setAttribute, setIcon, setText, setVisible } from "./dom.js";
import { NOT_REPORTED, bytesOf, celsius, count, duration, percent, plural, wattsOf } from "./format.js";
import { ownerParts, ownerReceipt, place, plain, setName } from "./names.js";
import { createProblems, fillProblems } from "./problems.js";
import { createSparkline, updateSparkline } from "./spark.js";
import { stateOf } from "./summary.js";

const STATE_TEXTS = { active: "active", held: "held", idle: "idle", unknown: "unknown", down: "down" };
const HOUR = "unused in the last hour";
const OWNERS_SHOWN = 2;

const share = (part, whole) => (part === null || !whole ? null : Math.min(1, part / whole));

const METERS = [
  ["Utilization", (d) => percent(d.utilization_ratio, NOT_REPORTED), (d) => d.utilization_ratio],
  ["Memory", (d) => d.memory_shared_with ? `shared with ${d.memory_shared_with}` : bytesOf(d.memory_used_bytes, d.memory_total_bytes), (d) => share(d.memory_used_bytes, d.memory_total_bytes)],
  ["Power", (d) => wattsOf(d.power_watts, d.power_limit_watts), (d) => share(d.power_watts, d.power_limit_watts)],
  ["Temperature", (d) => celsius(d.temperature_celsius, NOT_REPORTED), (d) => share(d.temperature_celsius, 100)],
];
const INSTANCE_METERS = METERS.slice(0, 2);

/** The list of cards. `filter(text)` filters the table of processes. */
export class GpuCards {
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
    setVisible(byId("no-gpus"), gpus.length === 0);
    if (gpus.length === 0) setName(byId("no-gpus"), emptyText(data), 400);
    setVisible(byId("some-gpus"), gpus.length > 0 && !data.devices_complete);
    syncChildren(this.list, gpus, (gpu) => gpu.uuid, () => this.card(), (node, gpu) => this.fill(node, gpu, parts.get(gpu.gpu) ?? []));
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
      name: createNode("span", { class: "name" }),
      title: createNode("span"),
      body: body(METERS),
      problems: createProblems(),
      instances: createNode("ul", { class: "instances" }),
    };
    parts.state = parts.body.state;
    const node = createNode(
      "li",
      { class: "card" },
      createNode("div", { class: "head" }, createNode("h3", {}, parts.title, " ", parts.name), parts.state),
      parts.problems,
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
    fillProblems(node, parts.problems, gpu, this.data.unix);
    this.fillBody(node, parts.body, gpu, METERS, instances.length > 0);
    setVisible(parts.instances, instances.length > 0);
    syncChildren(parts.instances, instances, (one) => one.uuid + one.instance, instanceNode, (item, one) => {
      setText(item.parts.title, place(one));
      setName(item.parts.name, one.profile);
      this.fillBody(item, item.parts.body, one, INSTANCE_METERS, false);
    });
  }

  fillBody(node, parts, device, meters, partitioned) {
    const state = stateOf(device);
    setAttribute(node, "data-state", state ?? "partitioned");
    setVisible(parts.state, state !== null);
    if (state) {
      setIcon(parts.state.firstChild, state);
      setText(parts.state.lastChild, STATE_TEXTS[state]);
    }
    // The problems of a GPU that is down say why.
    setVisible(parts.who, !partitioned && (device.up || device.instance !== ""));
    if (!partitioned) this.fillWho(parts, device, state);
    setVisible(parts.meters, device.up);
    meters.forEach(([, write, ratio], place) => fillMeter(parts.each[place], write(device), ratio(device)));
    updateSparkline(parts.spark, this.history.get(device.uuid + device.instance), this.quantity, this.span, device);
  }

  fillWho(parts, device, state) {
    const owners = device.owners.filter((owner) => owner.present);
    const lines = state === "down" ? [] : owners.slice(0, state === "held" ? 1 : OWNERS_SHOWN);
    syncChildren(parts.owners, lines, ownerKey, ownerNode, (item, owner) => {
      const { within, name } = ownerParts(owner);
      setName(item.parts.within, within, 80);
      setName(item.parts.name, name, 80);
      setAttribute(item.parts.name, "href", ownerReceipt(owner));
      setText(item.parts.detail, this.ownerDetail(owner, device, state));
      setVisible(item.parts.detail, item.parts.detail.textContent !== "");
    });
    const more = owners.length - lines.length;
    setVisible(parts.more, state !== "down" && more > 0);
    setText(parts.more, `of ${count(owners.length)} owners`);
    setText(parts.note, this.note(device, state, owners));
    setVisible(parts.note, parts.note.textContent !== "");
    setVisible(parts.count, Boolean(device.processes));
    setText(parts.count, plural(device.processes ?? 0, "process", "processes"));
    parts.count.onclick = () => this.filter(`gpu:${place(device)}`);
    setAttribute(parts.count, "aria-label", `${plural(device.processes ?? 0, "process", "processes")} of GPU ${place(device)}: show them in the table`);
  }

  note(device, state, owners) {
    if (state === "down") return "The GPU is down.";
    if (state === "idle" && device.reserved_by) return `Reserved by ${plain(device.reserved_by, 80)}: no process yet.`;
    if (state === "idle") return "Free: neither allocated nor used by a process.";
    if (device.processes === null) return "Its processes could not be listed.";
    if (!owners.length) return state === "held" ? "Held by an unknown owner." : state === "active" ? "Active for an unknown owner." : "";
    return state === "unknown" ? "The driver does not report whether it is active." : "";
  }

  ownerDetail(owner, device, state) {
    if (state !== "held") return owner.processes === 0 ? "no process here" : "";
    const idle = this.idleText(device);
    const words = [owner.processes === 0 ? "no process" : "not using it"];
    if (idle && idle !== HOUR) words.push(idle);
    else if (owner.held_seconds >= 60) words.push(`${duration(owner.held_seconds)} unused so far`);
    return words.map((word) => word.replaceAll(" ", "\u00a0")).join(", ");
  }

  /** How long the device has been without activity, within the last hour. */
  idleText(device) {
    const values = this.history.get(device.uuid + device.instance)?.utilization_ratio;
    if (!values?.length) return "";
    let place = values.length;
    while (place > 0 && values[place - 1] === 0) place -= 1;
    const seconds = (values.length - place) * this.span.step;
    if (seconds < 60) return "";
    return place === 0 && seconds >= 3500 ? HOUR : `unused for ${duration(seconds)}`;
  }
}

/** Instances by the index of their GPU. */
function byGpu(instances) {
  const groups = new Map();
  for (const one of instances) groups.set(one.gpu, [...(groups.get(one.gpu) ?? []), one]);
  return groups;
}

function emptyText(data) {
  if (!data.status.readings) return `No GPU is shown because nothing could be read: ${data.status.text}`;
  return data.devices_complete ? "This machine has no GPU." : "The GPUs could not be listed.";
}

const ownerKey = (owner) => [owner.owner_kind, owner.namespace, owner.pod, owner.container, owner.user, owner.job].join("\n");

function ownerNode() {
  const parts = { within: createNode("span", { class: "within name" }), name: createNode("a", { class: "owner name" }), detail: createNode("span", { class: "doing soft" }) };
  const node = createNode("li", {}, createNode("span", { class: "party" }, parts.within, parts.name), parts.detail);
  node.parts = parts;
  return node;
}

function body(meters) {
  const parts = {
    state: createNode("span", { class: "state" }, icon("unknown"), createNode("span")),
    owners: createNode("ul", { class: "owners" }),
    more: createNode("span", { class: "soft" }),
    note: createNode("p", { class: "note" }),
    count: createNode("button", { type: "button", class: "link" }),
    spark: createSparkline(),
    each: meters.map(([label]) => meter(label)),
  };
  parts.who = createNode("div", { class: "who" }, parts.owners, parts.note, createNode("div", { class: "rest" }, parts.count, parts.more));
  parts.meters = createNode("dl", { class: "meters" }, ...parts.each.map((one) => one.node));
  parts.nodes = [parts.who, parts.meters, parts.spark];
  return parts;
}

function instanceNode() {
  const parts = { name: createNode("span", { class: "name" }), title: createNode("span"), body: body(INSTANCE_METERS) };
  const head = createNode("div", { class: "head" }, createNode("h4", {}, parts.title, " ", parts.name), parts.body.state);
  const node = createNode("li", { class: "instance" }, head, ...parts.body.nodes);
  node.parts = parts;
  return node;
}

function meter(label) {
  const value = createNode("dd");
  const fill = createNode("div", { class: "fill" });
  const bar = createNode("dd", { class: "bar", "aria-hidden": "true" }, fill);
  return { node: createNode("div", { class: "meter" }, createNode("dt", {}, label), value, bar), value, fill, bar };
}

function fillMeter({ value, fill, bar }, text, ratio) {
  setText(value, text);
  setAttribute(value, "class", text === NOT_REPORTED ? "absent" : undefined);
  setAttribute(bar, "data-absent", ratio === null ? "" : undefined);
  const scale = `scaleX(${(ratio ?? 0).toFixed(3)})`;
  if (fill.style.transform !== scale) fill.style.transform = scale;
}
