// How gpuledger itself is: what it reads, what it cannot, and what doctor would change.
import { icon, keep, make, setAttribute, setIcon, setText, show } from "./dom.js";
import { duration, moment, plural } from "./format.js";
import { setName } from "./names.js";

// Doctor's words, and what they are here; what could not be looked at is no finding.
const LEVELS = { works: "ok", warning: "warning", fails: "failure", unknown: "unknown", skipped: "unknown" };
const levelOf = (finding) => LEVELS[finding.level] ?? finding.level;
const ORDER = ["failure", "warning", "unknown", "ok"];

/** The folded section in `root`; it opens by itself when something is wrong, once. */
export class HealthPanel {
  constructor(root) {
    this.root = root;
    this.part = (name) => root.querySelector(`.${name}`);
    this.worst = "";
  }

  failed(error) {
    setText(this.part("verdict-line"), `not known: ${error.message}`);
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
    const well = passed ? `all is well, ${plural(passed, "check")} passed` : "all is well";
    setName(this.part("verdict-line"), words.join("; ") || well, 300);
  }

  findings(answer, findings, now) {
    show(this.part("no-findings"), findings.length === 0);
    setText(this.part("looked"), answer.findings_unix ? `Looked at ${moment(answer.findings_unix, now)}.` : "");
    keep(this.part("findings"), findings, (finding) => `${finding.check}\n${finding.summary}`, findingNode, (node, finding) => {
      const level = levelOf(finding);
      setAttribute(node, "data-level", level);
      setIcon(node.parts.icon, level);
      setText(node.parts.level, { ok: "works", failure: "fails", unknown: finding.level }[level] ?? level);
      setName(node.parts.check, finding.check);
      setName(node.parts.summary, finding.summary, 600);
      setName(node.parts.remedy, finding.remedy ? `Remedy: ${finding.remedy}` : "", 800);
      show(node.parts.remedy, Boolean(finding.remedy));
    });
  }

  parts(parts, now) {
    keep(this.part("parts"), parts, (part) => part.name, partNode, (node, part) => {
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
    const words = [`${plural(answer.ticks, "tick")}, one every ${duration(answer.interval_seconds)}`];
    if (answer.asked_interval_seconds !== answer.interval_seconds) words.push(`${duration(answer.asked_interval_seconds)} were asked for`);
    if (answer.started) words.push(`running for ${duration(now - answer.started)}`);
    const { reload } = answer;
    if (reload?.error) words.push(`the last good settings are in force: ${reload.error}`);
    if (reload?.pending?.length) words.push(`waiting for a restart: ${reload.pending.join(", ")}`);
    setName(this.part("facts-line"), `${words.join("; ")}.`, 600);
  }
}

function findingNode() {
  const parts = { icon: icon("ok"), level: make("span"), check: make("code", { class: "soft" }), summary: make("span"), remedy: make("span", { class: "remedy" }) };
  const state = make("span", { class: "state" }, parts.icon, parts.level);
  const node = make("li", {}, state, make("div", {}, parts.summary, " ", parts.check, parts.remedy));
  node.parts = parts;
  return node;
}

function partNode() {
  const state = make("td", {}, icon("ok"), make("span"));
  return make("tr", {}, make("th", { scope: "row" }), state, make("td", { class: "number" }), make("td", { class: "name" }));
}
