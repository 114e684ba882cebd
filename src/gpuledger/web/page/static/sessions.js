// The sessions of the last day: fetched completely once, then only those since the last fetch.
import { fetchJson } from "./live.js";
import { place, placeOrder } from "./names.js";

const DAY = 86400;
const MAX_SESSIONS = 20_000;
const FULL_REFRESH = 600;
// Seconds: sessions may be listed a tick late.
const OVERLAP = 10;

/** Sessions by id, kept up to date. Calls `changed()` after each update. */
export class SessionStore {
  constructor(changed) {
    this.changed = changed;
    this.known = new Map();
    this.truncated = false;
    this.until = null;
    this.wholeAt = -Infinity;
    this.running = null;
    this.first = new Promise((resolve) => (this.resolveFirst = resolve));
  }

  /** Fetches updates; calls during a fetch share it. */
  refresh(now) {
    this.running ??= this.fetch(now).finally(() => (this.running = null));
    return this.running;
  }

  async fetch(now) {
    const whole = this.until === null || Math.abs(now - this.wholeAt) > FULL_REFRESH;
    const since = whole ? now - DAY : this.refreshSince(now);
    const found = new Map();
    let cursor = null;
    let answer;
    do {
      const more = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
      answer = await fetchJson(`api/v1/sessions?since=${since.toFixed(3)}&limit=1000${more}`);
      for (const session of answer.sessions) found.set(session.id, session);
      cursor = answer.next;
    } while (cursor !== null && found.size < MAX_SESSIONS);
    if (whole) {
      this.known = found;
      this.wholeAt = now;
      this.truncated = cursor !== null;
    } else {
      if (cursor === null) this.closeMissing(found, since);
      for (const [id, session] of found) this.known.set(id, session);
      for (const [id, session] of this.known) if ((session.ended ?? now) < now - DAY) this.known.delete(id);
    }
    this.fromBooks = answer.from_books;
    this.until = answer.until;
    this.resolveFirst();
    this.changed();
  }

  /** The start of the range to fetch: early enough for the end of each running session, its last sighting. */
  refreshSince(now) {
    // The node's clock may have been set back.
    let since = Math.min(this.until, now);
    for (const session of this.known.values()) if (session.ended === null) since = Math.min(since, session.last_seen);
    return since - OVERLAP;
  }

  /** Running sessions missing in the response have ended. Without a ledger, the last sighting is their end. */
  closeMissing(found, since) {
    for (const [id, session] of this.known) {
      if (session.ended === null && session.last_seen >= since && !found.has(id)) this.known.set(id, { ...session, ended: session.last_seen });
    }
  }
}

/**
 * One track per device with its sessions in as few rows as possible without overlaps. `places` are the devices
 * that have a track even without a session.
 */
export function buildTracks(sessions, places, now) {
  const tracks = new Map();
  const trackAt = (name) => {
    if (!tracks.has(name)) tracks.set(name, { place: name, bars: [], rows: 1 });
    return tracks.get(name);
  };
  places.forEach(trackAt);
  for (const session of sessions) {
    const track = trackAt(place(session));
    track.bars.push({ session, place: track.place, from: session.first_seen, to: session.ended ?? Math.max(now, session.last_seen) });
  }
  for (const track of tracks.values()) pack(track);
  return [...tracks.values()].sort((a, b) => placeOrder(a.place) - placeOrder(b.place) || (a.place < b.place ? -1 : 1));
}

function pack(track) {
  track.bars.sort((a, b) => a.from - b.from || (a.session.id < b.session.id ? -1 : 1));
  const ends = [];
  for (const bar of track.bars) {
    let row = ends.findIndex((end) => end <= bar.from);
    if (row < 0) row = ends.length;
    ends[row] = bar.to;
    bar.row = row;
  }
  track.rows = Math.max(1, ends.length);
}
