// The link to the node: ticks arrive as server-sent events, and what they announce is fetched at a bearable pace.

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 15000;
// Whoever was refused is not let in a second later.
const REFUSED_PAUSE = 60000;
// Of the time between two snapshots, at most so much is spent on fetching and showing one.
const SHARE = 0.2;
// After so many seconds without a word it is asked anew.
const SILENCE = 60;
const BIG = 400_000;
const BIG_PAUSE = 4000;

/** JSON of an address, or an Error with the node's own words. */
export async function ask(address) {
  const answer = await fetch(address, { signal: AbortSignal.timeout(30_000) });
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error?.message ?? `${address.split("?")[0]}: ${answer.status}`);
  return body;
}

/**
 * `snapshot(data)` shows a new snapshot; `session()` hears that sessions began or ended; `state(freshness)` is
 * told once a second and at every change how fresh everything is; `refused(words)` hears that the node no longer
 * tells any of it, and `allowed()` that it does again. Nothing is asked for while nobody looks.
 */
export class Live {
  constructor({ snapshot, session, state, refused, allowed }) {
    Object.assign(this, { show: snapshot, session, state, onRefused: refused, onAllowed: allowed });
    this.refused = null;
    this.pause = FIRST_PAUSE;
    this.connected = false;
    this.ever = false;
    this.etag = null;
    this.data = null;
    this.readAt = null;
    this.tickSeen = 0;
    this.notBefore = 0;
    this.fetching = false;
    this.later = null;
  }

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.rest() : this.connect()));
    setInterval(() => this.tell(), 1000);
    if (!document.hidden) this.connect();
  }

  /** Unix seconds by the node's clock, which may not be the reader's; of data that are made up, by their own. */
  now() {
    return Date.now() / 1000 + (this.skew ?? 0);
  }

  connect() {
    clearTimeout(this.retry);
    this.events?.close();
    const events = new EventSource("api/v1/events");
    this.events = events;
    this.tickSeen = performance.now();
    events.addEventListener("open", () => {
      if (this.refused !== null) return this.onAllowed();
      this.connected = true;
      this.ever = true;
      this.pause = FIRST_PAUSE;
      this.tickSeen = performance.now();
      this.tell();
      this.fetchSoon();
      this.session();
    });
    events.addEventListener("tick", (event) => {
      this.tickSeen = performance.now();
      this.tick = JSON.parse(event.data);
      this.keepTime();
      this.fetchSoon();
    });
    events.addEventListener("session", () => this.session());
    events.addEventListener("error", () => {
      // Closed by an answer, not by a network: the snapshot's says why.
      const answered = events.readyState === EventSource.CLOSED;
      this.lost();
      if (answered && !this.fetching) this.fetchSnapshot();
    });
  }

  /** Nobody looks: let the node alone. */
  rest() {
    clearTimeout(this.retry);
    clearTimeout(this.later);
    this.later = null;
    this.events?.close();
    // Whoever comes back is not to be told that all was stale meanwhile.
    this.connected = false;
    this.ever = false;
    this.tell();
  }

  lost() {
    this.events?.close();
    this.connected = false;
    this.ever = true;
    const pause = this.refused === null ? this.pause : REFUSED_PAUSE;
    this.retryAt = performance.now() + pause;
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), pause);
    this.pause = Math.min(LONGEST_PAUSE, this.pause * (1.5 + Math.random() / 2));
    this.tell();
  }

  /** The node answers, but tells nothing of what is shown here: in its own `words`. */
  refuse(words) {
    const first = this.refused === null;
    this.refused = words;
    this.data = null;
    this.etag = null;
    this.readAt = null;
    this.missed = false;
    this.lost();
    if (first) this.onRefused(words);
  }

  fetchSoon() {
    // What is on its way may be of the state before: once more when it is there.
    this.missed = this.fetching;
    if (this.fetching || this.later !== null || document.hidden) return;
    const wait = Math.max(0, this.notBefore - performance.now());
    this.later = setTimeout(() => {
      this.later = null;
      this.fetchSnapshot();
    }, wait);
  }

  async fetchSnapshot() {
    this.fetching = true;
    const begun = performance.now();
    let size = 0;
    try {
      const headers = this.etag ? { "If-None-Match": this.etag } : {};
      const answer = await fetch("api/v1/snapshot", { headers, cache: "no-store", signal: AbortSignal.timeout(30_000) });
      if (answer.ok) {
        const text = await answer.text();
        size = text.length;
        this.etag = answer.headers.get("ETag");
        this.take(JSON.parse(text));
      } else if (answer.status !== 304) {
        const error = (await answer.json().catch(() => null))?.error;
        const words = error?.message ?? `snapshot: ${answer.status}`;
        if (error?.code === "not_served" || [401, 403].includes(answer.status)) this.refuse(words);
        throw new Error(words);
      }
      this.failed = null;
    } catch (error) {
      this.failed = error;
    } finally {
      this.fetching = false;
      const spent = performance.now() - begun;
      this.notBefore = begun + Math.max(spent / SHARE, size > BIG ? BIG_PAUSE : 0, this.failed ? 2000 : 0);
      this.tell();
      if (this.missed && this.connected) this.fetchSoon();
    }
  }

  take(data) {
    if (this.refused !== null) return this.onAllowed();
    this.data = data;
    this.keepTime();
    if (data.status.readings) {
      const old = data.source.simulated ? 0 : Math.max(0, this.now() - data.unix);
      this.readAt = performance.now() - 1000 * old;
    }
    this.show(data);
  }

  keepTime() {
    if (!this.tick) return;
    const now = this.data?.source.simulated ? Math.max(this.tick.unix, this.data.unix) : this.tick.now;
    this.skew = now - Date.now() / 1000;
  }

  /** How fresh what is shown is: the state's name, and the words for it. */
  freshness() {
    const age = this.readAt === null ? null : (performance.now() - this.readAt) / 1000;
    if (this.refused !== null) return { name: "refused", age: null };
    if (!this.connected) {
      if (!this.ever) return { name: "connecting", age };
      const seconds = Math.ceil((this.retryAt - performance.now()) / 1000);
      return { name: "lost", age, seconds: seconds > 0 ? seconds : 0 };
    }
    if (this.data === null) return { name: "connecting", age };
    const interval = this.data.status.interval_seconds ?? 1;
    if (this.data.status.paused) return { name: "paused", age, until: this.data.status.paused_until };
    const silent = (performance.now() - this.tickSeen) / 1000;
    const pace = (this.notBefore - performance.now()) / 1000;
    const allowed = 3 * interval + 2 + Math.max(0, pace) + (this.fetching ? 5 : 0);
    const late = silent > 3 * interval + 2 || (age !== null && age > allowed);
    if (!this.data.status.readings || this.data.status.stalled || late) return { name: "stale", age };
    return { name: "live", age };
  }

  tell() {
    // A connection that a network has lost may never say so.
    const silent = performance.now() - this.tickSeen;
    if (this.connected && silent > 1000 * Math.max(SILENCE, 4 * (this.data?.status.interval_seconds ?? 1))) this.connect();
    this.state(this.freshness());
  }
}
