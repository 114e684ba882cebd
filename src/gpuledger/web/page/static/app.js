// Joins the parts: what arrives from the node goes to whoever shows it.
import { Cards } from "./cards.js";
import { byId, make, setText, show } from "./dom.js";
import { Energy, energyOf } from "./energy.js";
import { Header } from "./header.js";
import { HealthPanel } from "./health.js";
import { Live, ask } from "./live.js";
import { Processes } from "./processes.js";
import { Sessions } from "./sessions.js";
import { energyTiles, noEnergyTiles, snapshotTiles } from "./summary.js";
import { Timeline } from "./timeline.js";
import { View } from "./view.js";

const say = (words) => setText(byId("said"), words);
const GROUPINGS = ["namespace", "pod", "user"];
const QUANTITIES = ["utilization", "power", "memory"];

const view = new View();
const header = new Header();
const processes = new Processes(byId("processes"), view, say);
const cards = new Cards(byId("cards"), (text) => {
  processes.filter(text);
  go("processes");
});
const timeline = new Timeline(byId("sessions"), view, say);
const sessions = new Sessions(() => timeline.sessions(sessions));
const energy = new Energy(byId("energy"));
const health = new HealthPanel(byId("health"));

const live = new Live({
  snapshot(data) {
    const now = live.now();
    header.snapshot(data);
    snapshotTiles(data);
    cards.snapshot(data);
    processes.snapshot(data, now);
    timeline.snapshot(data, now);
    document.body.dataset.ready = "";
    for (const periodic of periodics) periodic.look();
  },
  session: () => newSessions.soon(),
  state: (fresh) => header.freshness(fresh, live.now()),
  refused,
  // What was cleared away is built anew.
  allowed: () => location.reload(),
});

/** Names that may not be shown any more are nowhere in the document, and the node says why. */
function refused(words) {
  header.refused();
  for (const node of document.querySelectorAll("nav, .skip")) show(node, false);
  document.querySelector("main").replaceChildren(make("p", { id: "refused", class: "empty" }, words), make("p", { class: "empty" }, make("a", { href: "" }, "Load the page anew")));
}

/** Work that is done every so many seconds while somebody looks and the node answers, one at a time. */
class Periodic {
  constructor(seconds, work, failed) {
    Object.assign(this, { seconds, work, failed, due: 0, running: false });
  }

  /** At the next snapshot, but not twice within a few seconds. */
  soon() {
    this.due = Math.min(this.due, (this.ended ?? -Infinity) + 3000);
    this.look();
  }

  /** At once: after what runs now, if something does, and whatever it costs. */
  now() {
    this.asked = true;
    this.due = 0;
    this.look();
  }

  async look() {
    if (this.running || document.hidden || !live.connected || !live.data || performance.now() < this.due) return;
    this.running = true;
    this.asked = false;
    const begun = performance.now();
    this.due = begun + this.seconds * 1000;
    try {
      await this.work();
    } catch (error) {
      if (live.refused === null) this.failed?.(error);
    } finally {
      this.running = false;
      this.ended = performance.now();
      // What is dear is asked for seldomer.
      this.due = this.asked ? 0 : Math.max(this.due, this.ended + 10 * (this.ended - begun));
      if (this.asked) this.look();
    }
  }
}

const newSessions = new Periodic(60, () => sessions.refresh(live.now()), (error) => timeline.failed(error));
const books = new Periodic(
  20,
  async () => {
    // Whoever keeps no books has said so with the sessions: to ask them for energy would be an error.
    await sessions.first;
    if (!sessions.fromBooks) {
      noEnergyTiles("no books are kept");
      energy.failed(new Error("No books are kept, so there is no energy of the day: they want a --state-dir."));
      return;
    }
    const by = view.oneOf("by", GROUPINGS);
    const answer = await energyOf(by);
    energyTiles(answer);
    if (by === view.oneOf("by", GROUPINGS)) energy.show(answer);
  },
  (error) => {
    noEnergyTiles("not told");
    energy.failed(error);
  },
);
const periodics = [
  new Periodic(10, async () => cards.recent(await ask("api/v1/recent"))),
  books,
  newSessions,
  new Periodic(30, condition, (error) => health.failed(error)),
];

async function condition() {
  const answer = await ask("api/v1/health");
  header.health(answer);
  health.show(answer, live.now());
}

/** To a section, without touching what # says of the view. */
function go(id) {
  const section = byId(id);
  section.scrollIntoView();
  section.querySelector("h2").focus({ preventScroll: true });
  if (id === "health") section.querySelector("details").open = true;
}

/** Buttons of which one is pressed, as the view says. */
function choice(name, allowed, chosen) {
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
  view.follow(press);
  press();
}

for (const link of document.querySelectorAll("a[data-go]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    go(link.dataset.go);
  });
}
choice("spark", QUANTITIES, (quantity) => cards.choose(quantity));
choice("by", GROUPINGS, (by) => {
  energy.expect(by);
  books.now();
});
live.start();
