// The health of gpuledger: collectors, owner indexes, and the findings of `gpuledger doctor`.
import { icon, syncChildren, createNode, setAttribute, setIcon, setText, setVisible } from "./dom.js";
import { duration, moment, plural } from "./format.js";
import { setName } from "./names.js";

// Levels of doctor's verdicts; unknown and skipped checks do not count as findings.
const LEVELS = { works: "ok", warning: "warning", fails: "failure", unknown: "unknown", skipped: "unknown" };
const levelOf = (finding) => LEVELS[finding.level] ?? finding.level;
// An interval can be a fraction of a second.
const interval = (seconds) => (Number.isInteger(seconds) ? duration(seconds) : `${seconds}\u00a0s`);
const ORDER = ["failure", "warning", "unknown", "ok"];

/** The folded section in `root`; it opens automatically when the node becomes unhealthy. */
export class HealthPanel {
  constructor(root) {
    this.root = root;
    this.part = (name) => root.querySelector(`.${name}`);
    this.worst = "";
  }

  failed(error) {
    setText(this.part("verdict-line"), `unknown: ${error.message}`);
  }

  show(answer, now) {
    const findings = answer.findings ?? [];
    const parts = [...(answer.collectors ?? []), ...(answer.maps ?? [])];
    const wrong = findings.filter((finding) => ["failure", "warning"].includes(levelOf(finding)));
    const failing = parts.filter((part) => part.success === false);
    const bad = !answer.status.healthy || failing.length > 0 || wrong.some((finding) => levelOf(finding) === "failure");
    const level = bad ? "failure" : wrong.length ? "warning" : "ok";
    this.verdict(answer, level, wrong, failing, findings);
    if (level === "failure" && this.worst !== "failure") this.part("fold").open = true;
    this.worst = level;
    this.findings(answer, [...findings].sort((a, b) => ORDER.indexOf(levelOf(a)) - ORDER.indexOf(levelOf(b))), now);
    this.parts(parts, now);
    this.facts(answer, now);
  }

  verdict(answer, level, wrong, failing, findings) {
    setAttribute(this.root, "data-level", level);
    setIcon(this.part("fold").querySelector("summary svg"), level);
    const words = [];
    if (!answer.status.healthy) words.push(answer.status.text);
    if (failing.length) words.push(`failing: ${failing.map((part) => part.name).join(", ")}`);
    if (wrong.length) words.push(plural(wrong.length, "finding"));
    const passed = findings.filter((finding) => levelOf(finding) === "ok").length;
    const well = passed ? `no problems, ${plural(passed, "check")} passed` : "no problems";
    setName(this.part("verdict-line"), words.join("; ") || well, 300);
  }

  findings(answer, findings, now) {
    setVisible(this.part("no-findings"), findings.length === 0);
    setText(this.part("looked"), answer.findings_unix ? `Checked at ${moment(answer.findings_unix, now)}.` : "");
    syncChildren(this.part("findings"), findings, (finding) => `${finding.check}\n${finding.summary}`, findingNode, (node, finding) => {
      const level = levelOf(finding);
      setAttribute(node, "data-level", level);
      setIcon(node.parts.icon, level);
      setText(node.parts.level, { ok: "works", failure: "fails", unknown: finding.level }[level] ?? level);
      setName(node.parts.check, finding.check);
      setName(node.parts.summary, finding.summary, 600);
      setName(node.parts.remedy, finding.remedy ? `Remedy: ${finding.remedy}` : "", 800);
      setVisible(node.parts.remedy, Boolean(finding.remedy));
    });
  }

  parts(parts, now) {
    syncChildren(this.part("parts"), parts, (part) => part.name, partNode, (node, part) => {
      const [name, state, last, error] = node.children;
      setName(name, part.name);
      setAttribute(node, "data-level", part.success === false ? "failure" : "ok");
      setIcon(state.firstChild, part.success === false ? "failure" : "ok");
      setText(state.lastChild, part.success === false ? "failing" : "ok");
      setText(last, part.last_success ? `${duration(Math.max(0, now - part.last_success))} ago` : "never");
      setName(error, part.error || "", 400);
    });
  }

  facts(answer, now) {
    const words = [`${plural(answer.ticks, "tick")}, one every ${interval(answer.interval_seconds)}`];
    if (answer.asked_interval_seconds !== answer.interval_seconds) words.push(`${interval(answer.asked_interval_seconds)} configured`);
    if (answer.started) words.push(`running for ${duration(now - answer.started)}`);
    const { reload } = answer;
    if (reload?.error) words.push(`the last valid settings are in force: ${reload.error}`);
    if (reload?.pending?.length) words.push(`restart needed for: ${reload.pending.join(", ")}`);
    setName(this.part("facts-line"), `${words.join("; ")}.`, 600);
  }
}

function findingNode() {
  const parts = { icon: icon("ok"), level: createNode("span"), check: createNode("code", { class: "soft" }), summary: createNode("span"), remedy: createNode("span", { class: "remedy" }) };
  const state = createNode("span", { class: "state" }, parts.icon, parts.level);
  const node = createNode("li", {}, state, createNode("div", {}, parts.summary, " ", parts.check, parts.remedy));
  node.parts = parts;
  return node;
}

function partNode() {
  const state = createNode("td", {}, icon("ok"), createNode("span"));
  return createNode("tr", {}, createNode("th", { scope: "row" }), state, createNode("td", { class: "number" }), createNode("td", { class: "name" }));
}
