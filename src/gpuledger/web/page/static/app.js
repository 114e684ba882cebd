// Entry point: connects the data of the node with the sections that show it.
import { GpuCards } from "./cards.js";
import { byId, createNode, setText, setVisible } from "./dom.js";
import { EnergyTable } from "./energy.js";
import { Header } from "./header.js";
import { HealthPanel } from "./health.js";
import { LiveConnection, fetchJson } from "./live.js";
import { ProcessGrid } from "./processes.js";
import { ProblemSummary } from "./problems.js";
import { PERIOD_NAMES, fetchReport, refreshSeconds } from "./report.js";
import { SessionStore } from "./sessions.js";
import { energyTiles, noEnergyTiles, snapshotTiles } from "./summary.js";
import { Timeline } from "./timeline.js";
import { ViewState } from "./view.js";

const announce = (words) => setText(byId("announcement"), words);
const QUANTITIES = ["utilization", "power", "memory"];

const view = new ViewState();
const header = new Header();
const processes = new ProcessGrid(byId("processes"), view, announce);
const cards = new GpuCards(byId("cards"), (text) => {
  processes.filter(text);
  goToSection("processes");
});
const timeline = new Timeline(byId("sessions"), view, announce);
const sessions = new SessionStore(() => timeline.sessions(sessions));
const energy = new EnergyTable(byId("energy"), (by) => {
  view.change({ by });
  expectReport();
});
const health = new HealthPanel(byId("health"));
const problems = new ProblemSummary();

const live = new LiveConnection({
  snapshot(data) {
    const now = live.now();
    header.snapshot(data);
    snapshotTiles(data);
    problems.snapshot(data, announce);
    cards.snapshot(data);
    processes.snapshot(data, now);
    timeline.snapshot(data, now);
    document.body.dataset.ready = "";
    for (const task of tasks) task.runIfDue();
  },
  session: () => sessionsTask.runSoon(),
  state: (fresh) => header.freshness(fresh, live.now()),
  refused: showRefused,
  // The sections were removed from the document: load it again.
  allowed: () => location.reload(),
});

/** Removes all data from the document when the node no longer serves it, and shows the node's reason. */
function showRefused(words) {
  header.refused();
  for (const node of document.querySelectorAll("nav, .skip")) setVisible(node, false);
  document.querySelector("main").replaceChildren(createNode("p", { id: "refused", class: "empty" }, words), createNode("p", { class: "empty" }, createNode("a", { href: "" }, "Reload the page")));
}

/** Runs `work` every `seconds` while the tab is visible and the node is connected; never twice at a time. */
class PeriodicTask {
  constructor(seconds, work, failed) {
    Object.assign(this, { seconds, work, failed, dueAt: 0, running: false });
  }

  /** Run with the next snapshot, but at least 3 s after the last run. */
  runSoon() {
    this.dueAt = Math.min(this.dueAt, (this.endedAt ?? -Infinity) + 3000);
    this.runIfDue();
  }

  /** Run now, or directly after the current run. */
  runNow() {
    this.requested = true;
    this.dueAt = 0;
    this.runIfDue();
  }

  async runIfDue() {
    if (this.running || document.hidden || !live.connected || !live.data || performance.now() < this.dueAt) return;
    this.running = true;
    this.requested = false;
    const startedAt = performance.now();
    this.dueAt = startedAt + this.seconds * 1000;
    try {
      await this.work();
    } catch (error) {
      if (live.refused === null) this.failed?.(error);
    } finally {
      this.running = false;
      this.endedAt = performance.now();
      // Expensive requests are sent less often.
      this.dueAt = this.requested ? 0 : Math.max(this.dueAt, this.endedAt + 10 * (this.endedAt - startedAt));
      if (this.requested) this.runIfDue();
    }
  }
}

const sessionsTask = new PeriodicTask(60, () => sessions.refresh(live.now()), (error) => timeline.failed(error));
const chosenPeriod = () => view.oneOf("period", PERIOD_NAMES);

/** The chosen key; `auto` is the first one with several names on this machine. */
const chosenKey = () => view.get("by") || "auto";

function expectReport() {
  energy.expect(chosenKey(), chosenPeriod());
  energyTask.seconds = refreshSeconds(chosenPeriod());
  energyTask.runNow();
}

async function fetchChosen(by, period) {
  try {
    return await fetchReport(by, period);
  } catch (error) {
    // A link from another machine can name a key that does not exist here.
    if (by === "auto" || error.parameter !== "by") throw error;
    view.change({ by: "auto" });
    return fetchReport("auto", period);
  }
}

const energyTask = new PeriodicTask(
  refreshSeconds(chosenPeriod()),
  async () => {
    // The response with the sessions says whether there is a ledger on disk: without one, energy requests fail.
    await sessions.first;
    if (!sessions.fromBooks) throw new Error("No ledger is kept on disk, so there is no report: set --state-dir.");
    const [by, period] = [chosenKey(), chosenPeriod()];
    const answer = await fetchChosen(by, period);
    if (period === "today") energyTiles(answer);
    if (period === chosenPeriod() && [by, "auto"].includes(chosenKey())) energy.show(answer);
  },
  (error) => {
    if (chosenPeriod() === "today") noEnergyTiles(sessions.fromBooks ? "not available" : "no ledger on disk");
    energy.failed(error);
  },
);
// While the table shows another period, the tiles need today's total only.
const tilesTask = new PeriodicTask(60, async () => {
  await sessions.first;
  if (chosenPeriod() === "today") return;
  if (sessions.fromBooks) energyTiles(await fetchReport("auto", "today", 1));
  else noEnergyTiles("no ledger on disk");
}, () => noEnergyTiles("not available"));
const tasks = [
  new PeriodicTask(10, async () => cards.recent(await fetchJson("api/v1/recent"))),
  energyTask,
  tilesTask,
  sessionsTask,
  new PeriodicTask(30, refreshHealth, (error) => health.failed(error)),
];

async function refreshHealth() {
  const answer = await fetchJson("api/v1/health");
  header.health(answer);
  health.show(answer, live.now());
}

/** Scrolls to a section without changing the URL hash, which holds the view. */
function goToSection(id) {
  const section = byId(id);
  section.scrollIntoView();
  section.querySelector("h2").focus({ preventScroll: true });
  if (id === "health") section.querySelector("details").open = true;
}

/** Connects a group of buttons with a choice of the view: the chosen one is pressed. */
function connectChoice(name, allowed, chosen) {
  const buttons = document.querySelectorAll(`[data-${name}]`);
  const press = () => {
    const value = view.oneOf(name, allowed);
    for (const button of buttons) button.setAttribute("aria-pressed", button.dataset[name] === value);
    chosen(value);
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      view.change({ [name]: button.dataset[name] });
      press();
    });
  }
  view.onChange(press);
  press();
}

for (const link of document.querySelectorAll("a[data-go]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    goToSection(link.dataset.go);
  });
}
connectChoice("spark", QUANTITIES, (quantity) => cards.choose(quantity));
connectChoice("period", PERIOD_NAMES, expectReport);
live.start();
