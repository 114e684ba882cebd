// The sessions of the last day: fetched page by page once, then only what overlaps the time since.
import { ask } from "./live.js";
import { place, placeOrder } from "./names.js";

const DAY = 86400;
const MOST = 20_000;
const WHOLE_AGAIN = 600;
// Sessions may be told a tick late.
const OVERLAP = 10;

/** Sessions by id, kept up to date. `changed()` hears of each new state. */
export class Sessions {
  constructor(changed) {
    this.changed = changed;
    this.known = new Map();
    this.cut = false;
    this.until = null;
    this.wholeAt = -Infinity;
    this.running = null;
    this.first = new Promise((resolve) => (this.told = resolve));
  }

  /** Asks again; a second call while one runs waits for the same. */
  refresh(now) {
    this.running ??= this.fetch(now).finally(() => (this.running = null));
    return this.running;
  }

  async fetch(now) {
    const whole = this.until === null || Math.abs(now - this.wholeAt) > WHOLE_AGAIN;
    const since = whole ? now - DAY : this.sinceWhen(now);
    const found = new Map();
    let cursor = null;
    let answer;
    do {
      const more = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
      answer = await ask(`api/v1/sessions?since=${since.toFixed(3)}&limit=1000${more}`);
      for (const session of answer.sessions) found.set(session.id, session);
      cursor = answer.next;
    } while (cursor !== null && found.size < MOST);
    if (whole) {
      this.known = found;
      this.wholeAt = now;
      this.cut = cursor !== null;
    } else {
      if (cursor === null) this.end(found, since);
      for (const [id, session] of found) this.known.set(id, session);
      for (const [id, session] of this.known) if ((session.ended ?? now) < now - DAY) this.known.delete(id);
    }
    this.fromBooks = answer.from_books;
    this.until = answer.until;
    this.told();
    this.changed();
  }

  /** Early enough for the end of each session that was running: it is told by its last sight. */
  sinceWhen(now) {
    // The node's clock may have been set back.
    let since = Math.min(this.until, now);
    for (const session of this.known.values()) if (session.ended === null) since = Math.min(since, session.last_seen);
    return since - OVERLAP;
  }

  /** Whoever was running and is told no more has ended; without books nobody says when but its last sight. */
  end(found, since) {
    for (const [id, session] of this.known) {
      if (session.ended === null && session.last_seen >= since && !found.has(id)) this.known.set(id, { ...session, ended: session.last_seen });
    }
  }
}

/**
 * One lane per device, its sessions in as few rows as keep them apart. `places` are devices that have a lane
 * even without a session.
 */
export function lanesOf(sessions, places, now) {
  const lanes = new Map();
  const laneAt = (name) => {
    if (!lanes.has(name)) lanes.set(name, { place: name, bars: [], rows: 1 });
    return lanes.get(name);
  };
  places.forEach(laneAt);
  for (const session of sessions) {
    const lane = laneAt(place(session));
    lane.bars.push({ session, place: lane.place, from: session.first_seen, to: session.ended ?? Math.max(now, session.last_seen) });
  }
  for (const lane of lanes.values()) pack(lane);
  return [...lanes.values()].sort((a, b) => placeOrder(a.place) - placeOrder(b.place) || (a.place < b.place ? -1 : 1));
}

function pack(lane) {
  lane.bars.sort((a, b) => a.from - b.from || (a.session.id < b.session.id ? -1 : 1));
  const ends = [];
  for (const bar of lane.bars) {
    let row = ends.findIndex((end) => end <= bar.from);
    if (row < 0) row = ends.length;
    ends[row] = bar.to;
    bar.row = row;
  }
  lane.rows = Math.max(1, ends.length);
}
