// The connection to the node: receives ticks as server-sent events and fetches snapshots at a limited rate.

const FIRST_RETRY_DELAY = 1000;
const MAX_RETRY_DELAY = 15000;
// After a refusal, such as 403, retries are rare.
const REFUSED_RETRY_DELAY = 60000;
// The maximum share of time spent on fetching and showing snapshots.
const FETCH_SHARE = 0.2;
// Seconds without an event after which the connection is opened again.
const SILENCE_LIMIT = 60;
const BIG_SNAPSHOT = 400_000;
const BIG_FETCH_DELAY = 4000;

/** The time some seconds ago, on both clocks of the browser. */
const stamp = (seconds = 0) => ({ at: performance.now() - 1000 * seconds, wall: Date.now() - 1000 * seconds });

/** Seconds since a stamp. While a computer sleeps, only the wall clock goes on; it may be set, the other is not. */
const secondsSince = ({ at, wall }) => Math.max(performance.now() - at, Date.now() - wall) / 1000;

/** Fetches JSON; throws an Error with the node's message and the invalid `parameter`. */
export async function fetchJson(address) {
  const answer = await fetch(address, { signal: AbortSignal.timeout(30_000) });
  const body = await answer.json().catch(() => null);
  if (!answer.ok) {
    const error = new Error(body?.error?.message ?? `${address.split("?")[0]}: ${answer.status}`);
    throw Object.assign(error, { parameter: body?.error?.parameter });
  }
  return body;
}

/**
 * Calls `snapshot(data)` with each new snapshot, `session()` when sessions began or ended, `state(freshness)`
 * once a second and with every change, `refused(words)` when the node no longer serves its data, and `allowed()`
 * when it does again. Sends no requests while the tab is hidden.
 */
export class LiveConnection {
  constructor({ snapshot, session, state, refused, allowed }) {
    Object.assign(this, { onSnapshot: snapshot, onSession: session, onState: state, onRefused: refused, onAllowed: allowed });
    this.refused = null;
    this.retryDelay = FIRST_RETRY_DELAY;
    this.connected = false;
    this.everConnected = false;
    this.etag = null;
    this.data = null;
    this.readAt = null;
    this.tickSeen = stamp();
    this.nextFetchAt = 0;
    this.fetching = false;
    this.fetchTimer = null;
  }

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.disconnect() : this.connect()));
    setInterval(() => this.reportFreshness(), 1000);
    if (!document.hidden) this.connect();
  }

  /** Unix seconds on the node's clock, which may differ from the browser's; for simulated data, simulated time. */
  now() {
    return Date.now() / 1000 + (this.skew ?? 0);
  }

  connect() {
    clearTimeout(this.retry);
    this.events?.close();
    const events = new EventSource("api/v1/events");
    this.events = events;
    this.tickSeen = stamp();
    events.addEventListener("open", () => {
      if (this.refused !== null) return this.onAllowed();
      this.connected = true;
      this.everConnected = true;
      this.retryDelay = FIRST_RETRY_DELAY;
      this.tickSeen = stamp();
      this.reportFreshness();
      this.fetchSoon();
      this.onSession();
    });
    events.addEventListener("tick", (event) => {
      this.tickSeen = stamp();
      this.tick = JSON.parse(event.data);
      this.syncClock();
      this.fetchSoon();
    });
    events.addEventListener("session", () => this.onSession());
    events.addEventListener("error", () => {
      // Closed by an HTTP response, not by the network: the response to a snapshot request has the reason.
      const answered = events.readyState === EventSource.CLOSED;
      this.connectionLost();
      if (answered && !this.fetching) this.fetchSnapshot();
    });
  }

  /** Closes the connection while the tab is hidden. */
  disconnect() {
    clearTimeout(this.retry);
    clearTimeout(this.fetchTimer);
    this.fetchTimer = null;
    this.events?.close();
    // When the tab becomes visible again, the data is not announced as stale.
    this.connected = false;
    this.everConnected = false;
    this.reportFreshness();
  }

  connectionLost() {
    this.events?.close();
    this.connected = false;
    this.everConnected = true;
    const delay = this.refused === null ? this.retryDelay : REFUSED_RETRY_DELAY;
    this.retryAt = performance.now() + delay;
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), delay);
    this.retryDelay = Math.min(MAX_RETRY_DELAY, this.retryDelay * (1.5 + Math.random() / 2));
    this.reportFreshness();
  }

  /** The node answers but refuses to serve its data; `words` is its reason. */
  onRefusal(words) {
    const first = this.refused === null;
    this.refused = words;
    this.data = null;
    this.etag = null;
    this.readAt = null;
    this.refetch = false;
    this.connectionLost();
    if (first) this.onRefused(words);
  }

  fetchSoon() {
    // A running fetch may return the previous state: fetch again after it.
    this.refetch = this.fetching;
    if (this.fetching || this.fetchTimer !== null || document.hidden) return;
    const wait = Math.max(0, this.nextFetchAt - performance.now());
    this.fetchTimer = setTimeout(() => {
      this.fetchTimer = null;
      this.fetchSnapshot();
    }, wait);
  }

  async fetchSnapshot() {
    this.fetching = true;
    const startedAt = performance.now();
    let size = 0;
    try {
      const headers = this.etag ? { "If-None-Match": this.etag } : {};
      const answer = await fetch("api/v1/snapshot", { headers, cache: "no-store", signal: AbortSignal.timeout(30_000) });
      if (answer.ok) {
        const text = await answer.text();
        size = text.length;
        this.etag = answer.headers.get("ETag");
        this.acceptSnapshot(JSON.parse(text));
      } else if (answer.status !== 304) {
        const error = (await answer.json().catch(() => null))?.error;
        const words = error?.message ?? `snapshot: ${answer.status}`;
        if (error?.code === "not_served" || [401, 403].includes(answer.status)) this.onRefusal(words);
        throw new Error(words);
      }
      this.failed = null;
    } catch (error) {
      this.failed = error;
    } finally {
      this.fetching = false;
      const spent = performance.now() - startedAt;
      this.nextFetchAt = startedAt + Math.max(spent / FETCH_SHARE, size > BIG_SNAPSHOT ? BIG_FETCH_DELAY : 0, this.failed ? 2000 : 0);
      this.reportFreshness();
      if (this.refetch && this.connected) this.fetchSoon();
    }
  }

  acceptSnapshot(data) {
    if (this.refused !== null) return this.onAllowed();
    this.data = data;
    this.syncClock();
    if (data.status.readings) {
      const old = data.source.simulated ? 0 : Math.max(0, this.now() - data.unix);
      this.readAt = stamp(old);
    }
    this.onSnapshot(data);
  }

  syncClock() {
    if (!this.tick) return;
    const now = this.data?.source.simulated ? Math.max(this.tick.unix, this.data.unix) : this.tick.now;
    this.skew = now - Date.now() / 1000;
  }

  /** How fresh the shown data is: the name of the state, the age in seconds, and details of the state. */
  freshness() {
    const age = this.readAt === null ? null : secondsSince(this.readAt);
    if (this.refused !== null) return { name: "refused", age: null };
    if (!this.connected) {
      if (!this.everConnected) return { name: "connecting", age };
      const seconds = Math.ceil((this.retryAt - performance.now()) / 1000);
      return { name: "lost", age, seconds: seconds > 0 ? seconds : 0 };
    }
    if (this.data === null) return { name: "connecting", age };
    const interval = this.data.status.interval_seconds ?? 1;
    if (this.data.status.paused) return { name: "paused", age, until: this.data.status.paused_until };
    const silent = secondsSince(this.tickSeen);
    const pace = (this.nextFetchAt - performance.now()) / 1000;
    const allowed = 3 * interval + 2 + Math.max(0, pace) + (this.fetching ? 5 : 0);
    const late = silent > 3 * interval + 2 || (age !== null && age > allowed);
    if (!this.data.status.readings || this.data.status.stalled || late) return { name: "stale", age };
    return { name: "live", age };
  }

  reportFreshness() {
    // A lost connection may never raise an error event.
    const silent = secondsSince(this.tickSeen);
    if (this.connected && silent > Math.max(SILENCE_LIMIT, 4 * (this.data?.status.interval_seconds ?? 1))) this.connect();
    this.onState(this.freshness());
  }
}
