// What the reader has chosen, kept in the address behind #, so that a view can be sent to a colleague.

const DEFAULTS = { q: "", sort: "gpu", order: "asc", spark: "utilization", by: "namespace", span: "" };

/** Choices by name; `change` writes them to the address, `follow` hears of those that come from there. */
export class View {
  constructor() {
    this.followers = [];
    this.read();
    addEventListener("hashchange", () => {
      this.read();
      for (const follower of this.followers) follower();
    });
  }

  read() {
    const given = new URLSearchParams(location.hash.slice(1));
    this.chosen = { ...DEFAULTS };
    for (const name of Object.keys(DEFAULTS)) {
      if (given.has(name)) this.chosen[name] = given.get(name);
    }
  }

  get(name) {
    return this.chosen[name];
  }

  /** The choice where it is one of these, else the usual one. */
  oneOf(name, allowed) {
    return allowed.includes(this.chosen[name]) ? this.chosen[name] : DEFAULTS[name];
  }

  change(changes) {
    Object.assign(this.chosen, changes);
    const told = Object.entries(this.chosen).filter(([name, value]) => value !== DEFAULTS[name]);
    const hash = new URLSearchParams(told).toString();
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }

  follow(follower) {
    this.followers.push(follower);
  }
}
