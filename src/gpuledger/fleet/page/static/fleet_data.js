// The data of all nodes: fetches what has changed since the last answer, while the tab is visible.

const RETRY_SECONDS = 5;
const STALE_INTERVALS = 4;

/** Calls `changed(data)` after each change, and `state(freshness)` once a second. */
export class FleetData {
  constructor({ changed, state }) {
    Object.assign(this, { onChange: changed, onState: state });
    this.nodes = new Map();
    this.keys = [];
    this.revision = "";
    this.etag = null;
    this.head = null;
    this.readAt = null;
    this.error = null;
    this.timer = null;
    this.fetching = false;
  }

  start() {
    document.addEventListener("visibilitychange", () => document.hidden || this.fetchSoon(0));
    setInterval(() => this.onState(this.freshness()), 1000);
    this.fetchSoon(0);
  }

  /** Unix seconds on the clock of the fleet. */
  now() {
    return Date.now() / 1000 + (this.skew ?? 0);
  }

  fetchSoon(seconds) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), 1000 * seconds);
  }

  async fetch() {
    if (this.fetching || document.hidden) return;
    this.fetching = true;
    const startedAt = performance.now();
    try {
      const headers = this.etag ? { "If-None-Match": this.etag } : {};
      const answer = await fetch(`api/v1/fleet?since=${encodeURIComponent(this.revision)}`, { headers, cache: "no-store", signal: AbortSignal.timeout(30_000) });
      if (answer.ok) {
        this.accept(await answer.json());
        this.etag = answer.headers.get("ETag");
      } else if (answer.status !== 304) {
        const words = (await answer.json().catch(() => null))?.error?.message;
        throw new Error(words ?? `the fleet answered ${answer.status}`);
      }
      this.readAt = performance.now();
      this.error = null;
    } catch (error) {
      this.error = error;
    } finally {
      this.fetching = false;
      const spent = (performance.now() - startedAt) / 1000;
      const pause = this.error ? RETRY_SECONDS : Math.max(this.head?.interval_seconds ?? RETRY_SECONDS, 4 * spent);
      this.fetchSoon(pause);
      this.onState(this.freshness());
    }
  }

  accept(answer) {
    // Another run of the fleet sends all nodes.
    if (answer.complete) this.nodes.clear();
    for (const node of answer.nodes) this.nodes.set(node.key, node);
    this.keys = answer.keys;
    const listed = new Set(answer.keys);
    for (const key of this.nodes.keys()) if (!listed.has(key)) this.nodes.delete(key);
    this.revision = answer.revision;
    this.head = answer;
    this.skew = answer.now - Date.now() / 1000;
    this.onChange(this);
  }

  /** The nodes in the order of the lists. */
  listed() {
    return this.keys.map((key) => this.nodes.get(key)).filter(Boolean);
  }

  freshness() {
    const age = this.readAt === null ? null : (performance.now() - this.readAt) / 1000;
    if (this.error) return { name: "lost", age, words: this.error.message };
    if (age === null) return { name: "connecting", age };
    return { name: age > STALE_INTERVALS * (this.head.interval_seconds + RETRY_SECONDS) ? "stale" : "live", age };
  }
}
