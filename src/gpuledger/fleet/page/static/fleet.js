// Entry point of the fleet's page: connects the data of all nodes with the sections that show it.
import { byId, oncePerFrame, setAttribute, setIcon, setText, setVisible } from "./dom.js";
import { FleetData } from "./fleet_data.js";
import { GROUPING_NAMES, groupGpus, gpusOf, matcher } from "./fleet_filter.js";
import { fillFree, fillHolders, fillNodes, sinceText } from "./fleet_tables.js";
import { DASH, cost, count, duration, fixed, plural } from "./format.js";
import { CellGroups, gpuCount } from "./gpu_cells.js";
import { plain } from "./names.js";
import { ViewState } from "./view.js";

const ICONS = { live: "live", stale: "stale", lost: "lost", connecting: "wait" };
const view = new ViewState({ q: "", group: "node" });
const groups = new CellGroups(byId("groups"));
const input = document.querySelector("#gpus input[type=search]");
const found = document.querySelector("#gpus .found");
const announce = (words) => setText(byId("announcement"), words);
const HOUR = 3.6e9;

const fleet = new FleetData({ changed: oncePerFrame(show), state: showFreshness });
let announced = "connecting";

function show() {
  const nodes = fleet.listed();
  const gpus = gpusOf(nodes);
  tiles(nodes, gpus, fleet.head.week);
  fillFree(gpus);
  fillHolders(gpus, (name) => filterBy(`owner:${name.toLowerCase().split(/\s+/)[0]}`));
  fillNodes(nodes, fleet.head.lists, fleet.now());
  showGroups(nodes, gpus);
  const simulated = nodes.filter((node) => node.simulated).length;
  setVisible(byId("banner"), simulated > 0);
  if (simulated) setText(byId("banner"), `Simulated data: ${plural(simulated, "node")} of ${count(nodes.length)} ${simulated === 1 ? "shows" : "show"} no hardware.`);
  document.body.dataset.ready = "";
}

function showGroups(nodes, gpus) {
  const by = view.oneOf("group", GROUPING_NAMES);
  const matches = matcher(view.get("q"));
  const shown = gpus.filter(matches);
  const filtered = view.get("q").trim() !== "";
  const made = groupGpus(shown, by);
  if (by === "node" && !filtered) addEmptyNodes(made, nodes);
  for (const group of made) if (group.node) group.since = sinceText(group.node, fleet.now());
  groups.fill(made, by !== "node");
  setText(found, `${filtered ? `${count(shown.length)} of ` : ""}${gpuCount(gpus.length)}`);
  setVisible(byId("no-gpus"), made.length === 0);
  setText(byId("no-gpus"), filtered ? "No GPU matches the filter." : nodes.length ? "No node has shown a GPU yet." : "There are no nodes in the lists.");
}

/** A node without cells has a row as well: one that was never read, or has no GPU. */
function addEmptyNodes(made, nodes) {
  const known = new Map(made.map((group) => [group.key, group]));
  made.splice(0, made.length, ...nodes.map((node) => known.get(node.key) ?? { key: node.key, name: node.name, page: node.page, node, gpus: [] }).filter((group) => group.gpus.length || !group.node.up));
}

function tile(name, value, detail) {
  setText(byId(`tile-${name}`), value);
  setText(byId(`tile-${name}-detail`), detail);
}

function tiles(nodes, gpus, week) {
  const number = (test) => gpus.filter(test).length;
  const free = number((gpu) => gpu.free_now);
  const taken = number((gpu) => gpu.state === "free") - free;
  const states = { held: number((gpu) => gpu.state === "held"), active: number((gpu) => gpu.state === "active"), down: number((gpu) => gpu.state === "down"), unknown: number((gpu) => gpu.state === "unknown") };
  tile("free", count(free), `of ${gpuCount(gpus.length)} on ${plural(nodes.length, "node")}${taken ? `; ${count(taken)} more unused, but reserved or not available` : ""}`);
  tile("held", count(states.held), "allocated or with a process, no engine active");
  tile("active", count(states.active), "an engine is active");
  for (const [name, value] of [["free", free], ["held", states.held], ["active", states.active]]) {
    setAttribute(byId(`tile-${name}`).closest(".tile"), "data-none", value ? undefined : "");
  }
  const other = states.down + states.unknown;
  setVisible(byId("tile-other").closest(".tile"), other > 0);
  tile("other", count(other), `${count(states.down)} down, ${count(states.unknown)} unknown`);
  const gone = nodes.filter((node) => !node.up);
  setVisible(byId("tile-problems").closest(".tile"), gone.length > 0);
  tile("problems", count(gone.length), gone.slice(0, 4).map((node) => plain(node.name, 40)).join(", ") + (gone.length > 4 ? ` and ${count(gone.length - 4)} more` : ""));
  weekTiles(week, nodes.length);
}

/** What idle GPUs cost this week: a cost where there are prices, else hours. */
function weekTiles(week, all) {
  const hours = (value) => `${fixed(value, value < 100 ? 1 : 0)}\u00a0GPU-hours`;
  const partly = week.nodes < all ? `, ${count(week.nodes)} of ${plural(all, "node")}` : "";
  const notes = (week.notes ?? []).map((note) => `. ${plain(note, 200)}`).join("");
  const fill = (name, known, value, price, words) => {
    if (!known) tile(name, DASH, week.missing.length ? plain(week.missing[0].reason, 120) : "not read yet");
    else tile(name, price === null ? hours(value) : cost(Number(price), week.currency, 1), `${price === null ? "" : `${hours(value)}, `}${words}${partly}${notes}`);
  };
  const known = week.idle_gpu_microseconds !== null;
  fill("week", known, (week.idle_gpu_microseconds ?? 0) / HOUR, week.idle_cost, "nobody had the GPU");
  fill("heldweek", known, (week.held_gpu_seconds ?? 0) / 3600, week.held_cost, "somebody had the GPU without using it");
}

function showFreshness(fresh) {
  const node = byId("fresh");
  setAttribute(node, "data-state", fresh.name);
  setAttribute(document.body, "data-fresh", fresh.name);
  setIcon(node.querySelector("svg"), ICONS[fresh.name]);
  const age = fresh.age === null ? "" : `; data of ${duration(fresh.age)} ago`;
  setText(byId("fresh-text"), { live: "live", stale: `stale since ${duration(fresh.age ?? 0)}`, lost: `disconnected, retrying${age}`, connecting: "connecting\u2026" }[fresh.name]);
  setAttribute(node, "title", fresh.words && plain(fresh.words, 300));
  if (fresh.name !== announced) {
    const first = announced === "connecting";
    announced = fresh.name;
    announce({ live: first ? "" : "Live again.", stale: "The data is stale.", lost: "Disconnected, retrying." }[fresh.name] ?? "");
  }
}

function filterBy(text) {
  input.value = text;
  view.change({ q: text });
  if (fleet.head) show();
  goTo("gpus");
}

function goTo(id) {
  const section = byId(id);
  section.scrollIntoView();
  section.querySelector("h2").focus({ preventScroll: true });
}

input.value = view.get("q");
input.addEventListener("input", () => {
  view.change({ q: input.value });
  if (fleet.head) show();
});
for (const button of document.querySelectorAll("[data-group]")) {
  button.addEventListener("click", () => {
    view.change({ group: button.dataset.group });
    press();
  });
}

function press() {
  const chosen = view.oneOf("group", GROUPING_NAMES);
  for (const button of document.querySelectorAll("[data-group]")) setAttribute(button, "aria-pressed", String(button.dataset.group === chosen));
  if (fleet.head) show();
}

view.onChange(() => {
  input.value = view.get("q");
  press();
});
for (const link of document.querySelectorAll("a[data-go]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    goTo(link.dataset.go);
  });
}
press();
fleet.start();
