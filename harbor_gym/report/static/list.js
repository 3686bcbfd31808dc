// The list of a run's episodes: filters, search, order, and the choice of one by mouse or keyboard.

const COLUMNS = [
  ["batch", (episode) => episode.batch, (episode) => (episode.split === "test" ? `eval ${episode.batch}` : episode.batch)],
  ["group", (episode) => episode.group ?? -1, (episode) => episode.group ?? "–"],
  ["task", (episode) => episode.task || "", (episode) => episode.task || "–"],
  ["episode", (episode) => episode.episode, (episode) => episode.episode],
  ["reward", (episode) => episode.reward ?? -Infinity, (episode) => figure(episode.reward, 2)],
  ["turns", (episode) => episode.turns, (episode) => episode.turns],
  ["tokens", (episode) => episode.tokens ?? -1, (episode) => figure(episode.tokens, 0)],
  ["seconds", (episode) => episode.seconds ?? -1, (episode) => figure(episode.seconds, 1)],
  ["ended", (episode) => episode.end_reason || "", (episode) => episode.end_reason || "–"],
];
const PLACES = ["batch", "group", "task"]; // Left out where they are the same in every episode.
const NUMBERS = new Set(["reward", "turns", "tokens", "seconds"]);
const ROWS_AT_ONCE = 200;
const textOf = (name, episode) => String(COLUMNS.find(([other]) => other === name)[2](episode));
const COLLATOR = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : COLLATOR.compare(String(a), String(b)));

class EpisodeList {
  // `search(text, after)` resolves to whether some episodes hold a text, by their names, to `after` for the next ones,
  // and to how many are `left`; `choose(name)` shows one, and `address(name)` is the page's address that does.
  constructor(search, choose, address) {
    this.search = search;
    this.choose = choose;
    this.address = address;
    this.known = new Map();
    this.episodes = [];
    this.rows = [];
    this.unread = 0;
    this.query = null;
    this.sorted = null;
    this.descending = false;
    this.chosen = null;
    this.filters = {};
    this.build();
  }

  build() {
    const refresh = () => this.draw();
    for (const [name, label] of [["task", "task"], ["batch", "batch"], ["ended", "end reason"]]) {
      this.filters[name] = select(label, [["", `every ${label}`]], refresh);
    }
    this.filters.reward = select("reward", [["", "every reward"], ["1", "reward ≥ 1"], ["+", "reward > 0"], ["0", "reward ≤ 0"], ["-", "no reward"]], refresh);
    this.input = Object.assign(element("input", "search"), { type: "search", placeholder: "search in text (/)" });
    this.input.setAttribute("aria-label", "search in text");
    let waiting = null;
    this.input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => this.find(), 150); });
    this.count = element("p", "quiet count");
    this.count.setAttribute("role", "status");
    this.heads = new Map();
    for (const [name] of COLUMNS) this.heads.set(name, element("th", NUMBERS.has(name) ? "number" : "", button(name, `sort by ${name}`, () => this.sort(name))));
    this.body = element("tbody");
    const table = element("table", "list", element("thead", "", element("tr", "", ...this.heads.values())), this.body);
    const filters = element("div", "filters", this.input, this.filters.reward, this.filters.ended, this.filters.task, this.filters.batch);
    this.node = element("div", "scroll", filters, this.count, table);
    // A large run's rows are made as they are scrolled to.
    new IntersectionObserver(([end]) => { if (end.isIntersecting) this.drawTo(this.body.rows.length + ROWS_AT_ONCE); }, { root: this.node, rootMargin: "400px" }).observe(this.node.appendChild(element("div", "end")));
  }

  // Take episodes that are new or have changed, or the whole run; the choice and the filters stay.
  update(episodes, whole, unread) {
    if (whole) this.known.clear();
    for (const episode of episodes) this.known.set(episode.name, episode);
    this.unread = unread;
    const order = (a, b) => (a.split === "test") - (b.split === "test") || a.batch - b.batch || (a.name < b.name ? -1 : 1);
    this.episodes = [...this.known.values()].sort(order);
    this.addChoices("task", episodes.map((episode) => episode.task).filter(Boolean));
    this.addChoices("batch", episodes.map((episode) => textOf("batch", episode)));
    this.addChoices("ended", episodes.map((episode) => episode.end_reason).filter(Boolean));
    for (const name of PLACES) {
      this.heads.get(name).hidden = new Set(this.episodes.map((episode) => textOf(name, episode))).size < 2;
      if (this.filters[name]) this.filters[name].hidden = this.heads.get(name).hidden;
    }
    this.draw();
    this.goOn(true);
  }

  titleOf(name) { return this.known.get(name).title; }

  filter(name, value) { this.filters[name].value = value; this.draw(); }

  addChoices(name, values) {
    const box = this.filters[name];
    const known = new Set([...box.options].map((option) => option.value));
    for (const value of [...new Set(values)].sort(COLLATOR.compare)) {
      if (!known.has(value)) box.append(Object.assign(element("option", "", value), { value }));
    }
  }

  // Go on with a search, which lacks the episodes that are new or was not answered.
  goOn(isBehind) { if (this.query && (isBehind || this.query.left)) this.find(); }

  // Search the episodes that were not searched for the text yet, and show after each answer what is found so far.
  async find() {
    const text = this.input.value;
    if (this.query?.text !== text) {
      this.query = text ? { text, found: new Set(), after: 0, left: this.episodes.length, isAsked: false } : null;
      this.draw();
    }
    const query = this.query;
    if (!query) return;
    query.isBehind = true;
    if (query.isAsked) return;
    query.isAsked = true;
    try {
      while (query.isBehind || query.left) {
        query.isBehind = false;
        const { searched, after, left } = await this.search(text, query.after);
        if (query !== this.query) return;
        for (const [name, holds] of Object.entries(searched)) query.found[holds ? "add" : "delete"](name);
        Object.assign(query, { after, left });
        this.draw();
      }
    } catch { query.left ||= 1; /* The server does not answer: find() goes on with the page's next refresh. */ }
    finally { query.isAsked = false; }
  }

  sort(name) {
    this.descending = this.sorted === name ? !this.descending : NUMBERS.has(name);
    this.sorted = name;
    for (const [other, title] of this.heads) title.setAttribute("aria-sort", other !== name ? "none" : this.descending ? "descending" : "ascending");
    this.draw();
  }

  isShown(episode) {
    const { task, batch, ended, reward } = this.filters;
    const rewards = { "": true, 1: episode.reward >= 1, "+": episode.reward > 0, 0: typeof episode.reward === "number" && episode.reward <= 0, "-": typeof episode.reward !== "number" };
    return (!task.value || episode.task === task.value) && (!batch.value || textOf("batch", episode) === batch.value)
      && (!ended.value || episode.end_reason === ended.value) && rewards[reward.value] && (!this.query || this.query.found.has(episode.name));
  }

  draw() {
    const rows = this.episodes.filter((episode) => this.isShown(episode));
    if (this.sorted) {
      const key = COLUMNS.find(([name]) => name === this.sorted)[1];
      rows.sort((a, b) => compare(key(a), key(b)) * (this.descending ? -1 : 1));
    }
    this.rows = rows;
    const waits = [[this.unread, "read"], [this.query?.left, "searched"]].filter(([left]) => left);
    this.count.textContent = [`${rows.length} of ${this.episodes.length} episodes`, ...waits.map(([left, done]) => `${left} not ${done} yet`)].join(", ");
    const end = Math.max(ROWS_AT_ONCE, this.body.rows.length);
    this.body.replaceChildren();
    this.drawTo(end);
  }

  // Make the rows up to the end-th.
  drawTo(end) {
    this.body.append(...this.rows.slice(this.body.rows.length, end).map((episode) => this.row(episode)));
  }

  row(episode) {
    const made = element("tr", outcome(episode));
    for (const [name, , text] of COLUMNS) {
      if (this.heads.get(name).hidden) continue;
      const content = text(episode);
      const link = name === "episode" ? Object.assign(element("a", "", content), { href: this.address(episode.name), tabIndex: -1 }) : content;
      made.append(Object.assign(element("td", NUMBERS.has(name) ? `number ${name}` : name, link), { title: content }));
    }
    made.dataset.name = episode.name;
    this.mark(made);
    made.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.pick(episode.name);
    });
    return made;
  }

  mark(row) {
    const isChosen = row.dataset.name === this.chosen;
    row.classList.toggle("chosen", isChosen);
    row.setAttribute("aria-selected", String(isChosen));
    row.tabIndex = isChosen ? 0 : -1;
    return isChosen;
  }

  // Choose an episode; `scrolls` brings its row into view.
  pick(name, scrolls = true) {
    this.chosen = name;
    const at = this.rows.findIndex((episode) => episode.name === name);
    if (at >= this.body.rows.length) this.drawTo(at + ROWS_AT_ONCE);
    for (const row of this.body.rows) if (this.mark(row) && scrolls) row.scrollIntoView({ block: "nearest" });
    this.choose(name);
  }

  // Choose the next episode of those shown, or the one before; the first or last where none is chosen.
  move(by) {
    if (!this.rows.length) return;
    const at = this.rows.findIndex((episode) => episode.name === this.chosen);
    const next = at < 0 ? (by > 0 ? 0 : this.rows.length - 1) : Math.min(Math.max(at + by, 0), this.rows.length - 1);
    this.pick(this.rows[next].name);
  }
}
