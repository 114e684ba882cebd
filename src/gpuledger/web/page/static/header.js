// The header, which is always visible: node, freshness and health.
import { byId, setAttribute, setIcon, setText, setVisible } from "./dom.js";
import { duration, moment, plural } from "./format.js";
import { plain, setName } from "./names.js";

const ICONS = { connecting: "wait", live: "live", stale: "stale", lost: "lost", refused: "lost", paused: "pause" };

/** The texts of the header. The live region announces changes of the state, not every second. */
export class Header {
  constructor() {
    this.lastAnnounced = "connecting";
  }

  snapshot(data) {
    setName(byId("node"), data.node);
    const { source, status } = data;
    const facts = [
      source.driver_version && `driver ${source.driver_version}`,
      source.cuda_version && `CUDA ${source.cuda_version}`,
      `source ${source.name}`,
      `every ${status.interval_seconds}\u00a0s`,
      data.invalid_values > 0 && `${plural(data.invalid_values, "impossible value")} rejected since the start`,
    ];
    setName(byId("facts"), facts.filter(Boolean).join(" \u00b7 "));
    setVisible(byId("banner"), source.simulated);
    if (source.simulated) {
      const replayed = source.name === "replay";
      setText(byId("banner-what"), replayed ? "Recorded data" : "Simulated data");
      setName(byId("banner-detail"), source.detail || source.name);
      setText(byId("banner-means"), replayed ? "played back, not live data." : "nothing here was measured, no hardware is read.");
    }
    const verdict = byId("verdict");
    setAttribute(verdict, "data-healthy", status.healthy ? "yes" : "no");
    setIcon(verdict.querySelector("svg"), status.healthy ? "ok" : "warning");
    setName(byId("verdict-text"), status.healthy ? "healthy" : status.text, 300);
    const free = data.devices.filter((device) => device.state === "idle" && device.up).length;
    this.title = `${status.readings ? `${free} free \u00b7 ` : ""}${plain(data.node, 60)} \u00b7 gpuledger`;
  }

  /** Stores when the node last read its source, which may be before this tab was opened. */
  health(answer) {
    const collector = (answer.collectors ?? []).find((part) => part.name === "source");
    this.lastRead = collector ? collector.last_success : undefined;
  }

  /** The text when this tab has received no readings; "yet" only if the node never had any. */
  noReadingsText(now) {
    if (this.lastRead === null) return "no readings yet";
    return this.lastRead === undefined ? "no readings" : `stale since ${duration(now - this.lastRead)}`;
  }

  /** Removes the node's data from the header when the node no longer serves it. */
  refused() {
    setVisible(byId("verdict"), false);
    setVisible(byId("banner"), false);
    setText(byId("verdict-text"), "");
    this.title = "gpuledger";
  }

  freshness(fresh, now) {
    const node = byId("fresh");
    setAttribute(node, "data-state", fresh.name);
    setAttribute(document.body, "data-fresh", fresh.name);
    setIcon(node.querySelector("svg"), ICONS[fresh.name]);
    const words = this.freshnessText(fresh, now);
    setText(byId("fresh-text"), words);
    const title = fresh.name === "live" ? this.title : `${fresh.name === "lost" ? "disconnected" : fresh.name} \u00b7 ${this.title ?? "gpuledger"}`;
    if (title && document.title !== title) document.title = title;
    if (fresh.name !== this.lastAnnounced) {
      const first = this.lastAnnounced === "connecting";
      this.lastAnnounced = fresh.name;
      setText(byId("announcement"), { live: first ? "" : "Live again.", stale: "The data is stale.", lost: "Disconnected, retrying.", refused: "The node no longer serves this data.", paused: "Paused." }[fresh.name] ?? "");
    }
  }

  freshnessText({ name, age, seconds, until }, now) {
    if (name === "lost") {
      const retry = seconds ? `retrying in ${seconds}\u00a0s` : "retrying";
      return `disconnected, ${retry}${age === null ? "" : `; data from ${moment(now - age, now)}`}`;
    }
    if (name === "refused") return "not served";
    if (name === "stale") return age === null ? this.noReadingsText(now) : `stale since ${duration(age)}`;
    if (name === "paused") return until ? `paused until ${moment(until, now)}` : "paused";
    return name === "live" ? "live" : "connecting\u2026";
  }
}
