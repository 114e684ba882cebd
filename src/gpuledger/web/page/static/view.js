// The user's choices, stored in the URL hash, so that a view can be shared as a link.

const DEFAULTS = { q: "", sort: "gpu", order: "asc", spark: "utilization", by: "auto", period: "today", span: "" };

/** Choices by name. `change` writes them to the URL hash, `onChange` listeners run when the hash changes. */
export class ViewState {
  constructor(defaults = DEFAULTS) {
    this.defaults = defaults;
    this.listeners = [];
    this.read();
    addEventListener("hashchange", () => {
      this.read();
      for (const listener of this.listeners) listener();
    });
  }

  read() {
    const given = new URLSearchParams(location.hash.slice(1));
    this.chosen = { ...this.defaults };
    for (const name of Object.keys(this.defaults)) {
      if (given.has(name)) this.chosen[name] = given.get(name);
    }
  }

  get(name) {
    return this.chosen[name];
  }

  /** The choice if it is allowed, else the default. */
  oneOf(name, allowed) {
    return allowed.includes(this.chosen[name]) ? this.chosen[name] : this.defaults[name];
  }

  change(changes) {
    Object.assign(this.chosen, changes);
    const changed = Object.entries(this.chosen).filter(([name, value]) => value !== this.defaults[name]);
    const hash = new URLSearchParams(changed).toString();
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }

  onChange(listener) {
    this.listeners.push(listener);
  }
}
