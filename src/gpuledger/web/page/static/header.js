// Which node, how fresh, how healthy: the line that is always in sight.
import { byId, setAttribute, setIcon, setText, show } from "./dom.js";
import { duration, moment } from "./format.js";
import { plain, setName } from "./names.js";

const ICONS = { connecting: "wait", live: "live", stale: "stale", lost: "lost", refused: "lost", paused: "pause" };

/** The header's words; the quiet live region hears of a change of state, not of every second. */
export class Header {
  constructor() {
    this.said = "connecting";
  }

  snapshot(data) {
    setName(byId("node"), data.node);
    const { source, status } = data;
    const facts = [
      source.driver_version && `driver ${source.driver_version}`,
      source.cuda_version && `CUDA ${source.cuda_version}`,
      `source ${source.name}`,
      `every ${status.interval_seconds}\u00a0s`,
    ];
    setName(byId("facts"), facts.filter(Boolean).join(" \u00b7 "));
    show(byId("banner"), source.simulated);
    if (source.simulated) {
      const replayed = source.name === "replay";
      setText(byId("banner-what"), replayed ? "Recorded data" : "Simulated data");
      setName(byId("banner-detail"), source.detail || source.name);
      setText(byId("banner-means"), replayed ? "played back: this is not what happens now." : "nothing here was measured, no hardware is read.");
    }
    const verdict = byId("verdict");
    setAttribute(verdict, "data-healthy", status.healthy ? "yes" : "no");
    setIcon(verdict.querySelector("svg"), status.healthy ? "ok" : "warning");
    setName(byId("verdict-text"), status.healthy ? "healthy" : status.text, 300);
    const free = data.devices.filter((device) => device.state === "idle" && device.up).length;
    this.title = `${status.readings ? `${free} free \u00b7 ` : ""}${plain(data.node, 60)} \u00b7 gpuledger`;
  }

  /** When anything was read last, by the node's own account: this tab may have come later. */
  health(answer) {
    const told = (answer.collectors ?? []).find((part) => part.name === "source");
    this.lastRead = told ? told.last_success : undefined;
  }

  /** How long nothing was read, where this tab has seen no reading; "yet" only where there never was one. */
  unread(now) {
    if (this.lastRead === null) return "no readings yet";
    return this.lastRead === undefined ? "no readings" : `stale since ${duration(now - this.lastRead)}`;
  }

  /** What the node told before is not to be read here any more. */
  refused() {
    show(byId("verdict"), false);
    show(byId("banner"), false);
    setText(byId("verdict-text"), "");
    this.title = "gpuledger";
  }

  freshness(fresh, now) {
    const node = byId("fresh");
    setAttribute(node, "data-state", fresh.name);
    setAttribute(document.body, "data-fresh", fresh.name);
    setIcon(node.querySelector("svg"), ICONS[fresh.name]);
    const words = this.words(fresh, now);
    setText(byId("fresh-text"), words);
    const title = fresh.name === "live" ? this.title : `${fresh.name === "lost" ? "disconnected" : fresh.name} \u00b7 ${this.title ?? "gpuledger"}`;
    if (title && document.title !== title) document.title = title;
    if (fresh.name !== this.said) {
      const first = this.said === "connecting";
      this.said = fresh.name;
      setText(byId("said"), { live: first ? "" : "Live again.", stale: "What is shown is stale.", lost: "Disconnected, trying again.", refused: "The node no longer tells what was shown here.", paused: "Paused." }[fresh.name] ?? "");
    }
  }

  words({ name, age, seconds, until }, now) {
    if (name === "lost") {
      const retry = seconds ? `trying again in ${seconds}\u00a0s` : "trying again";
      return `disconnected, ${retry}${age === null ? "" : `; shown is ${moment(now - age, now)}`}`;
    }
    if (name === "refused") return "not served";
    if (name === "stale") return age === null ? this.unread(now) : `stale since ${duration(age)}`;
    if (name === "paused") return until ? `paused until ${moment(until, now)}` : "paused";
    return name === "live" ? "live" : "connecting\u2026";
  }
}
